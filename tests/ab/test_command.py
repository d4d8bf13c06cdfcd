"""`specpilot aa` and `specpilot ab`: settings with line numbers, reports with provenance, exit codes, resumption."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from samples import load

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.eval.ab import config, flow, host
from specpilot_sglang.eval.ab.config import load_settings
from specpilot_sglang.eval.ab.noise import Noise
from specpilot_sglang.eval.load.guards import RunRefusedError
from specpilot_sglang.eval.suites import Item

YAML = """\
model: MODEL
draft: DRAFT
incumbent: {name: stock, preset: stock, args: [--enable-metrics]}
candidate: {name: faster, preset: specpilot, overlay: smollm2-135m-dflash-cpu, env: {OMP_NUM_THREADS: "2"}}
load: {suites: [gsm8k], requests: 3, max_new_tokens: 16, concurrency: 1}
seed: 7
"""


class FakeServer:
    command = ("server",)
    start_s = 1.0
    was_killed = False

    def __init__(self, arm, log) -> None:
        self.arm = arm

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """The commands on fake servers; `lab.speeds` are tok/s by arm, `lab.refuse` an arm that is refused."""

    class Lab:
        def __init__(self):
            self.speeds = {"stock": 100.0, "again": 100.0, "faster": 110.0}
            self.refuse, self.count = "", 0
            self.config, self.out, self.noise = tmp_path / "ab.yaml", tmp_path / "out", tmp_path / "noise"

        def send(self, server, workload, folder):
            self.count += 1
            name = server.arm.name
            if name == self.refuse:
                raise RunRefusedError("before", ["simulation in the environment: X=1"], where=name)
            attested = {"overlay": {"name": "o", "sha256": "ab" * 32}, "mode": "overlay"} if name == "faster" else None
            speed = self.speeds[name] * (1 + 0.001 * (self.count % 3))
            load([i.id for i in workload.items], speed, attestation_after=attested).save(folder / "load.json")

    made = Lab()
    made.config.write_text(YAML)
    monkeypatch.setattr(
        config.suites, "load", lambda name: [Item(f"{name}/{n}", name, f"prompt {n}") for n in range(60)]
    )
    monkeypatch.setattr(host, "host_class", lambda: "toy host")
    monkeypatch.setattr(flow, "host_class", lambda: "toy host")
    monkeypatch.setattr(flow.Experiment, "__init__", faked(flow.Experiment.__init__, made))
    return made


def faked(original, lab):
    def init(self, *args, **kwargs):
        original(self, *args, **{"launch": FakeServer, "load": lab.send, **kwargs})

    return init


class Links(HTMLParser):
    """Collects addresses that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("data:")]


def test_noise_is_measured_kept_and_used(cli, lab):
    done = cli("aa", "--config", lab.config, "--out", lab.out / "aa", "--blocks", "8", "--noise-dir", lab.noise)
    assert (done.code, "noise 0.0" in done.out) == (0, True), done.err
    (file,) = lab.noise.iterdir()
    assert file.name == "toy-host.json"
    settings = load_settings(lab.config)
    regime = host.regime(settings.workload(settings.pool(), 0, 1))
    noise = host.stored_noise("toy host", regime, lab.noise)
    assert len(noise.log_ratios) == 8
    host.store(noise, {}, lab.noise)
    assert len(host.stored_noise("toy host", regime, lab.noise).log_ratios) == 16
    with pytest.raises(SpecPilotError, match="no A/A noise is known"):
        host.stored_noise("toy host", "another regime", lab.noise)

    run = cli("ab", "run", "--config", lab.config, "--out", lab.out / "ab", "--noise", lab.out / "aa" / "report.json")
    assert run.code == 0, run.err
    document = json.loads((lab.out / "ab" / "report.json").read_text())
    assert document["decision"]["action"] == "accept"


@pytest.fixture
def known(lab):
    path = lab.out / "noise.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    spread = (0.02, -0.02) * 4
    path.write_text(json.dumps(Noise((0.001, -0.001) * 4, {"ttft_p99_s": spread, "itl_p99_s": spread}).to_json()))
    return path


