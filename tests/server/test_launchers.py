"""Every way to launch SGLang honours the request for the plugin, and a failure ends it with exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ENGINE = """
import json, os, sys
import sglang

def main():
    engine = sglang.Engine(
        model_path=sys.argv[1], speculative_draft_model_path=sys.argv[2], dtype="float32", max_running_requests=4
    )
    try:
        out = engine.generate("The capital of France is", {"temperature": 0, "max_new_tokens": 8})
        rank = engine.get_server_info()["internal_states"][0]["specpilot"]["ranks"][0]
        print("RESULT", json.dumps({"text": out["text"], "rank": rank}))
    finally:
        engine.shutdown()

if __name__ == "__main__":
    main()
"""


def run(argv, cwd, env=None, timeout=400):
    return subprocess.run(
        argv, cwd=cwd, capture_output=True, text=True, check=False, timeout=timeout, env={**os.environ, **(env or {})}
    )


def only_error(done) -> str:
    lines = [line for line in done.stderr.splitlines() if line.startswith("specpilot: error:")]
    assert len(lines) == 1, done.stderr[-3000:]
    assert done.returncode == 2, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    "launcher", [["-m", "sglang.launch_server"], ["-c", "from sglang.cli.main import main; main()", "serve"]]
)
def test_unknown_overlay_ends_the_launcher(launcher, repository, smollm2, drafter):
    argv = [
        sys.executable, *launcher, "--model-path", str(smollm2), "--speculative-draft-model-path", str(drafter),
        "--speculative-plugin", "specpilot", "--specpilot-overlay", "nope",
    ]  # fmt: skip
    assert "no overlay is called 'nope'" in only_error(run(argv, repository))


def test_import_error_of_the_plugin_ends_the_launcher_when_asked_and_not_otherwise(tmp_path, repository, smollm2):
    """A broken installation: pydantic cannot be imported by the plugin, but SGLang runs."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'specpilot_sglang.overlay':\n"
        "            raise ImportError('deliberately broken')\n"
        "sys.meta_path.insert(0, Broken())\n"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    base = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(smollm2)]
    assert "deliberately broken" in only_error(run([*base, "--speculative-plugin", "specpilot"], repository, env))
    done = run([*base, "--help"], repository, env)
    assert done.returncode == 0


def test_a_rank_that_fails_takes_the_server_down(tmp_path, repository, smollm2, drafter):
    """The launcher is well, but a worker process cannot apply the overlay (its files change in between)."""
    import shutil

    folder = tmp_path / "mine"
    shutil.copytree(repository / "overlays" / "smollm2-135m-dflash-cpu", folder)
    (folder / "extra.py").write_text(
        "import multiprocessing\n"
        "def patches():\n"
        "    if multiprocessing.parent_process() is not None:\n"
        "        raise RuntimeError('only in workers')\n"
        "    return []\n"
    )
    text = (folder / "overlay.yaml").read_text()
    (folder / "overlay.yaml").write_text(text + "\npatches:\n  - {file: extra.py, function: patches}\n")
    argv = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(smollm2),
        "--speculative-draft-model-path", str(drafter), "--speculative-plugin", "specpilot",
        "--specpilot-overlay", str(folder),
    ]  # fmt: skip
    done = run(argv, repository)
    assert done.returncode not in (0, None)
    assert "only in workers" in done.stderr
    assert "specpilot: error:" in done.stderr


def test_engine_takes_the_request_from_the_environment(tmp_path, smollm2, drafter):
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    config = json.dumps({"plugin": "specpilot", "overlay": "smollm2-135m-dflash-cpu"})
    done = run([sys.executable, str(script), str(smollm2), str(drafter)], tmp_path, {"SPECPILOT_CONFIG": config})
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("RESULT"))[7:])
    assert result["text"].startswith(" Paris")
    assert result["rank"]["overlay"]["name"] == "smollm2-135m-dflash-cpu"
    assert result["rank"]["hits"]["speculative_steps"] > 0


def test_engine_raises_one_clear_error_for_a_wrong_request(tmp_path, smollm2, drafter):
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.replace('main()\n"""', "main()"))
    done = run([sys.executable, str(script), str(smollm2), str(drafter)], tmp_path, {"SPECPILOT_PLUGIN": "other"})
    assert done.returncode != 0
    assert "unknown plugin 'other'" in done.stderr
    assert "RESULT" not in done.stdout
