"""Runs many requests at a fixed concurrency, keeping their order and stopping at once on Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Report nothing."""


def run_all(work: Callable[[T], R], items: Sequence[T], concurrency: int, progress: Progress = silent) -> list[R]:
    """Return `[work(i) for i in items]`, at most `concurrency` at a time; the first exception ends it.

    Args:
        work: called in worker threads.
        items: its arguments.
        concurrency: number of threads, at least 1.
        progress: called with (done, total) after each item, in the calling thread.
    """
    pool = ThreadPoolExecutor(max(1, concurrency), thread_name_prefix="specpilot-eval")
    try:
        futures = {pool.submit(work, item): index for index, item in enumerate(items)}
        results: dict[int, R] = {}
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            progress(len(results), len(items))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return [results[index] for index in range(len(items))]