def test_accepted_candidate_exits_0_with_reports_and_provenance(cli, lab, known):
    out = lab.out / "ab"
    done = cli("ab", "run", "--config", lab.config, "--out", out, "--noise", known, "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document == json.loads((out / "report.json").read_text())
    assert (document["accepted"], document["decision"]["blocks"], document["beside"]["bca_usable"]) == (True, 8, False)
    about = document["provenance"]
    assert about["overlay"]["sha256"] == "ab" * 32
    assert {"command", "git", "versions", "gpus", "seed", "cpu"} <= set(about)
    assert document["identity"]["candidate"]["env"] == {"OMP_NUM_THREADS": "2"}
    page = (out / "report.html").read_text()
    links = Links()
    links.feed(page)
    assert links.found == []
    assert "data:image/svg+xml" in page
    assert "ACCEPTED" in page
    summary = (out / "report.md").read_text()
    assert re.search(r"\| 7 \| .*stock.* \| 1\d\d\.\d\d \| 1\d\d\.\d\d \| \+\d+\.\d\d% \|", summary)

    loads = lab.count
    assert cli("ab", "run", "--config", lab.config, "--out", out, "--noise", known).code == 0
    assert cli("ab", "report", out).code == 0
    assert lab.count == loads  # nothing is measured again


def test_slower_candidate_exits_1_after_few_blocks(cli, lab, known):
    lab.speeds = {"stock": 100.0, "faster": 90.0}
    done = cli("ab", "run", "--config", lab.config, "--out", lab.out / "ab", "--noise", known)
    assert done.code == 1
    assert "REJECTED" in done.out
    assert lab.count == 4


def test_refused_candidate_exits_1_with_its_reason(cli, lab, known):
    lab.refuse = "faster"
    done = cli("ab", "run", "--config", lab.config, "--out", lab.out / "ab", "--noise", known, "--json")
    assert done.code == 1
    assert json.loads(done.out)["failures"] == ["simulation in the environment: X=1"]
    assert "simulation in the environment" in (lab.out / "ab" / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("seed: 7", "sead: 7"), "ab.yaml:6:sead"),
        (("requests: 3", "requests: none"), "ab.yaml:5:load.requests"),
        (("preset: stock", "preset: fastest"), "ab.yaml:3:incumbent.preset"),
        (("seed: 7", "rule: {looks: [4], alphas: [0.05]}"), "ab.yaml:6:rule"),
        (("seed: 7", "rule: {alphas: [0.05, 0.05]}"), "ab.yaml:6:rule"),
        (("model: MODEL\n", ""), "ab.yaml:1:model"),
    ],
)
def test_wrong_settings_exit_2_with_file_line_and_key(cli, lab, change, line):
    lab.config.write_text(YAML.replace(*change))
    done = cli("ab", "run", "--config", lab.config, "--out", lab.out)
    assert done.code == 2
    assert line in done.err


def test_unknown_noise_exits_2_and_says_how_to_measure_it(cli, lab, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path / "cache"))
    done = cli("ab", "run", "--config", lab.config, "--out", lab.out)
    assert done.code == 2
    assert "specpilot aa" in done.err
    assert lab.count == 0


def test_damaged_noise_file_is_reported_and_kept(lab):
    lab.noise.mkdir()
    (lab.noise / "toy-host.json").write_text("{}")
    with pytest.raises(SpecPilotError, match="not a noise file"):
        host.stored_noise("toy host", "r", lab.noise)
    with pytest.raises(SpecPilotError, match="not a noise file"):
        host.store(Noise((0.0,) * 8, host="toy host"), {}, lab.noise)
    assert (lab.noise / "toy-host.json").read_text() == "{}"


def test_packaged_example_is_valid_and_shows_the_defaults(repository):
    settings = load_settings(repository / "eval" / "ab" / "example.yaml")
    assert settings.rule == config.RuleSettings()
    assert settings.candidate is not None
    assert settings.arm(settings.candidate).plugin
    assert not settings.arm(settings.incumbent).plugin


def test_experiments_of_this_project_are_valid_and_name_the_small_pair(repository, monkeypatch, tmp_path):
    monkeypatch.setattr("specpilot_sglang.assets.prepare_smollm2", lambda: tmp_path)
    files = sorted((repository / "tests" / "ab" / "experiments").glob("*.yaml"))
    assert len(files) == 3
    for file in files:
        arm = load_settings(file).arm(load_settings(file).incumbent)
        assert str(tmp_path) in arm.args
        assert arm.overlay is None or (repository / arm.overlay / "overlay.yaml").is_file()
