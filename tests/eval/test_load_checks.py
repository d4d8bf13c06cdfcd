"""What a load run is refused for, check by check: server settings, client files, clocks, samples."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import time
from importlib.metadata import PathDistribution
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.load import command, gpu, guards, observe, output
from specpilot_sglang.eval.load.client_source import CLIENT_FILES, client_problems
from specpilot_sglang.eval.load.process import OutsideClock, run_client
from specpilot_sglang.eval.load.results import LoadResult, Sample, load_result, quantile
from specpilot_sglang.eval.load.workload import Workload
from specpilot_sglang.eval.suites import Item

LOSSLESS = {"speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0}
THRESHOLD = {"speculative_accept_threshold_acc": 0.95}


@pytest.mark.parametrize(
    ("env", "info", "attestation"),
    [
        ({"SGLANG_SIMULATE_ACC_LEN": "3.5"}, {}, None),
        ({"SGLANG_SIMULATE_ACC_METHOD": "multinomial"}, {}, None),
        ({"SGLANG_SIMULATE_UNIFORM_EXPERTS": "true"}, {}, None),
        ({}, THRESHOLD, None),
        ({}, {"internal_states": [LOSSLESS, THRESHOLD]}, None),
        ({}, {"speculative_accept_threshold_single": "none"}, None),
        ({}, {}, {"simulated_acceptance": {"SGLANG_SIMULATE_ACC_LEN": "4"}}),
        ({}, {}, {"consistent": False}),
    ],
)
def test_server_that_is_not_lossless_is_named(env, info, attestation):
    (reason,) = guards.check_lossless(env, info, attestation)
    assert any(word in reason for word in ("SGLANG_SIMULATE", "threshold", "ranks"))


def test_lossless_server_passes():
    env = {"SGLANG_SIMULATE_ACC_LEN": "-1", "SGLANG_SIMULATE_UNIFORM_EXPERTS": "0", "PATH": "/bin"}
    info = {**LOSSLESS, "internal_states": [LOSSLESS, {"other": 3}]}
    assert guards.check_lossless(env, info, {"simulated_acceptance": {}, "consistent": True}) == []


def test_environment_is_read_from_the_processes_themselves(monkeypatch):
    found = guards.environment_of([psutil.Process()])
    assert found["PATH"]
    matter = observe.variables_that_matter(
        {"SGLANG_X": "1", "SGLANG_API_KEY": "hush", "HOME": "/", "OMP_NUM_THREADS": "2"}
    )
    assert matter == {"OMP_NUM_THREADS": "2", "SGLANG_X": "1"}


def test_counters_that_grew():
    before = {"ranks": [{"hits": {"steps": 5}}]}
    after = {"ranks": [{"hits": {"steps": 9, "tree": 2}}, {"hits": {"steps": 100}}]}
    assert guards.hits_grown(before, after) == {"steps": 4, "tree": 2}
    assert guards.hits_grown(None, None) == {}


def wheel(tmp_path: Path, changed: str = "", dropped: str = "") -> PathDistribution:
    info = tmp_path / "sglang-0.5.23.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    lines = []
    for name in CLIENT_FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        if name != dropped:
            lines.append(f"{name},sha256={digest},{path.stat().st_size}")
    (info / "RECORD").write_text("\n".join(lines) + "\n")
    if changed:
        (tmp_path / changed).write_text("import time\ntime.perf_counter = lambda: 0\n")
    return PathDistribution(info)


def test_installed_client_is_the_wheels():
    hashes, problems = client_problems()
    assert problems == []
    assert set(hashes) == set(CLIENT_FILES)


def test_changed_and_unlisted_client_files_are_found(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
    assert client_problems(wheel(tmp_path / "a"))[1] == []
    (problem,) = client_problems(wheel(tmp_path / "b", changed=CLIENT_FILES[0]))[1]
    assert "serving.py is not the file that the wheel installed" in problem
    (problem,) = client_problems(wheel(tmp_path / "c", dropped=CLIENT_FILES[1]))[1]
    assert "not in the installed wheel's RECORD" in problem


CLIENT = """
import sys, time
print("Warmup completed with 0 sequences. Starting main benchmark run...", flush=True)
time.sleep(float(sys.argv[1]))
print("=== Serving Benchmark Result ===", flush=True)
"""


def test_window_is_timed_by_our_clock(tmp_path):
    clock = run_client([sys.executable, "-c", CLIENT, "1.3"], {}, tmp_path / "log", 60)
    assert clock.window_s == pytest.approx(1.3, abs=0.25)
    assert clock.wall_s > clock.window_s
    assert clock.problems(0.3) == []
    assert clock.problems(0.6)
    assert "Serving" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("claimed", "window", "chunks", "fine"),
    [
        (30.0, 31.05, 100, True),
        (27.0, 31.05, 100, False),
        (30.3, 31.05, 100, False),
        (29.0, 31.05, 20_000, True),
        (30.0, None, 0, False),
    ],
)
def test_claimed_duration_must_fit_the_window(claimed, window, chunks, fine):
    assert (OutsideClock(40.0, window).problems(claimed, chunks) == []) is fine


def test_client_that_fails_or_hangs_is_ended_and_named(tmp_path):
    with pytest.raises(SpecPilotError, match="exit code 3: no such model"):
        run_client([sys.executable, "-c", "print('no such model'); raise SystemExit(3)"], {}, tmp_path / "log", 60)
    begin = time.monotonic()
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(77)']).wait()"
    with pytest.raises(SpecPilotError, match="not done after 1 s"):
        run_client([sys.executable, "-c", child], {}, tmp_path / "log", 1)
    assert time.monotonic() - begin < 30
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if "import time; time.sleep(77)" in (p.info["cmdline"] or [])
    ]


def test_client_inherits_nothing_that_could_change_it(tmp_path):
    outer = {"PATH": "/bin", "PYTHONPATH": "/evil", "LD_PRELOAD": "libfaketime.so", "OPENAI_API_KEY": "hush"}
    env = command.client_environment(outer)
    assert env["PATH"] == "/bin"
    assert not {"PYTHONPATH", "LD_PRELOAD", "OPENAI_API_KEY"} & set(env)
    honours = command.command_line("http://h:1", "m", "m", "t", Workload((), 8, 2), tmp_path)
    ignores = command.command_line("http://h:1", "m", "m", "t", Workload((), 8, 2, ignore_eos=True), tmp_path)
    assert "-I" in honours
    assert {"--flush-cache", "--output-details", "--disable-ignore-eos"} <= set(honours)
    assert "--disable-ignore-eos" not in ignores


def test_dataset_keeps_order_and_carries_what_each_request_needs(tmp_path):
    items = (Item("b", "s", "second\u2028line"), Item("a", "s", "x"))
    command.write_dataset(Workload(items, 7, 1, seed=2, temperature=0.7, thinking=True), tmp_path / "d.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert [r["messages"][0]["content"] for r in rows] == ["second\u2028line", "x"]
    assert rows[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert rows[0]["stream_options"] == {"include_usage": True}
    assert rows[0]["seed"] != rows[1]["seed"]
    command.write_dataset(Workload(items, 7, 1, ignore_eos=True), tmp_path / "d.jsonl")
    row = json.loads((tmp_path / "d.jsonl").read_text().splitlines()[0])
    assert "seed" not in row
    assert row["skip_special_tokens"] is False


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"duration": 1.0}), json.dumps({"input_lens": [1]})])
def test_unusable_client_output_is_an_error(tmp_path, text):
    (tmp_path / "client.jsonl").write_text(text)
    with pytest.raises(SpecPilotError, match="no usable result"):
        output.read_output(tmp_path / "client.jsonl", Workload((Item("a", "", "b"),), 1, 1))


def test_another_number_of_answers_is_an_error(tmp_path):
    row = {name: [] for name in ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")}
    (tmp_path / "client.jsonl").write_text(json.dumps({**row, "duration": 1.0}))
    with pytest.raises(SpecPilotError, match="another number of requests"):
        output.read_output(tmp_path / "client.jsonl", Workload((Item("a", "", "b"),), 1, 1))


def test_more_work_than_the_concurrency_allows_is_found():
    samples = tuple(Sample(str(n), "s", 1, 5, "x", 0.5, (0.1,) * 4, 0.9) for n in range(4))
    seen = output.ClientOutput(samples, 1.0, (0,) * 4, None)
    assert output.sample_problems(seen, Workload((), 8, 4)) == []
    assert "requests took 3.6 s in all" in output.sample_problems(seen, Workload((), 8, 2))[0]


def test_shared_prefixes():
    assert output.shared_prefixes([[1, 2, 3], [7], [1, 2, 4, 5], [1, 9]]) == [2, 0, 2, 1]
    assert output.shared_prefixes([[1, 2]]) == [0]


def sample(name: str, tokens: int, error: str = "") -> Sample:
    return Sample(name, "s", 3, tokens, "text", 0.2, (0.1, 0.3), 0.6, error)


def test_time_between_tokens_counts_what_an_arrival_brings():
    def load(tokens: int, gaps: tuple[float, ...]) -> LoadResult:
        return LoadResult((Sample("a", "s", 3, tokens, "text", 0.2, gaps, 1.0),), 1.0, 1, None, None, {}, {}, None, {})

    plain, block = (
        load(9, (0.1,) * 8),
        load(9, (0.15,) * 4),
    )  # two tokens a step of 0.15 s are quicker than one of 0.1 s
    assert plain.itl_p99_s == pytest.approx(0.1)
    assert block.itl_p99_s == block.itl_p50_s == pytest.approx(0.075)
    assert load(9, (0.15, 0.15, 0.15, 0.6)).itl_p99_s > plain.itl_p99_s  # a stall still shows


def test_result_survives_a_round_trip_and_its_figures_leave_failures_out(tmp_path):
    result = LoadResult((sample("a", 30), sample("b", 10, "lost")), 2.0, 2, 7, 2.5, {"x": 1}, {}, None, {"y": [1]})
    result.save(tmp_path / "load.json")
    assert load_result(tmp_path / "load.json") == result
    assert result.output_tok_s == 15.0
    assert result.itl_p99_s == pytest.approx(0.298 * 2 / 29)
    (tmp_path / "load.json").write_text('{"format": 99}')
    with pytest.raises(SpecPilotError, match=r"load\.json: not a load result of format 1"):
        load_result(tmp_path / "load.json")


def test_quantile():
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 1.0], 0.99) == pytest.approx(0.99)
    assert quantile([], 0.5) != quantile([], 0.5)


def test_absent_gpu_is_said_and_throttling_is_summed_up():
    rows = iter([0, 0x4, 0x40, 0])

    def read() -> dict:
        bits = next(rows, 0)
        return {"gpus": [{"name": "toy", "sm_mhz": 1500 + bits, "throttled": gpu.throttled(bits)}]}

    with gpu.GpuWatch(0.01, read) as watch:
        time.sleep(0.3)
    (found,) = watch.summary()["gpus"]
    assert found["throttled"] == ["hardware thermal slowdown", "software power cap"]
    assert found["sm_mhz_range"] == [1500, 1564]
    with gpu.GpuWatch(0.01, lambda: {"gpus": [], "absent": "no driver"}) as nothing:
        pass
    assert nothing.summary() == {"gpus": [], "absent": "no driver"}


class FakeNvml:
    """NVML as `gpu.snapshot` calls it: one throttled GPU that does not tell its power."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, driver: bool = True) -> None:
        self.driver, self.open = driver, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise RuntimeError("library not found")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetName(self, gpu: str) -> str:
        return "Toy H200"

    def nvmlDeviceGetClockInfo(self, gpu: str, which: int) -> int:
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetTemperature(self, gpu: str, which: int) -> int:
        return 71

    def nvmlDeviceGetPowerUsage(self, gpu: str) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetMemoryInfo(self, gpu: str) -> SimpleNamespace:
        return SimpleNamespace(used=3 * 2**30)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: str) -> int:
        return 0x44 | 0x1  # idle is no throttling


def test_gpu_reading_and_absent_driver(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    (row,) = gpu.snapshot()["gpus"]
    assert (row["sm_mhz"], row["memory_mhz"], row["temperature_c"], row["memory_used_gib"]) == (1980, 3201, 71, 3.0)
    assert row["power_w"] is None
    assert row["throttled"] == ["software power cap", "hardware thermal slowdown"]
    assert fake.open == 0
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(driver=False))
    assert gpu.snapshot() == {"gpus": [], "absent": "no NVIDIA driver: library not found"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "not installed" in gpu.snapshot()["absent"]


def test_throttle_bits_are_nvmls():
    import pynvml

    named = {getattr(pynvml, n): n for n in dir(pynvml) if n.startswith("nvmlClocksThrottleReason")}
    names = {bit: named[bit].removeprefix("nvmlClocksThrottleReason") for bit in gpu.THROTTLE_BITS}
    assert names == {
        0x4: "SwPowerCap",
        0x8: "HwSlowdown",
        0x20: "SwThermalSlowdown",
        0x40: "HwThermalSlowdown",
        0x80: "HwPowerBrakeSlowdown",
    }
