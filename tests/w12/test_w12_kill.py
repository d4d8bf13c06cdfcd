"""kill -9 in the middle: no file under a final name is incomplete, and a second run succeeds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from w12_data import gaussian, write_checkpoint

from specpilot_sglang.w12.pack import PackOptions, pack_checkpoint
from specpilot_sglang.w12.rawfile import SafetensorsReader
from specpilot_sglang.w12.unpack import unpack_checkpoint
from specpilot_sglang.w12.verify import verify_checkpoint

PARTIAL = ".packed.w12-partial"
FIRST = "model-00001-of-00003.safetensors"


def writing(partial: Path) -> bool:
    return any(partial.glob("*.safetensors.tmp"))


def started(partial: Path) -> bool:
    return partial.exists()


def first_shard_done(partial: Path) -> bool:
    return (partial / ".w12-state.json").exists() and writing(partial)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    shards = [{f"s{s}.t{t}.weight": gaussian(1024, 1024, 10 * s + t) for t in range(3)} for s in range(3)]
    return write_checkpoint(tmp_path / "source", shards)


def kill_when(command: list[str], condition: Callable[[Path], bool], partial: Path) -> None:
    code = "from specpilot_sglang.cli.main import run; run()"
    process = subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not condition(partial):
        assert process.poll() is None, "finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("condition", [started, writing, first_shard_done])
def test_killed_pack_leaves_nothing_under_the_final_name(condition: Callable, large: Path, tmp_path: Path) -> None:
    packed, partial = tmp_path / "packed", tmp_path / PARTIAL
    kill_when(["w12", "pack", str(large), str(packed)], condition, partial)
    assert not packed.exists()
    for file in partial.glob("*.safetensors"):  # a file with its final name is complete even inside
        SafetensorsReader(file).close()
    kept = (partial / FIRST).stat().st_mtime_ns if condition is first_shard_done else None
    pack_checkpoint(large, packed, PackOptions())
    assert verify_checkpoint(large, packed) == (9, [])
    assert not partial.exists()
    if kept is not None:
        assert (packed / FIRST).stat().st_mtime_ns == kept  # went on instead of starting again


def test_killed_unpack_and_second_run(large: Path, tmp_path: Path) -> None:
    pack_checkpoint(large, tmp_path / "packed", PackOptions())
    again, partial = tmp_path / "again", tmp_path / ".again.w12-partial"
    kill_when(["w12", "unpack", str(tmp_path / "packed"), str(again)], writing, partial)
    assert not again.exists()
    unpack_checkpoint(tmp_path / "packed", again)
    assert (again / FIRST).read_bytes() == (large / FIRST).read_bytes()


def test_other_options_or_a_changed_source_start_clean(large: Path, tmp_path: Path) -> None:
    packed, partial = tmp_path / "packed", tmp_path / PARTIAL
    kill_when(["w12", "pack", str(large), str(packed)], first_shard_done, partial)
    before = (partial / FIRST).stat().st_mtime_ns
    os.utime(large / FIRST, ns=(0, 0))
    (partial / "leftover.safetensors").write_text("not ours any more")
    pack_checkpoint(large, packed, PackOptions(exclude=("t0",)))
    assert (packed / FIRST).stat().st_mtime_ns != before
    assert not (packed / "leftover.safetensors").exists()
    assert verify_checkpoint(large, packed) == (9, [])


def test_interrupted_by_the_keyboard_exits_130(large: Path, tmp_path: Path) -> None:
    code = "from specpilot_sglang.cli.main import run; run()"
    command = [sys.executable, "-c", code, "w12", "pack", str(large), str(tmp_path / "packed")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not writing(tmp_path / PARTIAL):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == {"source"}
