"""The memory: kept once, found by words, never an operator, seeded with facts."""

from __future__ import annotations

import pytest

from specpilot_sglang.loop.memory import Entry, Memory
from specpilot_sglang.loop.memory.store import packaged


@pytest.fixture
def memory(tmp_path):
    opened = Memory(tmp_path / "memory.sqlite", seeds=False)
    yield opened
    opened.close()


def entry(**values):
    base = {"deployment": "toy", "mechanism": "block-size", "hypothesis": "longer drafts pay", "change": "block 2 -> 8"}
    return Entry(**{**base, **values})


def test_the_same_change_is_kept_once_and_brought_up_to_date(memory):
    assert memory.add(entry(verdict="incomplete"))
    assert not memory.add(entry(change="Block  2 -> 8", verdict="accepted", measured=0.2, lower=0.1))
    ((kept, times),) = memory.all()
    assert (kept.verdict, kept.measured, times) == ("accepted", 0.2, 2)
    assert not memory.add(kept)
    assert memory.all()[0][1] == 2, "written again after a kill is no third time"
    assert [e.verdict for e in memory.search("block")] == ["accepted"]


def test_words_find_entries_of_the_deployment_and_of_all(memory):
    memory.add(entry())
    memory.add(entry(deployment="other", change="block 4 -> 8"))
    memory.add(entry(deployment="any", hypothesis="drafting blocks", change=""))
    assert [e.deployment for e in memory.search("drafts", "toy")] == ["any", "toy"], "by stem, shortest first"
    assert len(memory.search("drafts")) == 3
    assert memory.search("nothing-of-this") == memory.search("") == []


@pytest.mark.parametrize("query", ['"', "block AND (", "NEAR(", "mechanism:*", "a' OR 1=1 --"])
def test_no_query_is_a_command(memory, query):
    memory.add(entry())
    memory.search(query)


def test_the_packaged_facts_are_distinct_and_readable(tmp_path):
    facts = packaged()
    assert len({fact.key for fact in facts}) == len(facts) >= 15
    memory = Memory(tmp_path / "m.sqlite")
    Memory(tmp_path / "m.sqlite")
    assert [times for _, times in memory.all()] == [1] * len(facts), "seeding twice is seeding once"
    text = memory.markdown()
    assert "## verify" in text
    assert all(fact.hypothesis in text for fact in facts)
