"""The controller on fakes: what is promoted, what is signed, what is refused, what a changed controller may not do."""

from __future__ import annotations

import json

import pytest
from loop_fakes import context_of, final_state, rejudge
from loop_trials import SPEED, block_of

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.agents.running import Outcome
from specpilot_sglang.loop.agents.transcript import Transcript
from specpilot_sglang.loop.controller import history, incumbent, pins
from specpilot_sglang.loop.controller.deployment import arms
from specpilot_sglang.loop.controller.loop import controlling, current, run_loop
from specpilot_sglang.loop.controller.promote import roll_back
from specpilot_sglang.loop.controller.settings import LoopSettings, load_loop
from specpilot_sglang.loop.jail.spec import JailResult
from specpilot_sglang.loop.jail.usage import Spent
from specpilot_sglang.loop.judge.verdict import Status, Verdict, failed


@pytest.fixture(autouse=True)
def _light_pins(monkeypatch):
    """The judge's pins read the whole RECORD of SGLang; here only what the loop adds is looked at."""
    monkeypatch.setattr(pins.judge_pins, "take", lambda root=None: {})


@pytest.fixture
def context(tmp_path):
    made = context_of(tmp_path)
    yield made
    made.executor.close()
    made.journal.close()


def test_a_loop_climbs_to_the_best_and_then_finds_nothing(context):
    summary = run_loop(context)
    assert block_of(context.state.published / "toy") == 8 == max(SPEED)
    assert summary.generation == summary.promoted == summary.statuses["accepted"] == 4
    assert context.journal.check() == []
    rows = final_state(context)["rows"]
    assert {"refused", "nothing"} <= {row[3] for row in rows}
    assert run_loop(context) == summary, "a finished loop stays as it is"
    ran = (context.state.root / "ran.jsonl").read_text().splitlines()
    assert len(ran) == 4


def test_an_overlay_at_its_best_promotes_nothing(tmp_path):
    (tmp_path / "source" / "toy").mkdir(parents=True)
    text = "name: toy\nmatch:\n  gpu: cpu\nserver_args:\n  speculative_num_draft_tokens: 8\n"
    (tmp_path / "source" / "toy" / "overlay.yaml").write_text(text)
    context = context_of(tmp_path, candidates=10)
    summary = run_loop(context)
    assert (summary.generation, summary.promoted) == (0, 0)
    assert summary.reason == "no direction is left"


def test_refused_patches_and_notes_that_speak_to_readers_are_in_the_journal(context):
    run_loop(context)
    assert "conftest.py" in context.journal.events("gate_refused")[0].data["reasons"][0]
    assert context.journal.events("note_refused")[0].data["reason"] == "the note addresses its readers"
    assert all("ignore" not in entry.hypothesis for entry, _ in context.memory.all())


def test_neither_agents_nor_memory_hear_the_judges_reasons(tmp_path):
    seen = []
    made = context_of(tmp_path, candidates=6)
    real = made.parts.agent

    def listening(settings, task, base, folder):
        seen.append(json.dumps(task.to_json()))
        return real(settings, task, base, folder)

    def no_gain(folder):
        return Verdict.of([failed("gain", Status.NO_GAIN, ["SEALED-TEXT"])]), rejudge(folder)[1]

    object.__setattr__(made.parts, "agent", listening)
    object.__setattr__(made.parts, "rejudge", no_gain)
    run_loop(made)
    assert '"status": "no_gain"' in seen[-1]
    assert "SEALED" not in "".join(seen) + "".join(e.model_dump_json() for e, _ in made.memory.all())
    assert any("SEALED-TEXT" in str(j.result["reasons"]) for j in made.journal.jobs("trial")), "the journal has them"
    assert made.journal.events("disagreement"), "the job had said accepted"


def test_a_trial_without_a_decision_is_no_promotion_and_is_not_run_again(tmp_path):
    made = context_of(tmp_path, candidates=2)

    def unclear(folder):
        return Verdict.of([failed("token forcing", Status.INCOMPLETE, ["too few positions"])]), rejudge(folder)[1]

    object.__setattr__(made.parts, "rejudge", unclear)
    summary = run_loop(made)
    assert (summary.statuses.get("incomplete"), summary.promoted) == (1, 0)
    assert made.journal.events("incomplete")[0].data["reasons"] == ["token forcing: too few positions"]
    assert sum(job.retries for job in made.journal.jobs()) == 0


def test_memory_off_gives_agents_nothing(tmp_path):
    seen = {}
    for on in (True, False):
        made = context_of(tmp_path / str(on), memory=on, candidates=6)
        real = made.parts.agent

        def listening(settings, task, base, folder, real=real, on=on):
            seen.setdefault(on, []).append(len(task.memory))
            return real(settings, task, base, folder)

        object.__setattr__(made.parts, "agent", listening)
        run_loop(made)
    assert max(seen[True]) > 0 == max(seen[False])


