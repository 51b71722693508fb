"""Hermes's own memory is mirrored, and reconciling changes all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hermes_patch.errors import EmbedderError, EmbedderUnavailable, HostError
from hermes_patch.memory import mirror, reconcile
from hermes_patch.memory.core import Memory
from memory_rig import opened

OLD = "the staging database of the shop listens on port 5433"
NEW = "the staging database of the shop listens on port 6000"


def live(memory: Memory) -> list[str]:
    return sorted(note.text for note in memory.listed(None))


def told(memory: Memory, *given: Any, facts: Mapping[str, Sequence[str]] | None = None) -> None:
    write = mirror.of(*given)
    assert write is not None
    mirror.enqueue(memory, [write])
    mirror.drain(memory, lambda: facts)


def test_add_replace_and_remove_are_carried_over(home: Path) -> None:
    memory, _ = opened(home)
    told(memory, "add", "memory", OLD, {})
    assert live(memory) == [OLD] and memory.listed(None)[0].canonical
    told(memory, "replace", "memory", NEW, {"old_text": "5433"})
    assert live(memory) == [NEW]
    told(memory, "remove", "memory", "", {"previous_content": NEW})
    assert live(memory) == []


def test_without_the_old_text_the_entry_that_is_gone_from_the_file_is_replaced(home: Path) -> None:
    memory, _ = opened(home)
    other = "the user has a bicycle"
    for text in (OLD, other):
        told(memory, "add", "memory", text, None)
    told(memory, "replace", "memory", NEW, None, facts={"memory": [other, NEW]})
    assert live(memory) == sorted([NEW, other])


def test_what_is_demoted_is_kept(home: Path) -> None:
    memory, _ = opened(home)
    told(memory, "add", "memory", OLD, {})
    told(memory, "demote", "memory", OLD, {})
    assert live(memory) == [OLD] and not memory.listed(None)[0].canonical


def test_a_server_that_is_down_during_a_replace_loses_nothing(home: Path) -> None:
    memory, words = opened(home)
    told(memory, "add", "memory", OLD, {})
    words.down = True
    with pytest.raises(EmbedderUnavailable):
        told(memory, "replace", "memory", NEW, {"previous_content": OLD})
    assert OLD in live(memory) and memory.stats()["waiting_writes"] == 1
    words.down = False
    memory.refresh()
    assert mirror.drain(memory, lambda: None) == 1
    assert live(memory) == [NEW] and memory.stats()["waiting_writes"] == 0


def test_facts_of_both_files_are_embedded_at_once_and_once(home: Path) -> None:
    memory, words = opened(home)
    memory.vectoriser.space(0.0)
    sent = len(words.requests)
    facts = {"memory": [OLD, "the user has a bicycle"], "user": [OLD]}
    assert reconcile.run(memory, facts)["added"] == 2
    assert words.sent.count(OLD) == 1 and len([b for b in words.requests[sent:] if OLD in b]) == 1
    assert reconcile.run(memory, facts)["added"] == 0


def test_a_current_fact_supersedes_what_it_made_obsolete_and_a_lost_one_is_kept(home: Path) -> None:
    memory, _ = opened(home, duplicate_threshold=0.8, ambiguous_threshold=0.7)
    memory.add(OLD)
    assert reconcile.run(memory, {"memory": [NEW]})["superseded"] == 1
    assert live(memory) == [NEW]
    assert reconcile.run(memory, {"memory": []})["demoted"] == 1
    assert live(memory) == [NEW]


def test_a_failure_half_way_changes_nothing(home: Path) -> None:
    memory, words = opened(home, duplicate_threshold=0.99, ambiguous_threshold=0.7)
    memory.add(OLD)
    before = memory.listed(None, tombstones=True)
    words.down = True
    with pytest.raises(EmbedderError):
        reconcile.run(memory, {"memory": [NEW]})
    words.down = False

    def broken(older: str, newer: str) -> bool:
        raise HostError("no judge")

    with pytest.raises(HostError):
        reconcile.run(memory, {"memory": [NEW]}, broken)
    assert memory.listed(None, tombstones=True) == before


def test_ambiguous_pairs_are_proposed_and_superseded_on_the_judges_word_alone(home: Path) -> None:
    memory, _ = opened(home, duplicate_threshold=0.99, ambiguous_threshold=0.7)
    memory.add(OLD)
    memory.add(NEW)
    proposed = reconcile.run(memory, None)["proposals"]
    assert [(p["older"]["text"], p["newer"]["text"]) for p in proposed] == [(OLD, NEW)]
    assert live(memory) == sorted([OLD, NEW])
    other, _ = opened(home, duplicate_threshold=0.99, ambiguous_threshold=0.7)
    other.engine.write(lambda conn: conn.execute("DELETE FROM embedding_state") and None)
    assert reconcile.run(other, None, lambda older, newer: True)["superseded"] == 1
    assert live(memory) == [NEW]
