"""Scores are right on right and wrong answers, and generated code can do nothing but compute."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval import scorers, suites
from specpilot_sglang.eval.scorers import jail, seccomp
from specpilot_sglang.eval.scorers.code import code_of
from specpilot_sglang.eval.scorers.numeric import final_number
from specpilot_sglang.eval.suites import Item

needs_jail = pytest.mark.skipif(
    not (shutil.which("bwrap") and shutil.which("prlimit")), reason="needs bubblewrap and util-linux"
)
QUICK = jail.Limits(wall_s=6.0, cpu_s=1, memory_mib=256, files_mib=4)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"So \boxed{18} eggs, not 19.", "18"),
        (r"\boxed{1} then \boxed{\$1{,}234.50}", "1234.5"),
        (r"\boxed{\text{about } 12\,000}", "12000"),
        ("#### 72", "72"),
        ("The answer is $1,200.00.\nThat took 3 steps.", "1200"),
        ("**Answer:** -5", "-5"),
        ("She has 3 apples, then 4, so 7.", "7"),
        ("costs $.50", "0.5"),
        ("none at all", None),
        ("", None),
    ],
)
def test_final_number(text, number):
    found = final_number(text)
    assert (None if found is None else f"{found.normalize():f}") == number


def test_number_is_compared_as_a_number_and_thoughts_are_left_out():
    item = Item("gsm8k/1", "gsm8k", "?", "1,234")
    assert scorers.score(item, "It is 1234.00").correct
    assert not scorers.score(item, "It is 1235").correct
    assert not scorers.score(item, "<think>1234</think> I do not know").correct
    assert scorers.score(item, "<think>17</think> #### 1234").correct


def test_code_is_found_in_an_answer():
    two = "First\n```python\ndef f(): return 1\n```\nThen\n```python\nprint(f())\n```"
    assert code_of(two, "f") == "def f(): return 1"
    assert code_of(two) == "print(f())"
    assert code_of("```\nx = 1\n```") == "x = 1"
    assert code_of("```bash\nls\n```\n    return 1") == "```bash\nls\n```\n    return 1"
    assert code_of("```python\ndef f():\n    return 2") == "def f():\n    return 2"


@needs_jail
def test_every_canonical_solution_of_a_sample_passes_and_a_broken_one_does_not():
    # Item 38 and 50 need helper functions of the head; the answers continue it.
    problems = [suites.load("humaneval", limit=1, skip=n)[0] for n in (0, 32, 38, 50, 163)]
    for item in problems:
        assert scorers.score(item, item.reference).detail == "passed", item.id
        assert not scorers.score(item, "    return None\n").correct, item.id


@needs_jail
def test_function_written_anew_in_a_block_is_scored_with_the_heads_helpers():
    item = suites.load("humaneval", limit=1, skip=38)[0]
    answer = f"Here it is:\n```python\ndef decode_cyclic(s: str):\n{item.reference}\n```\nIt reverses encode_cyclic."
    assert scorers.score(item, answer).detail == "passed"
    wrong = answer.replace("encode_cyclic(encode_cyclic(s))", "encode_cyclic(s)")
    assert wrong != answer
    assert "AssertionError" in scorers.score(item, wrong).detail


@needs_jail
def test_mbpp_tests_decide():
    item = Item(
        "mbpp/1", "mbpp", "add", tests="import math\nassert add(1, 2) == 3\nassert add(math.inf, 1) == math.inf"
    )
    assert scorers.score(item, "```python\ndef add(a, b):\n    return a + b\n```").correct
    assert not scorers.score(item, "```python\ndef add(a, b):\n    return 3\n```").correct


ATTACKS = {
    "leaving early": ("import sys; sys.exit(0)", "ended before its tests"),
    "fork bomb": ("import os\nwhile True: os.fork()", "PermissionError"),
    "threads": ("import threading\nthreading.Thread(target=print).start()", "RuntimeError"),
    "other programs": ("import subprocess; subprocess.run(['/usr/bin/id'], check=True)", "PermissionError"),
    "network": ("import socket; socket.create_connection(('192.0.2.1', 80), 2)", "unreachable"),
    "infinite loop": ("while True: pass", "137"),
    "sleep": ("import time; time.sleep(60)", "not done"),
    "memory": ("x = [bytearray(2**20) for _ in range(2**20)]", "MemoryError"),
    "disk": ("open('x', 'wb').write(bytes(2**26))", "OSError"),
    "output": ("while True: print('x' * 4096)", "xxx"),
    "writing outside": ("open('/usr/x', 'w')", "Read-only"),
    "signals": ("import os, signal; os.kill(-1, signal.SIGKILL)", "ProcessLookupError"),
}


@needs_jail
@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_fails(attack):
    source, reason = ATTACKS[attack]
    begin = time.monotonic()
    outcome = jail.run_jailed(source, QUICK)
    assert not outcome.passed
    assert reason in outcome.reason
    assert time.monotonic() - begin < 30


@needs_jail
def test_files_and_variables_of_this_machine_cannot_be_seen(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("hush")
    home = os.path.join(os.path.expanduser("~"), ".bashrc")
    monkeypatch.setenv("SECRET_KEY", "hush")
    for path in (str(secret), home, "/etc/passwd", "/proc/1/root/etc/passwd"):
        assert "No such file" in jail.run_jailed(f"open({path!r})", QUICK).reason, path
    nothing = "import os\nassert 'SECRET_KEY' not in os.environ and os.listdir('/tmp') == [] and os.getuid() != 0"
    assert jail.run_jailed(nothing, QUICK).passed


@needs_jail
def test_loopback_of_this_machine_cannot_be_reached(free_port):
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port))
        listener.listen()
        source = f"import socket; socket.create_connection(('127.0.0.1', {free_port}), 2)"
        assert "refused" in jail.run_jailed(source, QUICK).reason


@pytest.mark.parametrize("missing", ["bwrap", "prlimit"])
def test_without_a_jail_nothing_is_run(monkeypatch, missing):
    monkeypatch.setattr(jail.shutil, "which", lambda tool: None if tool == missing else f"/usr/bin/{tool}")
    monkeypatch.setattr(jail.subprocess, "run", lambda *a, **k: pytest.fail("something was run"))
    jail._problem.cache_clear()
    try:
        item = Item("HumanEval/0", "humaneval", "", tests="x", entry_point="f", stem="def f():\n")
        with pytest.raises(SpecPilotError, match=f"{missing} is not installed.*Fix: install bubblewrap"):
            scorers.score_all([item], {"HumanEval/0": "    pass"})
    finally:
        jail._problem.cache_clear()


@needs_jail
def test_jail_that_cannot_be_built_is_an_error_not_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(jail, "_SYSTEM", ())  # Python finds no libraries: as where user namespaces are forbidden
    jail._problem.cache_clear()
    try:
        with pytest.raises(SpecPilotError, match="a trial run failed"):
            jail.run_jailed("pass")
    finally:
        jail._problem.cache_clear()


def test_seccomp_filter_is_refused_for_unknown_machines():
    assert len(seccomp.no_new_processes("x86_64")) == 8 * 11
    with pytest.raises(SpecPilotError, match="no seccomp filter for m68k"):
        seccomp.no_new_processes("m68k")


def test_accuracy_counts_missing_answers_as_wrong():
    items = [Item(f"gsm8k/{n}", "gsm8k", "?", str(n)) for n in range(4)] + [Item("mt-bench/1", "mt-bench", "?")]
    scores = scorers.score_all(items, {"gsm8k/0": "0", "gsm8k/1": "1", "gsm8k/2": "9"})
    assert [s.detail for s in scores] == ["0", "1", "9", "no answer"]
    (accuracy,) = scorers.by_suite(scores)
    assert (accuracy.correct, accuracy.total, accuracy.rate) == (2, 4, 0.5)
    assert accuracy.low < 0.1 < 0.9 < accuracy.high
    with pytest.raises(SpecPilotError, match="no scorer"):
        scorers.score(items[-1], "x")
