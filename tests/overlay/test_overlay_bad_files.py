"""Every way an overlay file can be wrong: exit 2, one line with file:line:key and a fix."""

import os

import pytest

from specpilot_sglang.overlay import InvalidOverlayError, load_overlay

N = "name: x\n"
BOMB = N + "description: &a [x, x]\nserver_args: {a: *a, b: *a}\n"

# id, file content, expected line (0 = the whole file), expected key, part of what is said
BAD = [
    ("empty", "", 1, "", "empty"),
    ("only-comments", "# nothing\n", 1, "", "empty"),
    ("list-at-top", "- name: x\n", 1, "", "list at the top level"),
    ("text-at-top", "hello\n", 1, "", "text at the top level"),
    ("not-utf8", b"name: x\ndescription: caf\xe9\n", 2, "", "not UTF-8"),
    ("utf16", "name: x\n".encode("utf-16"), 1, "", "not UTF-8"),
    ("control-character", "name: x\x00\n", 0, "", "not valid YAML"),
    ("tab-indent", N + "weights:\n\tformat: w12\n", 3, "", "tab"),
    ("unclosed-quote", N + 'description: "abc\n', 0, "", "not valid YAML"),
    ("unclosed-brace", N + "weights: {format: w12\n", 0, "", "not valid YAML"),
    ("two-documents", N + "---\nname: y\n", 2, "", "not valid YAML"),
    ("merge-conflict", "<<<<<<< ours\nname: x\n=======\nname: y\n", 0, "", "not valid YAML"),
    ("duplicate-key", N + "weights:\n  format: w12\n  format: bf16\n", 4, "format", "twice"),
    ("duplicate-top-key", N + N, 2, "name", "twice"),
    ("alias-bomb", BOMB, 2, "", "aliases"),
    ("merge-key", "name: x\nweights: &w {format: w12}\ntree: {<<: *w}\n", 2, "", "aliases"),
    ("python-tag", N + "description: !!python/object/apply:os.system [id]\n", 2, "", "tags"),
    ("custom-tag", N + "description: !secret abc\n", 2, "", "tags"),
    ("too-deep", N + "description: " + "[" * 40 + "]" * 40 + "\n", 2, "", "nested"),
    ("too-large", N + "#" * 70_000, 0, "", "bytes"),
    ("absurd-number", N + "tree: {budget: " + "9" * 5000 + "}\n", 0, "", "not valid YAML"),
    ("missing-name", "description: no name\n", 1, "name", "missing"),
    ("bad-name", "name: My Overlay\n", 1, "name", "not a valid name"),
    ("path-as-name", "name: ../x\n", 1, "name", "not a valid name"),
    ("reserved-name", "name: auto\n", 1, "name", "reserved"),
    ("number-as-name", "name: 12\n", 1, "name", "expected text"),
    ("number-as-key", N + "12: a\n", 2, "12", "number"),
    ("unknown-key", N + "wieghts: {format: w12}\n", 2, "wieghts", "did you mean 'weights'"),
    ("unknown-inner-key", N + "tree:\n  kind: chain\n  bugdet: 3\n", 4, "tree.bugdet", "did you mean 'budget'"),
    ("null-section", N + "weights:\n", 2, "weights", "expected a mapping"),
    ("section-is-list", N + "tree: [chain]\n", 2, "tree", "expected a mapping"),
    ("bad-choice", N + "weights:\n  format: w21\n", 3, "weights.format", "did you mean 'w12'"),
    ("quoted-number", N + "weights: {format: w12, max_bits: '12'}\n", 2, "weights.max_bits", "expected a number"),
    ("nan", N + "weights: {format: w12, max_bits: .nan}\n", 2, "weights.max_bits", "finite"),
    ("too-small", N + "weights: {format: w12, max_bits: 8}\n", 2, "weights.max_bits", "greater than or equal to 12"),
    ("float-for-int", N + "verify: {levels: 1.5}\n", 2, "verify.levels", "whole number"),
    ("boolean-for-int", N + "verify: {levels: true}\n", 2, "verify.levels", "whole number"),
    ("yes-for-true", N + "lm_head: {certified_int8: yes}\n", 2, "lm_head.certified_int8", "true or false"),
    ("text-for-list", N + "weights: {format: w12, exclude: conv1d}\n", 2, "weights.exclude", "a list"),
    ("number-in-list", N + "weights:\n  format: w12\n  exclude:\n    - a\n    - 3\n", 6, "weights.exclude[1]", "text"),
    ("useless-max-bits", N + "weights: {max_bits: 12.5}\n", 2, "weights", "do nothing with format bf16"),
    ("tree-and-width", N + "tree: {budget: 8}\nserver_args: {speculative_num_draft_tokens: 8}\n", 1, "",
     "both set the width"),
    ("tree-without-budget", N + "tree: {kind: best-first}\n", 2, "tree", "needs a budget"),
    ("rounds-without-levels", N + "verify: {cheap_rounds: 1}\n", 2, "verify", "contradict"),
    ("broken-regex", N + "match:\n  gpu: H100(\n", 3, "match.gpu", "regular expression"),
    ("broken-specifier", N + "match:\n  sglang: 0.5.23\n", 3, "match.sglang", "version specifier"),
    ("threshold", N + "server_args:\n  speculative_accept_threshold_single: 0.5\n", 3,
     "server_args.speculative_accept_threshold_single", "answers change"),
    ("other-model", N + "server_args: {model_path: /m}\n", 2, "server_args.model_path", "allowlist"),
    ("quantization", N + "server_args: {quantization: fp8}\n", 2, "server_args.quantization", "weights.format"),
    ("api-key", N + "server_args: {api_key: abc}\n", 2, "server_args.api_key", "secrets"),
    ("port", N + "server_args: {port: 1}\n", 2, "server_args.port", "machine"),
    ("remote-code", N + "server_args: {trust_remote_code: true}\n", 2, "server_args.trust_remote_code", "allowlist"),
    ("kv-dtype", N + "server_args: {kv_cache_dtype: fp8_e4m3}\n", 2, "server_args.kv_cache_dtype", "answers change"),
    ("typo-argument", N + "server_args: {page_sise: 1}\n", 2, "server_args.page_sise", "did you mean 'page_size'"),
    ("argument-type", N + "server_args: {page_size: big}\n", 2, "server_args.page_size", "whole number"),
    ("argument-range", N + "server_args: {mem_fraction_static: 1.5}\n", 2, "server_args.mem_fraction_static", "than 1"),
    ("patch-not-a-mapping", N + "patches: [a.py]\n", 2, "patches[0]", "expected a mapping"),
    ("patch-outside", N + "patches:\n  - {file: ../a.py, function: f}\n", 3, "patches[0].file", "not a valid file"),
    ("patch-absolute", N + "patches:\n  - {file: /a.py, function: f}\n", 3, "patches[0].file", "not a valid file"),
    ("patch-missing", N + "patches:\n  - {file: a.py, function: f}\n", 3, "patches[0].file", "not in the overlay"),
    ("patch-no-function", N + "patches:\n  - file: a.py\n", 3, "patches[0].function", "missing"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "line", "key", "says"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_validate_names_file_line_key_and_fix(cli, make_overlay, content, line, key, says):
    file = make_overlay(content) / "overlay.yaml"
    result = cli("overlay", "validate", file)
    assert result.code == 2
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    place = lines[0].removeprefix("specpilot: error: ")
    assert place.startswith(f"{file}:{line}:" if line else f"{file}:")
    assert not key or f":{key}: " in place
    assert says in place
    assert "Fix: " in place
    assert "Traceback" not in result.out + result.err


@pytest.mark.parametrize("command", [("show",), ("diff", "template"), ("validate", "--json")])
def test_every_command_refuses_a_bad_file(cli, make_overlay, command):
    folder = make_overlay("name: x\nwieghts: {}\n")
    result = cli("overlay", *command, folder)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert ":2:wieghts: " in result.err


def test_validate_shows_all_problems_and_stderr_the_first(cli, make_overlay):
    folder = make_overlay("name: X\ntree: {kind: vine}\nserver_args: {port: 1, page_size: 0}\n")
    result = cli("overlay", "validate", folder)
    assert result.code == 2
    keys = [line.split(": ")[0].rsplit(":", 1)[1] for line in result.out.splitlines()]
    assert keys == ["name", "tree.kind", "server_args.page_size", "server_args.port"]
    assert ":1:name: " in result.err
    assert "and 3 more" in result.err


def test_secrets_are_not_echoed(cli, make_overlay):
    result = cli("overlay", "validate", make_overlay("name: x\nserver_args: {api_key: hunter2}\n"))
    assert result.code == 2
    assert "hunter2" not in result.out + result.err


def test_library_raises_overlay_error_with_every_problem(make_overlay):
    folder = make_overlay("name: x\ntree: 1\nverify: 2\n")
    with pytest.raises(InvalidOverlayError) as caught:
        load_overlay(str(folder))
    assert [(it.line, it.key) for it in caught.value.problems] == [(2, "tree"), (3, "verify")]


@pytest.mark.parametrize("target", ["missing", "missing/overlay.yaml", "missing.yaml"])
def test_missing_path(cli, tmp_path, target):
    result = cli("overlay", "validate", tmp_path / target)
    assert result.code == 2
    assert "no such file" in result.err
    assert "Fix: " in result.err


def test_fifo_does_not_hang(cli, tmp_path):
    os.mkfifo(tmp_path / "overlay.yaml")
    result = cli("overlay", "validate", tmp_path / "overlay.yaml")
    assert result.code == 2
    assert "not a regular file" in result.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(cli, make_overlay):
    folder = make_overlay()
    (folder / "overlay.yaml").chmod(0)
    result = cli("overlay", "validate", folder)
    assert result.code == 2
    assert "permissions" in result.err
