"""Runs SGLang's own scheduler, overlap loop included, in this process: no HTTP, no tokenizer, no other process.

Read by tests that would otherwise start a server for a handful of requests. Usage: `python scheduler_run.py JOB`, a
JSON file {"args": server arguments, "requests": [{"ids": [...], "sampling": {...}, "after": step, "abort": step,
"follows": request}]};
prints {"outputs": [[token, ...]], "verify_steps": [...], "cached": [...], "hits": {...}} as its last line.

With "ranks" above 1 in the job, as many processes are started, each with a scheduler of its own rank that is given the
same requests in the same steps; prints the list of what each printed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path


def all_ranks(job: dict) -> list[dict]:
    clean = dict(os.environ)  # before the plugin tells future workers of this process what to do
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.server_args import PortArgs, prepare_server_args

    server_args = prepare_server_args(job["args"])
    server_args.resolve_once()
    ports = dataclasses.asdict(PortArgs.init_new(server_args))
    outs = []
    for rank in range(job["ranks"]):
        part = Path(tempfile.mkdtemp()) / "job.json"
        part.write_text(json.dumps(job | {"ranks": 1, "rank": rank, "ports": ports}))
        command = [sys.executable, __file__, str(part)]
        outs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean))
    said = [process.communicate()[0] for process in outs]
    if any(process.returncode for process in outs):
        raise SystemExit("\n".join(text[-2000:] for text in said))
    return [json.loads(text.strip().splitlines()[-1]) for text in said]


def main(job: dict) -> dict:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.server_args import PortArgs, prepare_server_args

    server_args = prepare_server_args(job["args"])
    server_args.resolve_once()
    from sglang.srt.managers.scheduler import Scheduler, configure_scheduler_process
    from sglang.srt.managers.scheduler import load_plugins as again
    from sglang.srt.runtime_context import SpawnRanks, publish

    again()
    rank = job.get("rank", 0)
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=rank))
    configure_scheduler_process(server_args, rank)
    ports = PortArgs(**job["ports"]) if "ports" in job else PortArgs.init_new(server_args)
    scheduler = Scheduler(server_args, ports)
    return _serve(scheduler, job["requests"])


def _serve(scheduler, wanted: list[dict]) -> dict:
    from sglang.srt.managers.io_struct import AbortReq

    seen, sent, aborted = {}, set(), set()
    enqueue = scheduler._add_request_to_queue

    def remember(req, *args, **kwargs):
        seen.setdefault(req.rid, req)
        return enqueue(req, *args, **kwargs)

    scheduler._add_request_to_queue = remember
    step = 0

    def ingest():
        nonlocal step
        step += 1
        ended = {rid for rid, req in seen.items() if req.finished()}
        ready = [step > r.get("after", 0) and ("follows" not in r or f"r{r['follows']}" in ended) for r in wanted]
        new = [i for i in range(len(wanted)) if ready[i] and i not in sent]
        sent.update(new)
        inputs = [_request(f"r{i}", wanted[i], scheduler) for i in new]
        for i, request in enumerate(wanted):
            if i in sent and i not in aborted and step > request.get("abort", 1 << 30):
                aborted.add(i)
                inputs.append(AbortReq(rid=f"r{i}"))
        scheduler.process_input_requests(inputs)
        # A request that is aborted while it waits never counts as finished.
        whole = [i for i in range(len(wanted)) if i not in aborted]
        done = len(sent) == len(wanted) and all(f"r{i}" in seen and seen[f"r{i}"].finished() for i in whole)
        pending = inputs or scheduler.waiting_queue or not scheduler.running_batch.is_empty()
        if done and not pending and all(i in aborted or "abort" not in r for i, r in enumerate(wanted)):
            scheduler.gracefully_exit = scheduler.last_batch is None

    scheduler.ingest_requests = ingest
    scheduler.run_event_loop()
    from specpilot_sglang.plugin import counters

    reqs = [seen[f"r{i}"] for i in range(len(wanted))]  # every request was queued once
    return {
        # The last verify pass may go past the end; SGLang cuts that when it answers.
        "outputs": [list(r.output_ids)[: r.finished_len] for r in reqs],
        "finish": [r.finished_reason.to_json() if r.finished_reason else None for r in reqs],
        "verify_steps": [r.spec_verify_ct for r in reqs],
        "retracted": [getattr(r, "retraction_count", 0) for r in reqs],
        "cached": [getattr(r, "cached_tokens", 0) for r in reqs],
        "logprobs": [
            list(getattr(r.logprob, "output_token_logprobs_val", None) or []) if getattr(r, "logprob", None) else []
            for r in reqs
        ],
        "hits": counters.snapshot(),
    }


def _request(rid: str, wanted: dict, scheduler):
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(**wanted["sampling"])
    sampling.normalize(scheduler.tokenizer)
    return TokenizedGenerateReqInput(
        rid=rid,
        input_text="",
        input_ids=array("q", wanted["ids"]),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=sampling,
        return_logprob=wanted.get("logprob", False),
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
    )


if __name__ == "__main__":
    wanted = json.loads(Path(sys.argv[1]).read_text())
    result = all_ranks(wanted) if wanted.get("ranks", 1) > 1 else main(wanted)
    print("\n" + json.dumps(result), flush=True)
