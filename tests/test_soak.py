"""The short form of tests/soak.py, and that its audit notices what it is there to notice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hermes_patch.backfill import HomeDatabase

import soak_audit
from databases import HostDatabase
from hermes_patch import layout, query, relaxed, units, vectors
from hermes_patch import text as texts
from hermes_patch.config import Settings
from soak import percentiles
from soak_load import MOODS, mood_at
from soak_server import DIMS, vector
from targets import Installed

SHORT = ("--seconds", "8", "--kill-every", "3", "--history", "300", "--lease-seconds", "2")
WAIT = 10.0
LONG = "The nightly backup to the second disk stopped with an error. " * 60


@pytest.mark.timeout(240)
def test_a_short_soak_harms_no_host_call_and_leaves_a_sound_database(
    hermes_019: Installed, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("soak.py")), *SHORT, "--json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=220)
    assert done.stdout.startswith("{"), done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["ok"] and done.returncode == 0, done.stdout
    patched, traffic = result["patched"], result["traffic"]
    assert traffic["kills"]["appender"] == 2 and traffic["kills"]["back-filler"] >= 1
    assert patched["calls"].keys() == result["control"]["calls"].keys()
    assert min(patched["calls"].values()) > 1 and patched["failures"] == {}
    assert patched["before_settle"]["embedded"] > 0
    assert {"fine", "slow", "429"} <= traffic["requests"].keys()
    assert all(check["looked_at"] for check in result["checks"] if "vector" in check["name"])
    with capsys.disabled():
        sides = (result["control"]["ms"], patched["ms"])
        p50, p99 = ([side["append_message"][what] for side in sides] for what in ("p50", "p99"))
        print(f"\nappend ms, unpatched and patched: p50 {p50}, p99 {p99}")


def test_the_server_has_every_mood_in_every_turn() -> None:
    seen = [mood_at(now / 10, 20.0) for now in range(200)]
    assert list(dict.fromkeys(seen)) == [mood for mood, _ in MOODS]
    assert mood_at(20.5, 20.0) == "fine"


def test_percentiles_are_taken_from_the_values_themselves() -> None:
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p99": 3.0, "max": 3.0}
    assert percentiles([5.0]) == {"p50": 5.0, "p99": 5.0, "max": 5.0}


class Sound:
    """A database in which everything is as it must be, to be damaged by a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = HostDatabase(path)
        self.settings = Settings()
        self.written: dict[int, str] = {}
        _add_a_space(self)
        self.ids = [self.say(text) for text in ("the disk is full", "磁盘清理已经完成", LONG, "ok")]

    def say(self, text: str) -> int:
        msg_id = self.db.say("s", text)
        self.written[msg_id] = hashlib.sha256(text.encode()).hexdigest()
        clean = texts.message_text(text)
        worth = texts.is_embeddable(clean)
        for n, one in enumerate(texts.chunks(clean, self.settings.max_tokens) if worth else []):
            self.run(
                "INSERT INTO message_embeddings (msg_id, session_id, embedding, text_hash, dims, "
                "created_at, space_id, chunk, chunk_start, chunk_end) VALUES (?,?,?,?,?,0,1,?,?,?)",
                *(msg_id, "s", vectors.to_blob(vector(one.text)), texts.text_hash(clean), DIMS),
                *(n, one.start, one.end),
            )
        return msg_id

    def wrong(self) -> list[str]:
        checks = soak_audit.database(self.path, self.settings, self.written, vector)
        return [check.name for check in checks if not check.ok]

    def run(self, sql: str, *params: Any) -> None:
        self.db.conn.execute("PRAGMA foreign_keys = OFF")
        self.db.conn.execute(sql, params)


@pytest.fixture
def sound(tmp_path: Path) -> Sound:
    return Sound(tmp_path / "state.db")


def test_the_audit_finds_nothing_in_a_sound_database(sound: Sound) -> None:
    assert len(texts.chunks(LONG, sound.settings.max_tokens)) > 1
    assert sound.wrong() == []


def _lose_a_vector(sound: Sound) -> None:
    sound.run("DELETE FROM message_embeddings WHERE msg_id = ?", sound.ids[0])


def _lose_a_chunk(sound: Sound) -> None:
    sound.run("DELETE FROM message_embeddings WHERE msg_id = ? AND chunk = 1", sound.ids[2])


def _embed_a_formality(sound: Sound) -> None:
    sound.run(
        "UPDATE message_embeddings SET msg_id = ? WHERE msg_id = ?", sound.ids[3], sound.ids[0]
    )


