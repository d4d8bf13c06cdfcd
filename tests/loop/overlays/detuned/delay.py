"""A delay in proportion to each step, so that it is the same share on any machine."""

import os
import time

from specpilot_sglang.plugin.known_sources import around

TARGET = "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.forward_batch_generation"
SHARE = float(os.environ.get("SPECPILOT_TEST_DELAY", "0.10"))


def delayed(original, *args, **kwargs):
    begin = time.perf_counter()
    result = original(*args, **kwargs)
    time.sleep(SHARE * (time.perf_counter() - begin))
    return result


def declare():
    return [around(TARGET, delayed, f"sleeps for {SHARE:.0%} of each step, on purpose")]
