"""Executors: where a trial runs. One trial is one job that has a whole host to itself."""

from specpilot_sglang.loop.executors.base import Executor, JobStatus

__all__ = ["Executor", "JobStatus"]