def test_evidence_is_signed_and_every_change_shows(context):
    run_loop(context)
    folder = current(context).folder
    assert incumbent.problems(context.state, folder) == []
    evidence = json.loads((folder / "evidence.json").read_text())
    assert (evidence["verdict"], evidence["gain"]["blocks"]) == ("accepted", 8)
    (folder / "overlay.yaml").write_text((folder / "overlay.yaml").read_text() + "# x\n")
    assert incumbent.problems(context.state, folder) == ["overlay.yaml is not the file that was judged"]
    evidence["gain"]["lower"] = 9.0
    (folder / "evidence.json").write_text(json.dumps(evidence))
    assert "signature" in incumbent.problems(context.state, folder)[0]


def test_a_rollback_publishes_the_former_incumbent_and_refuses_a_changed_one(context):
    run_loop(context)
    assert roll_back(context, None) == 3
    assert block_of(context.state.published / "toy") == 6
    assert history.generation(context.journal) == 3
    (incumbent.load_generation(context.state, 2).folder / "extra.md").write_text("x")
    with pytest.raises(SpecPilotError, match=r"extra.md is not the file that was judged"):
        roll_back(context, 2)
    with pytest.raises(SpecPilotError, match="is the incumbent"):
        roll_back(context, 3)


def test_a_controller_that_was_changed_gives_no_verdict(context, monkeypatch):
    real = pins.take

    def changed(root=None):
        return {**real(root), "loop/gate/check.py": "0"}

    calls = []

    def later(root=None):
        calls.append(1)
        return real(root) if len(calls) == 1 else changed(root)

    monkeypatch.setattr(pins, "take", later)
    with pytest.raises(SpecPilotError, match=r"loop/gate/check.py was changed"):
        run_loop(context)
    assert [j for j in context.journal.jobs("trial") if j.result.get("status")] == []


def test_there_is_one_controller_and_one_loop_a_folder(context, tmp_path):
    run_loop(context)
    with controlling(context), pytest.raises(SpecPilotError, match="another controller"):
        run_loop(context_of(tmp_path))
    with pytest.raises(SpecPilotError, match="another loop: seed differ"):
        run_loop(context_of(tmp_path, seed=7))
    assert run_loop(context_of(tmp_path, candidates=9)).proposals == 9, "more candidates is the same loop"


def test_a_lost_trial_is_tried_again_and_given_up_in_the_end(tmp_path):
    made = context_of(tmp_path, infra_retries=2)
    object.__setattr__(made.parts, "trial_entry", "loop_trials:vanish")
    with pytest.raises(SpecPilotError, match=r"given up after 2 failures: .*lost"):
        run_loop(made)
    assert [j.retries for j in made.journal.jobs("trial")] == [2]
    # What was wrong was repaired: starting again goes on, with attempts that no executor has seen before.
    object.__setattr__(made.parts, "trial_entry", "loop_trials:trial")
    seen = []
    submit = made.executor.submit
    made.executor.submit = lambda job: (seen.append(job.attempt), submit(job))[1]
    assert run_loop(made).promoted == 4
    assert seen == [3, 1, 1, 1]
    assert made.journal.check() == []


def test_an_agent_that_always_kills_itself_does_not_end_the_loop(tmp_path):
    made = context_of(tmp_path, infra_retries=3, candidates=2)
    runs = []

    def suicidal(*given):
        runs.append(1)
        return Outcome(JailResult("killed", None), Transcript({}), Spent())

    object.__setattr__(made.parts, "agent", suicidal)
    assert run_loop(made).statuses == {"nothing": 2}
    assert len(runs) == 6
    assert [job.retries for job in made.journal.jobs("propose")] == [2, 2]


def test_settings_name_file_line_and_key(tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text("candidates: 3\nagent:\n  preset: nobody\n")
    with pytest.raises(SpecPilotError, match=r"loop.yaml:3:agent.preset"):
        load_loop(path)
    path.write_text("candidates: 3\nagent:\n  preset: command\n  command: [python, a.py]\n")
    assert load_loop(path).agent.command == ("python", "a.py")


def test_servers_under_trial_count_every_verify_step(tmp_path):
    # SGLang's average of accepted tokens is renewed every 40 steps: a short load of a good candidate may not reach it.
    made = arms(LoopSettings(model="m", draft="d"), tmp_path / "one", tmp_path / "two")
    assert all("--enable-metrics" in arm.args for arm in made)
