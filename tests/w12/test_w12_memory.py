"""Packing streams: peak memory depends on the largest tensor, not on the checkpoint."""

import json
import subprocess
import sys
from pathlib import Path

from w12_data import gaussian, write_checkpoint

TENSOR = 3072 * 4096 * 2

# The small run first, so that libraries and the codec's fixed chunk buffers are in the baseline.
SCRIPT = """
import json, sys
from pathlib import Path
from specpilot_sglang.w12.pack import PackOptions, pack_checkpoint
from specpilot_sglang.w12.unpack import unpack_checkpoint
from specpilot_sglang.w12.verify import verify_checkpoint
# Not ru_maxrss, which a child process inherits from its parent.
peak = lambda: 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
root = Path(sys.argv[1])
pack_checkpoint(root / "small", root / "small_packed", PackOptions())
peaks = [peak()]
pack_checkpoint(root / "source", root / "packed", PackOptions()); peaks.append(peak())
verify_checkpoint(root / "source", root / "packed"); peaks.append(peak())
unpack_checkpoint(root / "packed", root / "again"); peaks.append(peak())
print(json.dumps(peaks))
"""


def test_peak_memory_is_a_few_times_the_largest_tensor(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "small", [{"w": gaussian(512, 4096)}])
    write_checkpoint(tmp_path / "source", [{f"w{i}": gaussian(3072, 4096, i) for i in range(12)}])
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True)
    base, *peaks = json.loads(done.stdout)
    grown = [(p - base) / TENSOR for p in peaks]
    assert 0.5 < max(grown) < 4, grown  # the checkpoint is 12 of them
