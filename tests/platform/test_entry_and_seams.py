"""When the platform is chosen, and that its patches apply once and go away again."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.platform_cpu import entry


@pytest.fixture(autouse=True)
def _clean_env(monkeypatch):
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setattr(entry, "visible_accelerator", lambda: None)


def test_chosen_where_nothing_else_is():
    assert entry.activate() == entry.PLATFORM_CLASS


def test_chosen_by_name(monkeypatch):
    monkeypatch.setenv("SGLANG_PLATFORM", "specpilot_cpu")
    assert entry.activate() == entry.PLATFORM_CLASS


def test_leaves_other_choices_alone(monkeypatch):
    monkeypatch.setenv("SGLANG_PLATFORM", "some_npu")
    assert entry.activate() is None
    monkeypatch.delenv("SGLANG_PLATFORM")
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert entry.activate() is None


def test_stays_away_from_accelerators(monkeypatch):
    monkeypatch.setattr(entry, "visible_accelerator", lambda: "a CUDA GPU")
    assert entry.activate() is None
    monkeypatch.setenv("SGLANG_PLATFORM", "specpilot_cpu")
    with pytest.raises(SpecPilotError, match="CUDA_VISIBLE_DEVICES"):
        entry.activate()


def test_visible_accelerator_names_cuda(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "GPU" in (entry.visible_accelerator() or "")


def test_entry_point_imports_neither_sglang_nor_the_platform():
    code = (
        "import sys; from specpilot_sglang.platform_cpu.entry import activate; activate();"
        "bad = [m for m in sys.modules if m.startswith('sglang') or m.endswith('platform_cpu.platform')];"
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SEAMS = """
import sys, torch
from sglang.srt.mem_cache import allocation
from sglang.srt.speculative import dflash_utils, spec_utils
from specpilot_sglang.platform_cpu import seams
import sglang.srt.model_executor.model_runner  # applies the worker seams on this platform
changed = allocation.assign_req_to_token_pool_func
assert changed is seams.ops.assign_req_to_token_pool
assert spec_utils.assign_req_to_token_pool_func is changed, "a copy imported by name was missed"
assert dflash_utils.is_dflash_sampling_verify_available()
undo = len(seams._undo)
seams.apply_seams(seams.WORKER_SEAMS)
assert len(seams._undo) == undo, "applied twice"
torch.zeros(1).record_stream(None)
seams.apply_seams(seams.LOADED_SEAMS + seams.hybrid_seams())
from sglang.srt.layers.attention.linear import gdn_backend
from specpilot_sglang.platform_cpu import gdn_ops
assert gdn_backend.causal_conv1d_update is gdn_ops.conv1d_update
seams.undo_seams()
assert allocation.assign_req_to_token_pool_func is not changed
assert spec_utils.assign_req_to_token_pool_func is allocation.assign_req_to_token_pool_func
assert "record_stream" not in vars(torch.Tensor)
assert gdn_backend.causal_conv1d_update is not gdn_ops.conv1d_update
print("seams ok")
"""


def test_seams_apply_once_everywhere_and_undo(monkeypatch):
    done = subprocess.run([sys.executable, "-c", SEAMS], capture_output=True, text=True, check=False)
    assert "seams ok" in done.stdout, done.stderr[-3000:]


DRIFT = """
import inspect
import sglang.srt.model_executor.model_runner
from sglang.srt.mem_cache import allocation
from specpilot_sglang.errors import PatchDriftError
from specpilot_sglang.platform_cpu import seams
seams.undo_seams()
targets = {s.target for s in seams.WORKER_SEAMS + seams.LOADED_SEAMS + seams.DFLASH_SEAMS + seams.hybrid_seams()}
assert set(seams.KNOWN_SOURCES) <= targets, "fingerprints of seams that no longer exist"
def get_last_loc(*args): return None
allocation.get_last_loc = get_last_loc
try:
    seams.apply_seams(seams.WORKER_SEAMS)
except PatchDriftError as error:
    print(error)
"""


def test_a_drifted_source_is_refused_by_name():
    done = subprocess.run([sys.executable, "-c", DRIFT], capture_output=True, text=True, check=False)
    assert "get_last_loc is not the one" in done.stdout, done.stderr[-3000:]
