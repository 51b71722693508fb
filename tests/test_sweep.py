from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import CountingEmbedder, PlainDatabase
from hermes_patch import layout, store, sweep
from hermes_patch.config import Settings
from hermes_patch.indexer import Indexer

ROLES = ("user", "assistant")


class Swept:
    """A database whose messages were all embedded, some of them by hand afterwards changed."""

    def __init__(self, path: Path) -> None:
        self.database = PlainDatabase(path)
        self.conn = self.database.conn
        self.embedder = CountingEmbedder()
        self.indexer = Indexer(self.database, self.embedder, Settings())
        self.ids = [self.database.message(f"message about topic {n}") for n in range(30)]
        self.index()

    def index(self, **bounds: object) -> None:
        while not self.indexer.index_batch(**bounds).done:  # type: ignore[arg-type]
            pass

    def delete_without_foreign_keys(self, *ids: int) -> None:
        other = sqlite3.connect(self.database.path, isolation_level=None)
        for msg_id in ids:
            other.execute("DELETE FROM messages WHERE id = ?", (msg_id,))
        other.close()

    def edit(self, msg_id: int, text: str) -> None:
        self.conn.execute("UPDATE messages SET content = ? WHERE id = ?", (text, msg_id))


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[Swept]:
    made = Swept(tmp_path / "state.db")
    yield made
    made.conn.close()


def test_nothing_is_found_where_everything_fits(swept: Swept) -> None:
    assert not sweep.everything(swept.conn)
    assert not sweep.recent(swept.conn, 10)
    assert sweep.orphans(swept.conn) == 0


def test_edited_and_deleted_messages_are_found(swept: Swept) -> None:
    swept.edit(swept.ids[3], "something else")
    swept.delete_without_foreign_keys(swept.ids[5], swept.ids[6])
    found = sweep.everything(swept.conn)
    assert found.edited == {swept.ids[3]}
    assert found.gone == {swept.ids[5], swept.ids[6]}
    assert sweep.orphans(swept.conn) == 2


def test_a_recent_look_is_bounded_to_the_newest(swept: Swept) -> None:
    swept.edit(swept.ids[0], "an old one")
    swept.edit(swept.ids[-1], "a new one")
    assert sweep.recent(swept.conn, 5).edited == {swept.ids[-1]}


@pytest.mark.parametrize("limit", [1, 7, 30, 31])
def test_steps_see_everything_once(swept: Swept, limit: int) -> None:
    for msg_id in swept.ids[::4]:
        swept.edit(msg_id, f"edited {msg_id}")
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        edited, after = sweep.stale(swept.conn, after, limit)
        found += edited
    assert found == swept.ids[::4]


def test_mending_drops_orphans_and_makes_edits_pending_beyond_a_kill(swept: Swept) -> None:
    swept.edit(swept.ids[3], "something else")
    swept.delete_without_foreign_keys(swept.ids[5])
    sweep.mend(swept.conn, sweep.everything(swept.conn))
    assert sweep.orphans(swept.conn) == 0
    assert not sweep.everything(swept.conn)
    assert set(swept.database.vectors()) == set(swept.ids) - {swept.ids[3], swept.ids[5]}
    shape = layout.read(swept.conn)
    above_all = swept.ids[-1]
    assert not store.pending(swept.conn, shape, 1, ROLES, above=above_all)
    assert [m.msg_id for m in store.pending(swept.conn, shape, 1, ROLES, edited=True)] == [
        swept.ids[3]
    ]
    swept.index(edited=True)
    assert swept.ids[3] in swept.database.vectors()
    assert swept.conn.execute("SELECT count(*) FROM embedding_skips").fetchone() == (0,)


def test_an_edit_to_nothing_leaves_no_vector_and_nothing_pending(swept: Swept) -> None:
    swept.edit(swept.ids[3], "   ")
    sweep.mend(swept.conn, sweep.everything(swept.conn))
    swept.index(edited=True)
    assert swept.ids[3] not in swept.database.vectors()
    assert not sweep.everything(swept.conn)


def test_a_blank_message_that_gets_a_text_is_embedded(swept: Swept) -> None:
    blank = swept.database.message("  ")
    swept.index()
    swept.edit(blank, "now it says something")
    sweep.mend(swept.conn, sweep.everything(swept.conn))
    swept.index(edited=True)
    assert blank in swept.database.vectors()


def test_a_message_waiting_after_an_edit_counts_as_embeddable(swept: Swept) -> None:
    swept.edit(swept.ids[3], "something else")
    sweep.mend(swept.conn, sweep.everything(swept.conn))
    counted = store.coverage(swept.conn, layout.read(swept.conn), 1, ROLES)
    assert (counted.embeddable, counted.embedded) == (30, 29)


def test_a_message_deleted_between_look_and_mend_does_no_harm(swept: Swept) -> None:
    swept.edit(swept.ids[3], "something else")
    found = sweep.everything(swept.conn)
    swept.conn.execute("DELETE FROM messages WHERE id = ?", (swept.ids[3],))
    sweep.mend(swept.conn, found)
    assert not sweep.everything(swept.conn)


def test_what_was_embedded_anew_between_look_and_mend_is_not_paid_for_twice(swept: Swept) -> None:
    swept.edit(swept.ids[3], "something else")
    found = sweep.everything(swept.conn)
    sweep.mend(swept.conn, found)
    swept.index(edited=True)
    sent = len(swept.embedder.sent)
    sweep.mend(swept.conn, found)
    swept.index(edited=True)
    assert swept.ids[3] in swept.database.vectors() and len(swept.embedder.sent) == sent


def test_an_id_that_was_given_to_another_message_meanwhile_is_embedded_anew(swept: Swept) -> None:
    swept.delete_without_foreign_keys(swept.ids[3])
    found = sweep.everything(swept.conn)
    swept.conn.execute(
        "INSERT INTO messages (id, session_id, role, content, timestamp) VALUES (?,?,?,?,?)",
        (swept.ids[3], "s1", "user", "another message under the same id", 2.0),
    )
    sweep.mend(swept.conn, found)
    swept.index(edited=True)
    assert swept.embedder.sent[-1] == "another message under the same id"
    assert not sweep.everything(swept.conn)


def test_what_is_dropped_is_pending_although_it_fits(swept: Swept) -> None:
    sweep.drop(swept.conn, swept.ids[:2])
    assert not {*swept.ids[:2]} & {*swept.database.vectors()}
    swept.index(edited=True)
    assert {*swept.ids[:2]} <= {*swept.database.vectors()}


def test_batches_hold_everything_in_parts_of_bounded_size() -> None:
    found = sweep.Finding(edited=set(range(25)), gone=set(range(100, 107)))
    parts = list(sweep.batches(found, size=10))
    assert max(len(part.edited) + len(part.gone) for part in parts) == 10
    assert set().union(*(part.edited for part in parts)) == found.edited
    assert set().union(*(part.gone for part in parts)) == found.gone
