"""`specpilot overlay`: exit codes and output of the commands that succeed."""

import json

import jsonschema
import pytest
from ruamel.yaml import YAML

from specpilot_sglang.overlay import overlay_folders, overlay_json_schema


def test_list_shows_every_overlay(cli):
    result = cli("overlay", "list")
    assert result.code == 0
    assert all(folder.name in result.out for folder in overlay_folders())
    assert "only by name" in result.out


def test_list_json(cli):
    rows = json.loads(cli("overlay", "list", "--json").out)
    cpu = next(row for row in rows if row["name"] == "smollm2-135m-dflash-cpu")
    assert cpu["mechanisms"] == ["w12"]
    assert cpu["match"]["gpu"] == "cpu"
    assert len(cpu["sha256"]) == 64


def test_list_shows_good_ones_beside_a_broken_one_and_fails(cli, make_overlay, monkeypatch, tmp_path):
    make_overlay("name: [\n", name="lib/broken")
    monkeypatch.setenv("SPECPILOT_OVERLAY_PATH", str(tmp_path / "lib"))
    result = cli("overlay", "list")
    assert result.code == 2
    assert "template" in result.out
    assert "broken" in result.out
    assert len(result.err.splitlines()) == 1


def test_show(cli):
    result = cli("overlay", "show", "template")
    assert result.code == 0
    assert "sha256: " in result.out
    assert "# A commented overlay to copy" in result.out
    data = json.loads(cli("overlay", "show", "template", "--json").out)
    assert data["overlay"]["tree"]["kind"] == "chain"


def test_validate_many(cli, make_overlay):
    assert cli("overlay", "validate", "template", "smollm2-135m-dflash-cpu").code == 0
    result = cli("overlay", "validate", "--json", "template", make_overlay("name: 3\n"))
    assert result.code == 2
    good, bad = json.loads(result.out)
    assert good["valid"]
    assert not bad["valid"]
    assert bad["problems"][0]["key"] == "name"
    assert bad["problems"][0]["line"] == 1


def test_diff_same_and_different(cli, make_overlay):
    a = make_overlay("name: x\nserver_args: {page_size: 1}\n", name="a")
    b = make_overlay("name: x\nserver_args: {page_size: 16}\nweights: {format: w12}\n", name="b")
    assert cli("overlay", "diff", a, a).code == 0
    result = cli("overlay", "diff", a, b, "--json")
    assert result.code == 1
    changes = json.loads(result.out)["changes"]
    assert changes == [
        {"key": "weights.format", "a": "bf16", "b": "w12"},
        {"key": "server_args.page_size", "a": 1, "b": 16},
    ]
    assert "server_args.page_size" in cli("overlay", "diff", a, b).out


def test_diff_sees_other_patch_code_under_equal_settings(cli, make_overlay):
    text = "name: x\npatches: [{file: p.py, function: f}]\n"
    a = make_overlay(text, name="a", p="def f(): return []\n")
    b = make_overlay(text, name="b", p="def f(): return [1]\n")
    result = cli("overlay", "diff", a, b)
    assert result.code == 1
    assert "files" in result.out


@pytest.fixture(scope="module")
def checker():
    schema = overlay_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_schema_command_prints_the_schema(cli):
    assert json.loads(cli("overlay", "schema").out) == overlay_json_schema()


@pytest.mark.parametrize("folder", overlay_folders(), ids=lambda folder: folder.name)
def test_schema_accepts_the_shipped_overlays(checker, folder):
    checker.validate(YAML(typ="safe").load(folder / "overlay.yaml"))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"name": "X Y"},
        {"name": "x", "wieghts": {}},
        {"name": "x", "server_args": {"speculative_accept_threshold_single": 0.5}},
        {"name": "x", "tree": {"kind": "vine"}},
        {"name": "x", "patches": [{"file": "../a.py", "function": "f"}]},
    ],
)
def test_schema_refuses_what_the_loader_refuses(checker, data):
    assert not checker.is_valid(data)
