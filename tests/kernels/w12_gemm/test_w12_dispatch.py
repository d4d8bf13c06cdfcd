"""The dispatch table decides once for each weight, and never for one that is slower at some number of tokens."""

from __future__ import annotations

import json

import pytest
import torch

from specpilot_sglang.errors import W12Error
from specpilot_sglang.kernels.w12_gemm import dispatch
from specpilot_sglang.w12.codec_torch import encode


@pytest.fixture
def table(tmp_path, monkeypatch):
    path = tmp_path / "dispatch.json"
    monkeypatch.setattr(dispatch, "TABLE", path)
    monkeypatch.delenv("SPECPILOT_W12_DISPATCH", raising=False)
    dispatch._entries.cache_clear()
    yield path
    dispatch._entries.cache_clear()


def test_one_slow_number_of_tokens_keeps_a_weight_bf16(table) -> None:
    fast, slow = {1: 1.4, 64: 1.01}, {1: 1.6, 64: 0.9}
    assert dispatch.decide({1: 1.3, 32: 1.1, 64: 0.94, 256: 0.7})
    assert not dispatch.decide({1: 1.3, 32: 0.97, 64: 1.0})
    dispatch.write(table, "GPU A", {"date": "today"}, {(5120, 5120): fast, (4096, 4096): slow})
    dispatch.write(table, "GPU B", {"date": "today"}, {(4096, 4096): fast})
    assert dispatch.wins(5120, 5120, "GPU A")
    assert not dispatch.wins(4096, 4096, "GPU A")
    assert dispatch.wins(4096, 4096, "GPU B")
    assert json.loads(table.read_text())["GPU A"]["shapes"][1]["ratios"] == {"1": 1.6, "64": 0.9}


def test_what_was_not_measured_follows_its_size(table) -> None:
    table.write_text("{}")
    assert dispatch.wins(8192, 8192, "unknown")
    assert not dispatch.wins(512, 512, "unknown")


def test_environment_overrides_the_table(table, monkeypatch) -> None:
    table.write_text("{}")
    monkeypatch.setenv("SPECPILOT_W12_DISPATCH", "always")
    assert dispatch.wins(16, 64, "unknown")
    monkeypatch.setenv("SPECPILOT_W12_DISPATCH", "never")
    assert not dispatch.wins(8192, 8192, "unknown")
    monkeypatch.setenv("SPECPILOT_W12_DISPATCH", "sometimes")
    with pytest.raises(W12Error, match="sometimes"):
        dispatch.wins(1, 1, "unknown")


def test_a_broken_table_is_named(table) -> None:
    table.write_text('{"GPU": []}')
    with pytest.raises(W12Error, match=r"dispatch.json"):
        dispatch.wins(1, 1, "GPU")


def test_the_shipped_table_reads() -> None:
    dispatch._entries.cache_clear()
    assert isinstance(dispatch.wins(14336, 5120, "NVIDIA H200"), bool)


def test_escapes_count_where_they_are_densest() -> None:
    weight = torch.randn(50, 640).mul_(0.02).bfloat16()
    assert dispatch.densest(encode(weight)) < dispatch.MOST_ESCAPES
    weight[17, :32] = 1e6  # 0.1 percent of all weights, 0.3 percent of the second sixteen rows
    assert dispatch.densest(encode(weight)) == pytest.approx(32 / (16 * 640), rel=0.2)
    assert dispatch.densest(encode(weight[:0])) == 0.0
