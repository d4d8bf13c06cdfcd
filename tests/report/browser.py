"""Looks at a page in headless Chromium: its images, its width, what it loads from outside, and the console."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

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
