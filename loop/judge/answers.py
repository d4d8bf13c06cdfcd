"""Token forcing of both arms on sealed prompts: the reference by plain decoding, margins by the same AR server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specpilot_sglang.eval.ab.block import Block
from specpilot_sglang.eval.ab.durable import write_json
from specpilot_sglang.eval.arms import Arm
from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.forcing import Mismatch, force
from specpilot_sglang.eval.forcing_report import ForcingReport
from specpilot_sglang.eval.forcing_verdict import NEAR_TIE
from specpilot_sglang.eval.margins import margin_between
from specpilot_sglang.eval.prompts import encode, load_tokenizer
from specpilot_sglang.eval.recording import greedy, record
from specpilot_sglang.eval.records import Run, load_run
from specpilot_sglang.eval.servers import Server
from specpilot_sglang.eval.suites import Item
from specpilot_sglang.loop.judge.timed import score_timed, to_json


@dataclass(frozen=True)
class AnswerCheck:
    """Files and settings of a trial's token forcing.

    Attributes:
        folder: the trial's folder.
        max_new_tokens: most tokens an answer of the reference.
        concurrency: requests in flight; that of the timed load, so that the same kernels run.
        dtype: data type the servers compute in.
    """

    folder: Path
    max_new_tokens: int = 128
    concurrency: int = 1
    dtype: str = "bfloat16"

    def record_reference(self, items: Sequence[Item], launch: Callable[[], Server]) -> Run:
        """Return AR's answers to `items`, recorded before if the trial was interrupted."""
        path = self.folder / "reference.jsonl"
        if not path.exists():
            with launch() as server:
                tokenizer = load_tokenizer(server.client.model_info()["tokenizer_path"])
                prompts = encode(items, tokenizer)
                sampling = greedy(self.max_new_tokens)
                record(server.client, prompts, sampling, concurrency=self.concurrency).save(path)
        return load_run(path)

    def after(self, server: Server, arm: Arm, index: int, folder: Path) -> Mapping[str, Any]:
        """Force the reference through an arm's server in the confirmation's first block (an `ab.run.After`)."""
        if index != 0:
            return {}
        reference = load_run(self.folder / "reference.jsonl")
        server.client.flush_cache()
        report = ForcingReport(force(reference, server.client, concurrency=self.concurrency))
        write_json(folder / "forcing.json", report.to_json())
        write_json(self.folder / "forced" / f"{arm.name}.json", report.to_json())
        return {"forcing_positions": report.positions, "forcing_mismatches": len(report.mismatches)}

    def score(self, names: Sequence[str], block: Block, items: Sequence[Item], launch: Callable[[], Server]) -> None:
        """Let the AR server score margins and timed answers: who scores himself can call any error a tie.

        Args:
            names: both arms.
            block: the confirmation's first block.
            items: its prompts.
            launch: makes the AR server.
        """
        if (self.folder / "timed.json").exists():  # written last
            return
        reference = load_run(self.folder / "reference.jsonl")
        with launch() as server:
            tokenizer = load_tokenizer(server.client.model_info()["tokenizer_path"])
            reports = {name: rescored(self._forced(name), reference, server.client) for name in names}
            limit = NEAR_TIE[self.dtype]
            timed = score_timed(block, items, judge=server.client, tokenizer=tokenizer, near_tie=limit)
        for name, report in reports.items():
            write_json(self.folder / "forcing" / f"{name}.json", report.to_json())
        write_json(self.folder / "timed.json", to_json(timed))

    def _forced(self, name: str) -> ForcingReport:
        path = self.folder / "forced" / f"{name}.json"
        return ForcingReport.from_json(json.loads(path.read_text(encoding="utf-8")))


def rescored(report: ForcingReport, reference: Run, judge: Client) -> ForcingReport:
    """Return the report with every margin measured by `judge`."""
    requests = {request.id: request for request in reference.requests}

    def margin(mismatch: Mismatch) -> Mismatch:
        if mismatch.reference is None or mismatch.candidate is None:
            return mismatch
        request = requests[mismatch.request]
        prefix = [*request.prompt_ids, *request.output_ids[: mismatch.position]]
        value = margin_between(judge, prefix, mismatch.reference, mismatch.candidate)
        return replace(mismatch, margin=value)

    verdicts = [replace(v, mismatches=[margin(m) for m in v.mismatches]) for v in report.verdicts]
    return ForcingReport(verdicts, report.excuse_margin)
