"""`specpilot doctor`: every check must be able to fail, and says what to do then."""

import json
import os
import shutil
import socket
import sys
import types
from collections import namedtuple
from importlib import metadata

import pytest

from specpilot_sglang import SGLANG_VERSION
from specpilot_sglang.doctor import hardware, plugin, software, tools
from specpilot_sglang.doctor.check import Status, ok, run_probes

GIB = 1 << 30


def by_name(checks):
    return {check.name: check for check in checks}


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def fake_nvml(monkeypatch):
    """An NVML with one GPU: name, free and total bytes, and the CUDA version of its driver."""

    def install(name="NVIDIA H200", free=140 * GIB, total=141 * GIB, cuda=13000):
        module = types.ModuleType("pynvml")
        memory = namedtuple("Memory", "free total")(free, total)
        module.NVMLError = RuntimeError
        module.nvmlInit = module.nvmlShutdown = lambda: None
        module.nvmlDeviceGetCount = lambda: 1
        module.nvmlDeviceGetHandleByIndex = lambda i: i
        module.nvmlDeviceGetName = lambda handle: name
        module.nvmlDeviceGetMemoryInfo = lambda handle: memory
        module.nvmlSystemGetDriverVersion = lambda: b"580.1"
        module.nvmlSystemGetCudaDriverVersion_v2 = lambda: cuda
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return install


def test_this_environment_passes(cli, no_gpu):
    result = cli("doctor", "--json")
    assert result.code == 0, result.out
    assert json.loads(result.out)["ok"] is True
    assert result.checks["sglang"]["detail"] == SGLANG_VERSION
    assert result.checks["entry point specpilot"]["status"] == "ok"
    assert {"torch", "triton", "flashinfer-python", "transformers"} <= set(result.checks)


def test_table_names_every_check_and_fix(cli, no_gpu):
    result = cli("doctor")
    assert result.code == 0
    for word in ("sglang", "GPU", "bwrap", "/dev/shm", "nvcc", "fix:"):
        assert word in result.out


def test_every_finding_carries_a_fix(cli, monkeypatch, no_gpu):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    for check in cli("doctor", "--json").checks.values():
        assert check["status"] == "ok" or check["fix"], check


# --- software


@pytest.mark.parametrize(("installed", "says"), [(None, "not installed"), ("0.5.24", "know 0.5.23 only")])
def test_sglang_of_another_version_fails(monkeypatch, installed, says):
    monkeypatch.setattr(software, "_version", lambda name: installed)
    check = by_name(software.check_software())["sglang"]
    assert check.status is Status.FAIL
    assert says in check.detail
    assert check.fix == f"pip install sglang=={SGLANG_VERSION}"