def _edit_a_text(sound: Sound) -> None:
    text = "the disk is not so full any more"
    sound.run("UPDATE messages SET content = ? WHERE id = ?", text, sound.ids[0])


def _swap_two_vectors(sound: Sound) -> None:
    sound.run(
        "UPDATE message_embeddings SET embedding = "
        "(SELECT embedding FROM message_embeddings WHERE msg_id = ?) WHERE msg_id = ?",
        *sound.ids[:2],
    )


def _lose_a_message(sound: Sound) -> None:
    sound.run("DELETE FROM messages WHERE id = ?", sound.ids[0])


def _leave_a_skip(sound: Sound) -> None:
    sound.run("INSERT INTO embedding_skips VALUES (999, 0, 'hash', 'nothing to embed', 1, NULL)")


def _leave_a_lease(sound: Sound) -> None:
    sound.run("INSERT INTO embedding_lease (id, owner, expires_at) VALUES (1, 'killed', 0)")


def _add_a_space(sound: Sound) -> None:
    sound.run(
        "INSERT INTO embedding_spaces (settings_key, provider, model, dims, created_at) "
        "VALUES ('other', 'fake', 'fake', 3, 0)"
    )


def _break_a_constraint(sound: Sound) -> None:
    sound.run("PRAGMA writable_schema = ON")
    sound.run(
        "UPDATE sqlite_master SET sql = replace(sql, 'tool_name TEXT', 'tool_name TEXT NOT NULL') "
        "WHERE name = 'messages'"
    )


VECTORLESS = "every embeddable message has vectors"
DAMAGE: list[tuple[Callable[[Sound], None], str]] = [
    (_lose_a_vector, VECTORLESS),
    (_lose_a_chunk, "as many and of the same place as its chunks"),
    (_embed_a_formality, "no other message has any"),
    (_edit_a_text, "every vector's hash and session are its message's"),
    (_swap_two_vectors, "every vector is that of its chunk's text"),
    (_lose_a_message, "every message reported as written is there"),
    (_lose_a_message, "no orphans in message_embeddings"),
    (_leave_a_skip, "no orphans in embedding_skips"),
    (_leave_a_lease, "no lease is left"),
    (_add_a_space, "one space"),
    (_break_a_constraint, "integrity_check says ok"),
]


@pytest.mark.parametrize(("damage", "name"), DAMAGE)
def test_the_audit_names_what_was_damaged(
    sound: Sound, damage: Callable[[Sound], None], name: str
) -> None:
    damage(sound)
    assert name in sound.wrong()


class LastOneOut:
    """A SessionDB whose ``close`` truncates the log, as that of Hermes 0.19 does."""

    def __init__(self, path: Path) -> None:
        self._conn = sqlite3.connect(path, isolation_level=None, timeout=WAIT)

    def _execute_write(self, change: Callable[[sqlite3.Connection], Any]) -> Any:
        self._conn.execute("BEGIN IMMEDIATE")
        result = change(self._conn)
        self._conn.commit()
        return result

    def close(self) -> None:
        self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._conn.close()


def test_a_write_of_the_backfill_keeps_no_writer_waiting_for_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    HostDatabase(path).say("s", "the disk is full")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM messages").fetchone()
    database = HomeDatabase(lambda: LastOneOut(path), path)
    started = time.monotonic()
    database.write(lambda conn: conn.execute("UPDATE sessions SET title = 'new'").rowcount)
    waited = time.monotonic() - started
    reader.close()
    assert waited < WAIT / 2, "closing waited for the reader, with the write lock held"


def test_a_search_keeps_no_writer_waiting_while_it_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = HostDatabase(tmp_path / "state.db")
    for n in range(5):
        database.say("s", f"the docker container fails, case {n}")
    database.conn.execute("PRAGMA journal_mode = DELETE")  # there, a reader stops every commit
    writer = sqlite3.connect(database.path, isolation_level=None, timeout=0)
    counts, seen = units.Scorer.counts, []

    def counting(scorer: units.Scorer, folded: str) -> tuple[list[int], int]:
        writer.execute("BEGIN EXCLUSIVE")
        writer.rollback()
        seen.append(folded)
        return counts(scorer, folded)

    reader = database.reader()
    shape, parsed = layout.read(reader), query.parse("why does the docker container fail")
    scorer, found = relaxed.scorer_of(reader, shape, parsed)
    monkeypatch.setattr(units.Scorer, "counts", counting)
    relaxed.search(reader, shape, parsed, layout.Filters(), scorer, found, relaxed.Gate(0.0, 0.0))
    reader.close()
    assert len(seen) == 5
