"""The reports in a real browser: no console error, every plot visible, nothing wider than the screen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from browser import look, needs_browser

sys.path.insert(0, str(Path(__file__).parent.parent / "nightly"))
from nightly_fakes import Fake, Quiet, config

from specpilot_sglang.eval.nightly import night


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("night")
    place = night.Place(folder / "history.sqlite", folder / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(night, "code_name", lambda: "abc")
        write, night.report.write = night.report.write, lambda document, folder: {}
        try:
            for seed in range(5):
                night.run(config(), place, Quiet(), runner=Fake(seed=seed))
        finally:
            night.report.write = write
        load = {"suites": {"gsm8k": 2}, "max_new_tokens": 64, "concurrency": [1, 4]}
        runner = Fake(mismatches={"stock": 2, "specpilot": 2}, speed={"specpilot": 0.7})
        small = [{"name": "small", "cost": "h200-qwen3.8-27b-dflash2"}]
        return night.run(config(load=load, deployments=small), place, Quiet(), runner=runner).paths["html"]


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_the_nightly_report_shows_every_plot(page, tmp_path, width):
    found, log = look(page, width, tmp_path)
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["external"] == []
    assert len(found["images"]) == 6
    for image in found["images"]:
        assert image["complete"]
        assert image["visible"]
        assert image["natural"] > 0
        assert image["left"] >= 0
        assert image["right"] <= width
        assert image["right"] - image["left"] >= min(300, width - 100)
        assert image["height"] > 100


@needs_browser
def test_a_broken_page_is_seen_to_be_broken(page, tmp_path):
    broken = page.with_name("broken.html")
    text = page.read_text().replace("data:image/svg+xml;base64,", "data:image/svg+xml;base64,AAAA", 1)
    broken.write_text(text.replace("</body>", '<script>missing()</script><div style="width:2000px">x</div></body>'))
    found, log = look(broken, 400, tmp_path)
    assert any("CONSOLE" in line for line in log.splitlines())
    assert found["scroll"] > 400
    assert any(image["natural"] == 0 for image in found["images"])
