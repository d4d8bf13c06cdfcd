"""`nightly.yaml`: the packaged one is valid, and every defect has file, line, key and fix."""

from __future__ import annotations

import pytest

from specpilot_sglang.eval.nightly import night
from specpilot_sglang.eval.nightly.configfile import ConfigError, load_config, smoke_path

GOOD = """\
version: 1
name: mine
deployments:
  - name: small
load:
  suites: {gsm8k: 2}
"""


def write(tmp_path, text):
    path = tmp_path / "nightly.yaml"
    path.write_text(text)
    return path


def test_the_packaged_configuration_is_valid_and_small():
    config = load_config(smoke_path())
    assert night.blocks_of(config) == 6
    assert config.forcing is not None
    assert config.accuracy is not None


def test_defaults_fill_the_rest(tmp_path):
    config = load_config(write(tmp_path, GOOD))
    assert config.rounds == 3
    assert config.deployments[0].model == "smollm2"
    place = night.place_of(config, tmp_path)
    assert place.history == tmp_path / "history.sqlite"


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("name: mine", "name: My Name", "nightly.yaml:2:name", "not a valid name"),
        ("version: 1", "version: 2", "nightly.yaml:1:version", "not allowed"),
        ("name: mine", "nmae: mine", "nightly.yaml:2:nmae", "did you mean 'name'"),
        ("gsm8k: 2", "gsm9k: 2", "nightly.yaml", "unknown suite 'gsm9k'"),
        ("gsm8k: 2", "gsm8k: 0", "nightly.yaml:6:load.suites.gsm8k", "not allowed"),
        ("gsm8k: 2", "gsm8k: two", "nightly.yaml:6:load.suites.gsm8k", "expected a whole number"),
        ("  - name: small", "  - {name: small, dtype: int4}", "nightly.yaml:4:deployments[0].dtype", "not allowed"),
        ("  - name: small", "  - {name: small, overlai: x}", "deployments[0].overlai", "did you mean 'overlay'"),
        ("  - name: small", "  - name: small\n  - name: small", "nightly.yaml", "same name"),
        ("load:\n  suites: {gsm8k: 2}\n", "", "nightly.yaml:1:load", "load is missing"),
        ("gsm8k: 2}", "gsm8k: 2", "nightly.yaml", "not valid YAML"),
        ("name: mine", "name: mine\nname: yours", "nightly.yaml:3:name", "given twice"),
        ("name: mine", "name: mine\naccuracy: {suites: {mt-bench: 2}}", "nightly.yaml", "no scorer"),
        ("name: mine", "name: mine\nrounds: 0", "nightly.yaml:3:rounds", "not allowed"),
    ],
)
def test_defects_name_file_line_key_and_fix(tmp_path, cli, old, new, where, what):
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert where in raised.value.where
    assert what in raised.value.line()
    assert "Fix: " in raised.value.line()
    assert "overlay " not in raised.value.fix
    done = cli("nightly", "--config", path)
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1


def test_all_defects_are_told_at_once(tmp_path):
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, GOOD.replace("version: 1", "version: 3").replace("gsm8k: 2", "gsm8k: -1")))
    assert len(raised.value.problems) == 2
    assert "nightly.yaml:6:load.suites.gsm8k" in raised.value.line()


@pytest.mark.parametrize("text", ["", "- a\n", "just text\n"])
def test_files_that_are_no_mapping_are_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="--init"):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_an_error(cli, tmp_path):
    done = cli("nightly", "--config", tmp_path / "no.yaml")
    assert done.code == 2
    assert "no such file" in done.err


def test_init_writes_a_configuration_that_works_and_never_overwrites(cli, tmp_path):
    path = tmp_path / "nightly.yaml"
    assert cli("nightly", "--init", path).code == 0
    assert load_config(path).name == "smollm2-smoke"
    path.write_text(GOOD)
    again = cli("nightly", "--init", path)
    assert again.code == 2
    assert path.read_text() == GOOD


def test_a_model_that_is_not_there_is_found_before_any_server(cli, tmp_path):
    path = write(tmp_path, GOOD.replace("- name: small", f"- {{name: small, model: {tmp_path}, draft: {tmp_path}}}"))
    done = cli("nightly", "--config", path)
    assert done.code == 2
    assert "config.json" in done.err


def test_a_cost_table_that_is_not_there_is_found_before_any_server(cli, tmp_path):
    done = cli("nightly", "--config", write(tmp_path, GOOD.replace("- name: small", "- {name: small, cost: no.json}")))
    assert done.code == 2
    assert str(tmp_path / "no.json") in done.err


def test_rules_do_not_start_another_history_but_prompts_do(tmp_path):
    first = load_config(write(tmp_path, GOOD))
    rules = load_config(write(tmp_path, GOOD + "rules: {slower_than_stock: 0.05}\nrounds: 9\n"))
    prompts = load_config(write(tmp_path, GOOD.replace("gsm8k: 2", "gsm8k: 3")))
    small = first.deployments[0]
    assert first.measured(small) == rules.measured(small) != prompts.measured(small)


def test_the_example_configuration_is_valid(repository):
    config = load_config(repository / "docs" / "examples" / "nightly-qwen3.8-27b.yaml")
    assert night.blocks_of(config) == 12
