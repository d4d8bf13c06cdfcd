"""Stands in Claude Code's place: asks the model twice, plays a recording back, and makes its edits."""

import json
import os
import sys
import urllib.request
from pathlib import Path

RECORDING = "__RECORDING__"

assert sys.argv[1] == "-p", sys.argv
assert "stream-json" in sys.argv
assert json.loads(Path("/in/settings.json").read_text())["hooks"]
assert json.loads(Path("/task/task.json").read_text())["overlay"] == "toy"

for _ in range(2):
    request = urllib.request.Request(
        os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", b"{}", {"x-api-key": os.environ["ANTHROPIC_API_KEY"]}
    )
    urllib.request.urlopen(request).read()
for line in RECORDING.splitlines():
    row = json.loads(line)
    for block in row.get("message", {}).get("content", []):
        if block.get("name") == "Edit":
            path = Path(block["input"]["file_path"])
            text = path.read_text().replace(block["input"]["old_string"], block["input"]["new_string"])
            path.write_text(text)
        if block.get("name") == "Write":
            Path(block["input"]["file_path"]).write_text(block["input"]["content"])
    print(line, flush=True)
Path("/task/kernels/toy/k.cu").write_text("// new\n")
