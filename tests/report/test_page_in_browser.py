"""The reports in a real browser: no console error, every plot visible, nothing wider than the screen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "nightly"))
from nightly_fakes import Fake, Quiet, config

from specpilot_sglang.eval.nightly import night

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

# The page lies in a frame, for headless Chromium has no window narrower than 500 pixels.
FRAME = """<!doctype html><body style="margin:0"><iframe id="page" src="{page}" width="{width}" height="3000"></iframe>
<pre id="found"></pre><script>
document.getElementById("page").addEventListener("load", (event) => {{
  const inside = event.target.contentDocument, view = event.target.contentWindow;
  const images = [...inside.images].map((image) => {{
    const box = image.getBoundingClientRect();
    const shown = view.getComputedStyle(image);
    return {{left: box.left, right: box.right, height: box.height, natural: image.naturalWidth,
             complete: image.complete, visible: shown.visibility === "visible" && shown.display !== "none"}};
  }});
  const external = [...inside.querySelectorAll("[src],[href]")].map((e) => e.src || e.href)
    .filter((address) => !address.startsWith("data:"));
  document.getElementById("found").textContent = JSON.stringify(
    {{images, external, width: view.innerWidth, scroll: inside.scrollingElement.scrollWidth,
      text: inside.body.innerText.length}});
}});
</script></body>"""


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


def look(page: Path, width: int, folder: Path) -> tuple[dict, str]:
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(FRAME.format(page=page.name, width=width))
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
        *(f"--user-data-dir={folder}", f"--window-size={max(width, 500)},3200", "--virtual-time-budget=20000"),
        *("--enable-logging=stderr", "--dump-dom", frame.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found = re.search(r'<pre id="found">(\{.*?\})</pre>', done.stdout)
    assert found, done.stderr[-2000:]
    return json.loads(found[1].replace("&amp;", "&")), done.stderr


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