def test_package_off_sglangs_pin_warns(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(software.metadata, "version", lambda name: "4.0.0" if name == "transformers" else real(name))
    checks = by_name(software.check_software())
    assert checks["transformers"].status is Status.WARN
    assert "pip install 'transformers==" in checks["transformers"].fix
    assert checks["torch"].status is Status.OK


def test_folder_that_shadows_hugging_face_kernels_fails(monkeypatch, tmp_path):
    (tmp_path / "kernels").mkdir()
    monkeypatch.chdir(tmp_path)
    assert by_name(software.check_software())["kernels"].status is Status.OK  # a plain folder does not shadow
    (tmp_path / "kernels" / "__init__.py").touch()
    check = by_name(software.check_software())["kernels"]
    assert check.status is Status.FAIL
    assert str(tmp_path) in check.detail


# --- plugin


def point(name, group, value="specpilot_sglang.plugin.entry:load", owner="specpilot-sglang"):
    dist = types.SimpleNamespace(name=owner, metadata={"Name": owner})
    return metadata.EntryPoint(name, value, group)._for(dist)


@pytest.mark.parametrize(
    ("points", "says", "fix"),
    [
        ([], "does not list it", "pip install"),
        ([point("specpilot", plugin.PLUGINS)] * 2, "registered 2 times", "uninstall"),
        ([point("specpilot", plugin.PLUGINS, owner="impostor")], "impostor", "pip uninstall impostor"),
        ([point("specpilot", plugin.PLUGINS, value="no_such_module:load")], "ModuleNotFoundError", "reinstall"),
    ],
)
def test_entry_point_that_sglang_would_not_load_fails(monkeypatch, points, says, fix):
    monkeypatch.setattr(plugin, "entry_points", lambda group: [p for p in points if p.group == group])
    check = by_name(plugin.check_plugin(has_gpu=False))["entry point specpilot"]
    assert check.status is Status.FAIL
    assert says in check.detail
    assert fix in check.fix


@pytest.mark.parametrize(
    ("env", "has_gpu", "name", "fix"),
    [
        ({"SGLANG_PLUGINS": "other"}, True, "SGLANG_PLUGINS", "export SGLANG_PLUGINS=other,specpilot"),
        ({"SGLANG_PLUGINS": "specpilot"}, False, "SGLANG_PLUGINS", "specpilot,specpilot_cpu"),
        ({"SGLANG_PLATFORM": "acme"}, True, "SGLANG_PLATFORM", "unset SGLANG_PLATFORM"),
        ({"SGLANG_PLATFORM": "specpilot_cpu"}, True, "SGLANG_PLATFORM", "CUDA_VISIBLE_DEVICES"),
        ({"SGLANG_USE_CPU_ENGINE": "1"}, False, "SGLANG_PLATFORM", "unset SGLANG_USE_CPU_ENGINE"),
    ],
)
def test_environment_that_keeps_the_plugin_out_fails(monkeypatch, env, has_gpu, name, fix):
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    check = by_name(plugin.check_plugin(has_gpu))[name]
    assert check.status is Status.FAIL
    assert fix in check.fix


@pytest.mark.parametrize(
    ("env", "has_gpu"),
    [
        ({}, True),
        ({"SGLANG_PLUGINS": "specpilot"}, True),
        ({"SGLANG_PLUGINS": " specpilot_cpu , specpilot"}, False),
        ({"SGLANG_PLUGINS": "specpilot", "SGLANG_PLATFORM": "specpilot_cpu"}, False),
    ],
)
def test_environment_that_lets_the_plugin_in_passes(monkeypatch, env, has_gpu):
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    checks = by_name(plugin.check_plugin(has_gpu))
    assert checks["SGLANG_PLUGINS"].status is Status.OK
    assert checks["SGLANG_PLATFORM"].status is Status.OK


@pytest.mark.parametrize(
    ("env", "status"),
    [
        ({"SGLANG_SIMULATE_ACC_LEN": "3.5"}, Status.WARN),
        ({"SGLANG_SIMULATE_ACC_LEN": "-1"}, Status.OK),
        ({"SGLANG_SIMULATE_ACC_METHOD": "multinomial"}, Status.OK),
        ({}, Status.OK),
    ],
)
def test_simulated_acceptance_is_pointed_out(monkeypatch, env, status):
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    assert by_name(plugin.check_plugin(True))["simulated acceptance"].status is status


def test_plugin_forced_by_environment_is_shown(monkeypatch):
    monkeypatch.setenv("SPECPILOT_PLUGIN", "specpilot")
    check = by_name(plugin.check_plugin(True))["SPECPILOT_PLUGIN"]
    assert check.status is Status.WARN
    assert "unset SPECPILOT_PLUGIN" in check.fix


# --- hardware and tools


def test_gpu_is_listed(fake_nvml):
    fake_nvml()
    checks = by_name(hardware.check_hardware())
    assert checks["GPU 0"].status is Status.OK
    assert checks["GPU 0"].detail == "NVIDIA H200, 140 of 141 GiB free"
    assert checks["NVIDIA driver"].detail == "580.1, CUDA 13.0"


def test_busy_gpu_and_old_driver_warn(fake_nvml):
    fake_nvml(free=3 * GIB, cuda=12080)
    checks = by_name(hardware.check_hardware())
    assert checks["GPU 0"].status is Status.WARN
    assert checks["NVIDIA driver"].status is Status.WARN
    assert "CUDA 12.8" in checks["NVIDIA driver"].detail


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpu_does_not_count(fake_nvml, monkeypatch, value):
    fake_nvml()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert not hardware.has_gpu()


@pytest.mark.parametrize(("free", "status"), [(20 * GIB, Status.OK), (2 * GIB, Status.WARN), (GIB // 2, Status.FAIL)])
def test_disk_space(monkeypatch, no_gpu, free, status):
    monkeypatch.setattr(hardware.shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(free))
    assert by_name(hardware.check_hardware())["disk, home"].status is status


@pytest.mark.parametrize(("free", "status"), [(20 * GIB, Status.OK), (2 * GIB, Status.WARN), (GIB // 2, Status.FAIL)])
def test_memory_counts_the_containers_limit(monkeypatch, no_gpu, free, status):
    monkeypatch.setattr(hardware.psutil, "virtual_memory", lambda: namedtuple("Memory", "available")(64 * GIB))
    monkeypatch.setattr(hardware, "_cgroup_room", lambda: free)
    assert by_name(hardware.check_hardware())["memory"].status is status


def test_missing_tools_warn_with_the_command_that_installs_them(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tools, "_in_cuda_home", lambda: None)
    checks = by_name(tools.check_tools(has_gpu=True))
    assert checks["bwrap"].fix == "apt install bubblewrap"
    assert checks["nvcc"].status is Status.WARN
    assert checks["C compiler"].status is Status.WARN
    assert by_name(tools.check_tools(has_gpu=False))["nvcc"].status is Status.OK


@pytest.mark.parametrize(("script", "status"), [("exit 0", Status.OK), ("echo denied >&2; exit 1", Status.WARN)])
def test_bwrap_must_work_not_just_exist(monkeypatch, tmp_path, script, status):
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert by_name(tools.check_tools(False))["bwrap"].status is status


def test_busy_default_port_warns(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(tools, "DEFAULT_PORT", port)
        assert by_name(tools.check_tools(False))[f"port {port}"].status is Status.WARN
    assert by_name(tools.check_tools(False))[f"port {port}"].status is Status.OK


# --- deployment


def test_pair_gets_its_overlay_and_the_reason_against_the_others(cli, pair, no_gpu):
    target, drafter = pair
    result = cli("doctor", "--model", target, "--draft", drafter, "--json")
    assert result.code == 0, result.out
    assert result.checks["overlay"]["detail"].startswith("smollm2-135m-dflash-cpu")
    assert "target is 'LlamaForCausalLM'" in result.checks["not qwen3.8-27b-dflash2-h200"]["detail"]
    assert "only by name" in result.checks["not template"]["detail"]


def test_pair_without_overlay_fails(cli, make_model, no_gpu):
    target = make_model("opt", architectures=["OPTForCausalLM"])
    result = cli("doctor", "--model", target, "--json")
    assert result.code == 1
    assert result.checks["overlay"]["status"] == "fail"
    assert result.checks["drafter"]["status"] == "warn"


def test_drafter_of_another_size_fails(cli, pair, make_model, no_gpu):
    wrong = make_model("wrong", architectures=["DFlashDraftModel"], hidden_size=65, vocab_size=100)
    result = cli("doctor", "--model", pair[0], "--draft", wrong, "--json")
    assert result.code == 1
    assert "hidden_size" in result.checks["drafter"]["detail"]


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"architectures": []}'])
def test_unusable_config_fails_with_the_file(cli, tmp_path, content, no_gpu):
    folder = tmp_path / "m"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    result = cli("doctor", "--model", folder, "--json")
    assert result.code == 1
    assert str(folder) in result.checks["models"]["detail"]


def test_broken_overlay_in_the_library_fails(cli, tmp_path, monkeypatch, no_gpu):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "overlay.yaml").write_text("name: [\n")
    monkeypatch.setenv("SPECPILOT_OVERLAY_PATH", str(tmp_path))
    result = cli("doctor", "--json")
    assert result.code == 1
    assert "overlay.yaml:2" in result.checks["overlay bad"]["detail"]


def test_overlay_path_to_nowhere_fails(cli, monkeypatch, no_gpu):
    monkeypatch.setenv("SPECPILOT_OVERLAY_PATH", "/nowhere")
    result = cli("doctor", "--json")
    assert result.code == 1
    assert result.checks["overlays"]["status"] == "fail"


# --- doctor's own errors


def test_a_check_that_breaks_hides_no_other():
    def broken():
        raise ZeroDivisionError("x")

    checks = run_probes([("one", broken), ("two", lambda: [ok("fine", "")])])
    assert [check.status for check in checks] == [Status.ERROR, Status.OK]
    assert "ZeroDivisionError" in checks[0].detail


def test_doctors_own_error_is_exit_2_with_one_line(cli, monkeypatch, no_gpu):
    monkeypatch.setattr("specpilot_sglang.doctor.check_hardware", lambda: 1 / 0)
    result = cli("doctor", "--json")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert "doctor:hardware" in result.err
    assert result.checks["sglang"]["status"] == "ok"
