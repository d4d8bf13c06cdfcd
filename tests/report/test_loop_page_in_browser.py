"""The loop's report in a real browser: no console error, the plot visible, nothing wider than the screen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from browser import look, needs_browser

sys.path.insert(0, str(Path(__file__).parent.parent / "loop"))
from loop_fakes import context_of

from specpilot_sglang.loop.controller import pins
from specpilot_sglang.loop.controller.loop import run_loop
from specpilot_sglang.loop.report.document import document
from specpilot_sglang.loop.report.write import write_report

#: What agents write is of any length, and may have no place to break.
LONG = "server_args.speculative_num_draft_tokens=8,server_args.num_continuous_decode_steps=4," * 3


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("loop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pins.judge_pins, "take", lambda root=None: {})
        context = context_of(root, candidates=4)
        run_loop(context)
    content = document(context.state, context.journal, context.memory)
    content["candidates"][0]["change"] = content["learnt"][0]["change"] = content["learnt"][0]["reason"] = LONG
    content["candidates"][0]["reasons"] = [LONG, "<script>missing()</script>"]
    return write_report(content, root)[0]


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_the_loops_report_shows_its_plot_and_fits_the_screen(page, tmp_path, width):
    found, log = look(page, width, tmp_path)
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["external"] == []
    assert found["text"] > 2000
    (plot,) = found["images"]
    assert plot["complete"]
    assert plot["visible"]
    assert plot["natural"] > 0
    assert plot["left"] >= 0
    assert plot["right"] <= width
    assert plot["height"] > 40
