"""GPU clocks, temperature, power and throttle reasons around a run, through NVML."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

#: NVML's clock event bits that mean the GPU ran slower than it could; idle and application clocks are none.
THROTTLE_BITS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}

_READINGS: dict[str, Callable[[Any, Any], Any]] = {
    "sm_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,
    "memory_used_gib": lambda nvml, gpu: round(nvml.nvmlDeviceGetMemoryInfo(gpu).used / 2**30, 3),
    "event_bits": lambda nvml, gpu: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
}


def snapshot() -> dict[str, Any]:
    """Return one reading a GPU under `gpus`; without any, an empty list and the reason under `absent`."""
    try:
        import pynvml as nvml
    except ImportError:
        return {"gpus": [], "absent": "nvidia-ml-py is not installed"}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as exc:
        return {"gpus": [], "absent": f"no NVIDIA driver: {exc}"}
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return {"gpus": [_read(nvml, gpu) for gpu in handles]}
    except nvml.NVMLError as exc:
        return {"gpus": [], "absent": f"NVML failed: {exc}"}
    finally:
        nvml.nvmlShutdown()


def throttled(bits: int) -> list[str]:
    """Return the names of the throttle reasons in NVML's clock event bits."""
    return [name for bit, name in THROTTLE_BITS.items() if bits & bit]


def _read(nvml: Any, gpu: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"name": str(nvml.nvmlDeviceGetName(gpu))}
    for name, read in _READINGS.items():
        try:
            row[name] = read(nvml, gpu)
        except nvml.NVMLError:
            row[name] = None  # a virtual or restricted GPU does not tell everything
    row["throttled"] = throttled(row["event_bits"] or 0)
    return row


class GpuWatch:
    """Reads all GPUs about once a second while its `with` block runs; does nothing where there is none.

    Args:
        interval_s: seconds between readings.
        read: gives a reading, `snapshot` by default.
    """

    def __init__(self, interval_s: float = 1.0, read: Callable[[], dict[str, Any]] = snapshot) -> None:
        self._interval_s, self._read = interval_s, read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="specpilot-gpu-watch", daemon=True)
        self.readings: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.readings.append(self._read())
        if self.readings[0]["gpus"]:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.readings.append(self._read())

    def summary(self) -> dict[str, Any]:
        """Return first and last reading, the clocks' range and every throttle reason seen, by GPU."""
        first, last = self.readings[0], self.readings[-1]
        if not first["gpus"]:
            return {"gpus": [], "absent": first.get("absent", "")}
        return {"gpus": [self._of(index) for index in range(len(first["gpus"]))], "first": first, "last": last}

    def _of(self, index: int) -> dict[str, Any]:
        rows = [r["gpus"][index] for r in self.readings if len(r["gpus"]) > index]
        clocks = [row["sm_mhz"] for row in rows if row.get("sm_mhz") is not None]
        seen = sorted({reason for row in rows for reason in row["throttled"]})
        span = [min(clocks), max(clocks)] if clocks else None
        return {"name": rows[0]["name"], "sm_mhz_range": span, "throttled": seen, "readings": len(rows)}

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.readings.append(self._read())
