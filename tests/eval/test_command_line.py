"""Wrong usage of the command line ends in one message and exit code 2, which no script takes for a verdict."""

from __future__ import annotations

import pytest

from specpilot_sglang.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["w12", "pack"], "Missing argument"),
        (["--nope"], "No such option"),
        (["nonsense"], "No such command"),
        (["bench", "gemm", "--out", "x", "--escapes", "0.9"], "--escapes"),
        (["bench", "gemm", "--out", "x", "--tokens", "1,abc"], "--tokens: '1,abc' are no numbers of tokens"),
        (["bench", "gemm", "--out", "x", "--tokens", "0"], "--tokens"),
        (["bench", "gemm", "--out", "x", "--shape", "5120"], "--shape: '5120' is no shape"),
        (["bench", "gemm", "--out", "x", "--shape", "5120,0"], "--shape"),
    ],
)
def test_wrong_usage_is_an_error_not_a_rejection(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["specpilot", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert said in printed
    assert "Traceback" not in printed


def test_ctrl_c_at_a_prompt_ends_as_interrupted(monkeypatch):
    import typer

    def abort(**_):
        raise typer.Abort

    monkeypatch.setattr(main, "app", abort)
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 130
