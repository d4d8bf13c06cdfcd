"""Fixtures of the W12 tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated import TorchKernel
from w12_data import mixed_tensors, write_checkpoint

from specpilot_sglang.cli.main import run
from specpilot_sglang.w12 import quant_method
from specpilot_sglang.w12.stats import STATS


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source", [mixed_tensors()])


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    first, second = mixed_tensors(1), {f"second.{n}": t for n, t in mixed_tensors(2).items()}
    return write_checkpoint(tmp_path / "source", [first, second])


@pytest.fixture
def specpilot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple]:
    """Run the command line in this process; return exit code, stdout and stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["specpilot", *map(str, args)])
        with pytest.raises(SystemExit) as exit_info:
            run()
        out, err = capsys.readouterr()
        return int(exit_info.value.code or 0), out, err

    return call


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchKernel]:
    from specpilot_sglang.w12.method import W12Config

    quant_method.register(max_bits=16.0)
    STATS.layers.clear()
    made = TorchKernel()
    monkeypatch.setattr(W12Config, "backend", made)
    yield made
    quant_method.unregister()


@pytest.fixture
def parallel() -> Iterator:
    from sglang.srt.runtime_context import get_parallel

    def override(rank: int, size: int):
        return get_parallel().override(tp_rank=rank, tp_size=size, attn_tp_rank=rank, attn_tp_size=size)

    return override
