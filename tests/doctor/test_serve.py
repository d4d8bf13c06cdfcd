"""`specpilot serve`: the command it becomes, and what it refuses before SGLang spends time."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest


def command(result):
    assert result.code == 0, result.err
    return shlex.split(result.out)


def test_dry_run_prints_the_whole_command(cli, pair):
    target, drafter = map(str, pair)
    words = command(
        cli("serve", "--model", target, "--draft", drafter, "--overlay", "template", "--tp", 2, "--dry-run")
    )
    assert words == [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", target),
        *("--speculative-draft-model-path", drafter),
        *("--speculative-plugin", "specpilot", "--specpilot-overlay", "template", "--tp-size", "2"),
    ]


def test_arguments_after_the_dashes_pass_unchanged(cli, pair):
    extra = ["--port", "1", "--chat-template", "a b", "--json-model-override-args", '{"x": 1}']
    assert command(cli("serve", "--model", pair[0], "--dry-run", "--", *extra))[-len(extra) :] == extra


def test_hub_id_passes(cli):
    words = command(cli("serve", "--model", "org/model.v1", "--draft", "org/draft_1", "--dry-run"))
    assert words[4] == "org/model.v1"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--model", "nowhere"], "--model: no such folder: nowhere"),
        (["--model", "./a/b"], "--model: no such folder"),
        (["--model", "/a/b/c"], "--model: no such folder"),
        (["--model", "{file}"], "is a file"),
        (["--model", "{empty}"], "has no config.json"),
        (["--model", "{target}", "--draft", "nowhere"], "--draft: no such folder"),
        (["--model", "{target}", "--overlay", "nosuch"], "no overlay is called 'nosuch'"),
        (["--model", "{target}", "--overlay", "./nosuch"], "no such file"),
        (["--model", "{target}", "--overlay", "{unsupported}"], "two-level-verify"),
        (["--model", "{target}", "--", "--model-path", "x"], "use --model"),
        (["--model", "{target}", "--", "--specpilot-overlay=x"], "use --overlay"),
        (["--model", "{target}", "--", "--speculative-plugin", "specpilot"], "always on"),
        (["--model", "{target}", "--tp", "2", "--", "--tp", "4"], "contradicts --tp 2"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(cli, pair, tmp_path, args, says):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    unsupported = tmp_path / "unsupported"
    unsupported.mkdir()
    (unsupported / "overlay.yaml").write_text("name: u\nverify: {levels: 2, cheap_rounds: 1}\n")
    names = {"file": tmp_path / "file", "empty": tmp_path / "empty", "target": pair[0], "unsupported": unsupported}
    dashes = args.index("--") if "--" in args else len(args)
    words = [arg.format(**names) for arg in args]
    result = cli("serve", *words[:dashes], "--dry-run", *words[dashes:])
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert says in result.err
    assert "Fix: " in result.err


def test_the_server_takes_this_processs_place(pair, tmp_path):
    """The same process id and signals: a fake `sglang.launch_server` reports its own."""
    fake = tmp_path / "path" / "sglang"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("")
    (fake / "launch_server.py").write_text(
        "import json, os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print(json.dumps([os.getpid(), sys.argv[1:]]), flush=True)\n"
        "time.sleep(60)\n"
    )
    start = [sys.executable, "-c", "from specpilot_sglang.cli.main import run; run()", "serve", "--model", str(pair[0])]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "path")}
    with subprocess.Popen([*start, "--", "--port", "5"], env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            pid, argv = json.loads(process.stdout.readline())
            assert pid == process.pid
            assert argv[-2:] == ["--port", "5"]
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 10
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            assert process.returncode == 7
        finally:
            process.kill()
