"""Every door into ``messages``, on real releases of Hermes: the right vectors, none sent twice.

One Hermes process a release goes through all doors, each in sessions of its own. A door is a
generator here: it does something and yields, all doors in turn, then the worker comes to rest
and each goes on with its assertions. What a door raises is raised by its test.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fakes import CountingEmbedder, PlainDatabase
from hermes_patch import deploy, layout, store, vectors
from hermes_patch import text as texts
from hermes_patch.config import Settings
from hermes_patch.embedders.base import PROBE_TEXT, Item
from hermes_patch.indexer import Indexer
from hermes_patch.stash import session_vectors
from stub_server import StubServer, vector
from targets import Installed

SCRIPTS = Path(__file__).parent / "scripts"
MAX_TOKENS = 100
ROLES = ("user", "assistant")
SETTLE_SECONDS = 30.0
OK = "ok"

HISTORY = """
import json, os, sys
from pathlib import Path
from hermes_state import SessionDB
db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
for session, texts in json.loads(sys.argv[1]).items():
    db.create_session(session, source="cli")
    for text in texts:
        db.append_message(session, "user", text)
db.close()
"""
# What another program does: plain sqlite3, no foreign keys, no extension, no site-packages.
RAW = """
import json, sqlite3, sys
conn = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
conn.execute("PRAGMA foreign_keys = OFF")
conn.execute("BEGIN IMMEDIATE")
for statement, params in json.loads(sys.argv[2]):
    conn.execute(statement, params)
conn.execute("COMMIT")
conn.close()
"""
BACKFILL = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"

Door = Generator[None, None, None]
direction = cache(vector)


def say(door: str, *numbers: int) -> list[str]:
    """Return texts whose words are in no other text, but for the last one."""
    kinds = ("alpha", "beta", "gamma", "delta")
    return [" ".join([*(f"{door}{n}{kind}" for kind in kinds), "talk"]) for n in numbers]


def long(door: str) -> str:
    """Return a text of several chunks."""
    return ". ".join(f"{door}long{n} word{door}{n}" for n in range(80)) + "."


class MissingDoorError(Exception):
    """This Hermes has no such door."""


@dataclass(frozen=True)
class Message:
    """A row of ``messages``; ``visible`` as the host's own search sees it."""

    id: int
    session: str
    role: str
    text: str
    visible: bool

    @property
    def embeddable(self) -> bool:
        return self.role in ROLES and texts.is_embeddable(self.text)


@dataclass(frozen=True)
class Snapshot:
    """What the database holds at one moment."""

    messages: dict[int, Message]
    vectors: dict[int, list[tuple[str, int, int, bytes]]]
    skips: dict[int, str]

    def complaints(self, owners: dict[int, str]) -> list[tuple[str, str]]:
        """Return (session, what is wrong); ``owners`` names the session of deleted messages."""
        found = []
        for msg_id, chunks in self.vectors.items():
            message = self.messages.get(msg_id)
            if message is None:
                found.append((owners[msg_id], f"orphan: vectors of {msg_id}"))
            elif any(chunk[0] != texts.text_hash(message.text) for chunk in chunks):
                found.append((message.session, f"stale: vectors of {msg_id} {message.text[:30]!r}"))
            else:
                found += _wrong(message, chunks)
        for msg_id, text_hash in self.skips.items():
            message = self.messages.get(msg_id)
            if message is None:
                found.append((owners[msg_id], f"orphan: skip of {msg_id}"))
            elif text_hash == store.EDITED:  # a mark: pending, or waiting until it is visible
                if message.visible:
                    found.append((message.session, f"pending: {msg_id} {message.text[:30]!r}"))
            elif text_hash != texts.text_hash(message.text):
                found.append((message.session, f"stale: skip of {msg_id} {message.text[:30]!r}"))
        for message in self.messages.values():
            if message.visible and message.embeddable and message.id not in self.vectors:
                found.append((message.session, f"missing: {message.id} {message.text[:30]!r}"))
        return found


def _wrong(message: Message, chunks: list[tuple[str, int, int, bytes]]) -> Iterator[Any]:
    if not message.embeddable:
        yield message.session, f"needless: vectors of {message.id} {message.text[:30]!r}"
        return
    expected = texts.chunks(message.text, MAX_TOKENS)
    if [(c.start, c.end) for c in expected] != [(start, end) for _, start, end, _ in chunks]:
        yield message.session, f"incomplete: vectors of {message.id} {message.text[:30]!r}"
        return
    for chunk, (_, _, _, blob) in zip(expected, chunks, strict=True):
        if vectors.cosine(vectors.unpack(blob), direction(chunk.text)) < 0.999:
            yield message.session, f"wrong: vector of {message.id} {message.text[:30]!r}"


def read(path: Path) -> Snapshot:
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20)
    try:
        conn.execute("BEGIN")
        visible = " AND ".join(["1", *layout.read(conn).visibility()])
        rows = conn.execute(
            f"SELECT id, session_id, role, content, {visible} FROM messages m ORDER BY id"
        )
        messages = {r[0]: Message(*r[:3], texts.message_text(r[3]), bool(r[4])) for r in rows}
        spaces = conn.execute("SELECT count(*) FROM embedding_spaces").fetchone()[0]
        assert spaces == 1
        found: dict[int, list[tuple[str, int, int, bytes]]] = {}
        for msg_id, *chunk in conn.execute(
            "SELECT msg_id, text_hash, chunk_start, chunk_end, embedding "
            "FROM message_embeddings ORDER BY msg_id, chunk"
        ):
            found.setdefault(msg_id, []).append(tuple(chunk))
        skips = dict(conn.execute("SELECT msg_id, text_hash FROM embedding_skips"))
        return Snapshot(messages, found, skips)
    finally:
        conn.close()


class House:
    """A home with the plugin, one Hermes process in it, and the server that counts."""

    def __init__(self, hermes: Installed, home: Path, server: StubServer) -> None:
        self.hermes = hermes
        self.home = home
        self.server = server
        self.turn = 0
        self.closed = False
        self.complaints: list[tuple[str, str]] = []
        self._owners: dict[int, str] = {}
        self._queries: set[str] = set()
        self._patience = SETTLE_SECONDS
        self._process = hermes.popen(SCRIPTS / "doors.py", home=home)

    # -- doing ---------------------------------------------------------------------------

    def do(self, door: str, **arguments: Any) -> Any:
        """Go through a door of the Hermes process; raises MissingDoorError."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": door, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self.home.parent / "doors.log").read_text()[-3000:]
        answer = json.loads(line)
        if "missing" in answer:
            raise MissingDoorError(answer["missing"])
        return answer["result"]

    def raw(self, *statements: tuple[str, Sequence[Any]]) -> None:
        """Run statements in a process that has neither Hermes nor us."""
        command = [sys.executable, "-I", "-S", "-c", RAW, str(self.home / "state.db")]
        subprocess.run([*command, json.dumps(statements)], check=True, timeout=60)

    def settle(self) -> None:
        """Wait until nothing is left to do, or for a while."""
        deadline = time.monotonic() + self._patience
        while True:
            if self.closed:
                self.backfill()
            else:
                assert self.do("idle")
            self.inspect()
            if not self.complaints or self.closed:
                return
            if time.monotonic() > deadline:
                self._patience = 5.0  # whatever is broken need not cost as much again
                return
            time.sleep(0.3)
            self.do("touch")

    def inspect(self) -> None:
        now = read(self.home / "state.db")
        self._owners |= {message.id: message.session for message in now.messages.values()}
        self.complaints = now.complaints(self._owners)

    def backfill(self) -> Any:
        arguments = ("backfill", "--hermes-home", str(self.home), "--json")
        path = str(self.home / "plugins" / "hermes_patch")
        done = self.hermes.run(BACKFILL, *arguments, home=self.home, env={"PYTHONPATH": path})
        return json.loads(done.stdout)

    def close(self) -> None:
        if not self.closed:
            self._process.communicate(timeout=60)
            assert self._process.returncode == 0, (self.home.parent / "doors.log").read_text()
            self.closed = True

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    # -- looking -------------------------------------------------------------------------

    def rows(self, session: str) -> list[Message]:
        messages = read(self.home / "state.db").messages.values()
        return [message for message in messages if message.session == session]

    def ids(self, session: str) -> list[int]:
        return [message.id for message in self.rows(session)]

    def embedded(self, session: str) -> list[str]:
        """Return the texts of a session's visible messages that have vectors, in order."""
        now = read(self.home / "state.db")
        return [
            m.text
            for m in now.messages.values()
            if m.session == session and m.visible and m.id in now.vectors
        ]

    def clean(self, *sessions: str) -> None:
        """Nothing is missing, stale, needless or orphaned in these sessions."""
        assert [what for session, what in self.complaints if session in sessions] == []

    def sent(self) -> Counter[str]:
        """Return how often each text went to the server, queries and the probe left out."""
        sent = Counter(self.server.texts)
        for text in (PROBE_TEXT, *self._queries):
            del sent[text]
        return sent

    def paid(self, *wanted: str) -> None:
        """Each of these texts was sent, and once."""
        sent = self.sent()
        chunks = [chunk.text for text in wanted for chunk in texts.chunks(text, MAX_TOKENS)]
        assert {chunk: sent[chunk] for chunk in chunks} == dict.fromkeys(chunks, 1)

    def unpaid(self, *unwanted: str) -> None:
        """None of these texts was sent."""
        sent = self.sent()
        assert [text for text in unwanted if sent[text]] == []

    def look(self, text: str, tool: bool = True) -> dict[str, Any]:
        """Ask for a text: the tool, the host's search, and the vectors alone."""
        query = text.rpartition(" ")[0]
        self._queries.add(query)
        return self.do("look", query=query, vector=direction(text), ask_tool=tool)  # type: ignore[no-any-return]

    def serves(self, *wanted: str) -> None:
        """Each text is found in all its visible copies, by words and by its vector alone."""
        now = read(self.home / "state.db").messages.values()
        for text in wanted:
            copies = {m.id for m in now if m.text == text and m.visible}
            found = self.look(text, tool=text == wanted[0])
            assert copies and set(found["rows"]) == set(found["nearest"]) == copies, text
            assert found["results"] or text != wanted[0], text

    def denies(self, *unwanted: str) -> None:
        """No search gives any of these texts."""
        for text in unwanted:
            found = self.look(text)
            assert found["rows"] == found["nearest"] == [], text
            assert text.split()[0] not in json.dumps(found["results"]), text


# -- the doors; each works in sessions that begin with its own word --------------------------


def appended_messages_have_vectors_but_for_formalities_and_tool_output(house: House) -> Door:
    said, (output,) = say("append", 1, 2, 3), say("append", 9)
    house.do("append", session="append", texts=[*said, OK, "  ", long("append")])
    house.do("append_as", session="append", role="tool", text=output)
    yield
    house.clean("append")
    assert house.embedded("append") == [*said, long("append")]
    house.paid(*said, long("append"))
    house.unpaid(OK, output)
    house.serves(*said)


def a_batch_is_embedded_like_single_messages(house: House) -> Door:
    first, second, part, output = say("batch", 1, 2, 3, 4)
    parts = [
        {"type": "text", "text": part},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    rows: list[dict[str, Any]] = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": second},
        {"role": "tool", "content": output, "tool_call_id": "1"},
        {"role": "user", "content": OK},
        {"role": "user", "content": parts},
    ]
    house.do("batch", session="batch", messages=rows)
    yield
    house.clean("batch")
    assert house.embedded("batch") == [first, second, part]
    house.paid(first, second, part)
    house.unpaid(output, OK)
    house.serves(first, second, part)


def a_live_message_flushed_again_with_other_words_is_embedded_anew(house: House) -> Door:
    before, after = say("reflush", 1, 2), say("reflush", 1, 3)
    house.do("reflush", session="reflush", texts=before)
    yield
    assert house.embedded("reflush") == before
    house.do("reflush", session="reflush", texts=after)
    assert len(house.rows("reflush")) == 2
    house.denies(before[1])
    yield
    house.clean("reflush")
    assert house.embedded("reflush") == after
    house.paid(*before, *after)
    house.serves(*after)


def a_replaced_transcript_of_200_with_one_text_changed_costs_one_text(house: House) -> Door:
    before = [long("replace"), *say("replace", *range(1, 200))]
    (changed,) = say("replace", 1000)
    after = [*before[:100], changed, *before[101:]]
    house.do("append", session="replace", texts=before)
    yield
    house.clean("replace")
    sent = sum(house.sent().values())
    old = set(house.ids("replace"))
    house.do("replace", session="replace", texts=after)
    assert not old & set(house.ids("replace"))
    yield
    house.clean("replace")
    assert house.embedded("replace") == after
    house.paid(changed, *after)
    assert sum(text.startswith("replace") for text in house.server.texts[sent:]) == 1
    house.denies(before[100])
    house.serves(changed, after[101])


def a_replaced_transcript_whose_dropped_turns_are_archived_shows_the_new_ones(
    house: House,
) -> Door:
    before, after = say("retry", *range(6)), say("retry", 0, 1, 2, 10, 11)
    house.do("append", session="retry", texts=before)
    yield
    house.do("replace", session="retry", texts=after, archive_dropped=True)
    house.denies(before[4])
    yield
    house.clean("retry")
    assert house.embedded("retry") == after
    house.paid(*before, *after)
    house.denies(*before[3:])
    house.serves(after[0], after[4])


def a_cleared_and_appended_transcript_costs_what_changed(house: House) -> Door:
    before, after = say("clear", *range(20)), say("clear", *range(10), 30, *range(11, 20))
    house.do("append", session="clear", texts=before)
    yield
    house.do("clear", session="clear", texts=after)
    yield
    house.clean("clear")
    assert house.embedded("clear") == after
    house.paid(*before, *after)
    house.denies(before[10])
    house.serves(after[10], after[0])


def a_cleared_session_leaves_nothing(house: House) -> Door:
    said = say("emptied", 1, 2)
    house.do("append", session="emptied", texts=[*said, OK])
    yield
    house.serves(*said)
    house.do("clear", session="emptied", texts=[])
    house.denies(*said)
    yield
    house.clean("emptied")
    assert house.rows("emptied") == []
    house.denies(*said)


def three_compactions_in_place_in_a_row_send_the_summaries_only(house: House) -> Door:
    said, summaries = say("compact", *range(12)), say("compact", 101, 102, 103, 104)
    house.do("append", session="compact", texts=said)
    yield
    for summary in summaries[:3]:
        house.do("compact", session="compact", texts=[summary, *said[8:]], tail=4)
    yield
    house.clean("compact")
    assert {*said, *summaries[:3]} == set(house.embedded("compact"))
    house.paid(*said, *summaries[:3])
    house.serves(said[0], said[11], summaries[0], summaries[2])
    live = [summaries[2], *said[8:11], summaries[3]]
    house.do("replace", session="compact", texts=live, active_only=True)
    yield
    house.clean("compact")
    assert {*said[:11], *summaries} <= set(house.embedded("compact"))
    house.paid(*said, *summaries)
    house.serves(said[0], said[8], summaries[3])


def a_rotating_compaction_sends_the_summary_only(house: House) -> Door:
    said, (summary, meanwhile) = say("rotate", *range(6)), say("rotate", 101, 102)
    live = [said[0], summary, *said[4:]]
    house.do("append", session="rotate", texts=said)
    yield
    house.do("rotate", session="rotate", child="rotated", texts=live, meanwhile=meanwhile)
    yield
    house.clean("rotate", "rotated")
    assert house.embedded("rotate") == [*said, meanwhile]
    assert house.embedded("rotated") in (live, [*live, meanwhile])
    house.paid(*said, summary, meanwhile)
    house.serves(said[0], said[2], summary, meanwhile)


def a_branch_sends_nothing(house: House) -> Door:
    said = [*say("branch", *range(8)), long("branch")]
    house.do("append", session="branch", texts=said)
    yield
    sent = house.sent()
    house.do("branch", session="branch", child="branched")
    yield
    house.clean("branch", "branched")
    assert house.embedded("branch") == house.embedded("branched") == said
    assert [text for text in house.sent() - sent if "branch" in text] == []
    house.paid(*said)
    house.serves(said[0])


def imported_sessions_are_embedded_and_what_is_known_is_copied(house: House) -> Door:
    known, (new, archived, rewound) = say("import", 1, 2), say("import", 3, 4, 5)
    house.do("append", session="import", texts=known)
    yield
    user: dict[str, Any] = {"role": "user", "active": 1, "compacted": 0}
    rows = [{**user, "content": text} for text in (*known, new)]
    rows.append({**user, "content": archived, "active": 0, "compacted": 1})
    rows.append({**user, "content": rewound, "active": 0, "compacted": 0})
    child = {"id": "imported2", "source": "cli", "parent_session_id": "imported"}
    given = [{"id": "imported", "source": "cli", "messages": rows}]
    answer = house.do("bring_in", sessions=[*given, {**child, "messages": rows[:3]}])
    assert answer["imported"] == 2, answer
    yield
    house.clean("import", "imported", "imported2")
    visible = {message.text for message in house.rows("imported") if message.visible}
    assert {*known, new, archived} <= visible
    assert house.embedded("imported2") == [*known, new]
    house.paid(*known, new, archived)
    house.serves(new, archived)
    if rewound not in visible:
        house.unpaid(rewound)
        house.denies(rewound)


def a_delegations_delivery_is_embedded_unless_it_is_hidden(house: House) -> Door:
    shown, hidden = say("deliver", 1, 2)
    for _ in range(2):
        house.do("deliver", session="deliver", text=shown, metadata={"delegation_id": "1"})
    quiet = {"delegation_id": "2", "presentation_suppressed": True}
    house.do("deliver", session="deliver", text=hidden, metadata=quiet)
    yield
    house.clean("deliver")
    assert len(house.rows("deliver")) == 2
    assert house.embedded("deliver") == [shown]
    house.paid(shown)
    house.unpaid(hidden)
    house.serves(shown)
    house.denies(hidden)


def a_rewind_hides_and_a_restore_shows_again_without_sending(house: House) -> Door:
    said = say("rewind", *range(6))
    house.do("append", session="rewind", texts=said)
    yield
    target = house.ids("rewind")[2]
    house.do("rewind", session="rewind", message=target)
    house.denies(said[2])
    yield
    house.clean("rewind")
    assert house.embedded("rewind") == said[:2]
    house.denies(*said[2:])
    house.serves(said[1])
    house.do("restore", session="rewind", message=target)
    yield
    house.clean("rewind")
    assert house.embedded("rewind") == said
    house.paid(*said)
    house.serves(*said)


def a_message_that_becomes_active_later_is_embedded_then(house: House) -> Door:
    (said,) = say("late", 1)
    message = house.do("born_inactive", session="late", text=said)
    while house.turn < ALONE:
        yield
    assert house.embedded("late") == []
    house.unpaid(said)
    house.denies(said)
    time.sleep(1.0)  # longer than the worker waits between two looks, so that none is due
    house.do("restore", session="late", message=message)
    yield
    house.clean("late")
    assert house.embedded("late") == [said]
    house.paid(said)
    house.serves(said)


def edited_messages_are_embedded_anew(house: House) -> Door:
    said, (new, grown, known) = say("edit", 1, 2, 3), say("edit", 11, 12, 13)
    # Users only, since that is whose content the newest Hermes changes.
    for text in (*said, OK, known):
        house.do("append", session="edit", texts=[text])
    yield
    first, second, third, ok, _ = house.ids("edit")
    for message, text in ((first, new), (second, OK), (third, known), (ok, grown)):
        house.do("edit", session="edit", message=message, text=text)
    house.denies(*said)
    yield
    house.clean("edit")
    assert house.embedded("edit") == [new, known, grown, known]
    house.paid(*said, new, grown, known)
    house.denies(*said)
    house.serves(new, grown, known)


def edited_history_is_embedded_anew(house: House) -> Door:
    before, (after, grown) = say("mended", 1, 2), say("mended", 11, 12)
    house.clean("mended")
    while house.turn < QUIET:
        yield
    first, _, ok = house.ids("mended")
    house.do("edit", session="mended", message=first, text=after)
    house.do("edit", session="mended", message=ok, text=grown)
    house.denies(before[0])
    yield
    house.clean("mended")
    assert house.embedded("mended") == [after, before[1], grown]
    house.paid(*before, after, grown)
    house.denies(before[0])
    house.serves(after, before[1], grown)


def replaced_history_is_copied(house: House) -> Door:
    said = say("renewed", *range(5))
    try:
        house.do("replace", session="renewed", texts=said)
    except MissingDoorError:
        house.do("clear", session="renewed", texts=said)
    yield
    house.clean("renewed")
    assert house.embedded("renewed") == said
    house.paid(*said)
    house.serves(said[0])


def a_deleted_session_leaves_nothing_and_takes_its_delegates_along(house: House) -> Door:
    said, delegated = say("delete", 1, 2), say("delegate", 1)
    house.do("append", session="delete", texts=[*said, OK])
    house.do("delegate", session="delete", child="delegate", texts=delegated)
    yield
    house.serves(*said, *delegated)
    assert house.do("delete", session="delete")
    gone = [*said, *(() if house.rows("delegate") else delegated)]
    house.denies(*gone)
    yield
    house.clean("delete", "delegate")
    assert house.rows("delete") == []
    house.denies(*gone)


def deleted_sessions_leave_nothing(house: House) -> Door:
    said, kept = say("many", 1, 2), say("many", 3)
    for session, text in zip(("many1", "many2", "many3"), (*said, *kept), strict=True):
        house.do("append", session=session, texts=[text, OK])
    yield
    house.serves(*said, *kept)
    house.do("delete_many", sessions=["many1", "many2"])
    house.denies(*said)
    yield
    house.clean("many1", "many2", "many3")
    assert house.rows("many1") == house.rows("many2") == []
    house.denies(*said)
    house.serves(*kept)


def pruned_sessions_leave_nothing(house: House) -> Door:
    said = say("prune", 1, 2)
    house.do("append", session="prune", texts=[*said, OK], source="pruning")
    yield
    house.serves(*said)
    assert house.do("prune", session="prune", source="pruning") == 1
    house.denies(*said)
    yield
    house.clean("prune")
    assert house.rows("prune") == []
    house.denies(*said)


INSERT = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
UPDATE = "UPDATE messages SET content = ? WHERE id = ?"
DELETE = "DELETE FROM messages WHERE id = ?"


def what_another_program_writes_is_found(house: House) -> Door:
    said, (new, edited, swapped) = say("raw", *range(6)), say("raw", 11, 12, 13)
    house.do("append", session="raw", texts=[*said, OK])
    yield
    ids, now = house.ids("raw"), time.time()
    house.serves(said[0], said[1], said[2])
    house.raw(
        (INSERT, ("raw", "user", new, now)),
        (INSERT, ("raw", "assistant", said[5], now)),
        (UPDATE, (edited, ids[0])),
        (DELETE, (ids[1],)),
        (DELETE, (ids[2],)),
        (
            INSERT.replace("(session_id", "(id, session_id").replace("(?", "(?, ?"),
            (ids[2], "raw", "user", swapped, now),
        ),
        (DELETE, (ids[6],)),
    )
    house.denies(*said[:3])
    yield
    house.clean("raw")
    assert house.embedded("raw") == [edited, swapped, *said[3:], new, said[5]]
    house.paid(*said, new, edited, swapped)
    house.denies(*said[:3])
    house.serves(new, edited, swapped, said[3], said[5])


def history_that_another_program_writes_is_found(house: House) -> Door:
    said, (edited,) = say("foreign", *range(3)), say("foreign", 11)
    house.clean("foreign")
    while house.turn < QUIET:
        yield
    ids = house.ids("foreign")
    house.raw((UPDATE, (edited, ids[0])), (DELETE, (ids[1],)), (DELETE, (ids[3],)))
    house.denies(*said[:2])
    yield
    house.clean("foreign")
    assert house.embedded("foreign") == [edited, said[2]]
    house.paid(*said, edited)
    house.denies(*said[:2])
    house.serves(edited, said[2])


def what_was_written_while_no_hermes_ran_is_found_by_a_backfill(house: House) -> Door:
    said, (new, edited, older) = say("offline", *range(4)), say("offline", 11, 12, 13)
    house.do("append", session="offline", texts=[*said, OK])
    while not house.closed:
        yield
    ids, old = house.ids("offline"), house.ids("absent")
    house.raw(
        (INSERT, ("offline", "user", new, time.time())),
        (UPDATE, (edited, ids[0])),
        (DELETE, (ids[1],)),
        (DELETE, (ids[4],)),
        (UPDATE, (older, old[0])),
        (DELETE, (old[1],)),
        (DELETE, (old[2],)),
    )
    yield
    house.clean("offline", "absent")
    assert house.embedded("offline") == [edited, said[2], said[3], new]
    assert house.embedded("absent") == [older]
    house.paid(*said, new, edited, older, *say("absent", 1, 2))


def no_text_is_sent_twice_and_nothing_is_left_over(house: House) -> Door:
    while not house.closed:
        yield
        assert house.complaints == []
        assert [text for text, count in house.sent().items() if count > 1] == []
    yield
    assert house.complaints == []
    before = len(house.server.texts)
    again = house.backfill()
    assert again["stored"] == again["texts_sent"] == 0, again
    assert len(house.server.texts) == before


DOORS: tuple[Callable[[House], Door], ...] = (
    appended_messages_have_vectors_but_for_formalities_and_tool_output,
    a_batch_is_embedded_like_single_messages,
    a_live_message_flushed_again_with_other_words_is_embedded_anew,
    a_replaced_transcript_of_200_with_one_text_changed_costs_one_text,
    a_replaced_transcript_whose_dropped_turns_are_archived_shows_the_new_ones,
    a_cleared_and_appended_transcript_costs_what_changed,
    a_cleared_session_leaves_nothing,
    three_compactions_in_place_in_a_row_send_the_summaries_only,
    a_rotating_compaction_sends_the_summary_only,
    a_branch_sends_nothing,
    imported_sessions_are_embedded_and_what_is_known_is_copied,
    a_delegations_delivery_is_embedded_unless_it_is_hidden,
    a_rewind_hides_and_a_restore_shows_again_without_sending,
    a_message_that_becomes_active_later_is_embedded_then,
    edited_messages_are_embedded_anew,
    edited_history_is_embedded_anew,
    replaced_history_is_copied,
    a_deleted_session_leaves_nothing_and_takes_its_delegates_along,
    deleted_sessions_leave_nothing,
    pruned_sessions_leave_nothing,
    what_another_program_writes_is_found,
    history_that_another_program_writes_is_found,
    what_was_written_while_no_hermes_ran_is_found_by_a_backfill,
    no_text_is_sent_twice_and_nothing_is_left_over,
)
HISTORY_SESSIONS = {
    "mended": [*say("mended", 1, 2), OK],
    "renewed": say("renewed", *range(5)),
    "foreign": [*say("foreign", *range(3)), OK],
    "absent": [*say("absent", 1, 2), OK],
}
QUIET = 3
"""In this turn no door writes a new message: nothing but a look at the old ones finds it."""
ALONE = 4
"""In this turn one old message is made visible again, and nothing else happens."""
LAST = 5
"""After this turn the Hermes process ends, and a backfill takes the worker's place."""


def go_through(house: House) -> dict[str, BaseException | None]:
    """Lead all doors on in turn; return what each raised, None where all was well."""
    outcomes: dict[str, BaseException | None] = {door.__name__: None for door in DOORS}
    going = {door.__name__: door(house) for door in DOORS}
    for turn in range(LAST + 3):
        house.turn = turn
        if turn == LAST + 1:
            house.close()
        for name, door in list(going.items()):
            try:
                next(door)
            except StopIteration:
                del going[name]
            except Exception as error:
                outcomes[name] = error
                del going[name]
        house.settle()
    assert not going
    return outcomes


@pytest.fixture(scope="module")
def outcomes(
    hermes: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, BaseException | None]]:
    home = tmp_path_factory.mktemp("doors") / "home"
    home.mkdir()
    hermes.run(HISTORY, json.dumps(HISTORY_SESSIONS), home=home)
    with StubServer() as server:
        settings = server.config(minSimilarity=0.8, queryBudget=10.0, maxTokens=MAX_TOKENS)
        (home / "config.yaml").write_text(settings)
        deploy.apply(home, hermes_python=hermes.python)
        house = House(hermes, home, server)
        try:
            assert server.texts == []
            house.backfill()
            house.inspect()
            yield go_through(house)
        finally:
            house.kill()


@pytest.mark.parametrize("door", [door.__name__ for door in DOORS])
def test_through_the_door(outcomes: dict[str, BaseException | None], door: str) -> None:
    error = outcomes[door]
    if isinstance(error, MissingDoorError):
        pytest.skip(str(error))
    if error is not None:
        raise error


def test_what_is_kept_over_a_replacement_holds_no_part_of_a_long_message(tmp_path: Path) -> None:
    database = PlainDatabase(tmp_path / "state.db")
    database.message(long("kept"))
    database.message("a short one that came later")
    settings = Settings(max_tokens=MAX_TOKENS)
    indexer = Indexer(database, CountingEmbedder(), settings)
    while not indexer.index_batch().done:
        pass
    whole = len(texts.chunks(long("kept"), MAX_TOKENS))
    for limit in (1, 2, whole, whole + 1, whole + 2):
        with database.reader() as conn:
            kept = session_vectors(conn, "s1", limit)
        assert {len(chunks) for chunks in kept.values()} <= {1, whole}, limit
    assert len(kept) == 2


def test_a_message_replaced_while_its_text_is_being_embedded_costs_nothing_more(
    tmp_path: Path,
) -> None:
    database = PlainDatabase(tmp_path / "state.db")
    text = "said, and replaced before its vector came"
    database.message(text)
    embedder = CountingEmbedder()

    def replaced(sent: Sequence[str]) -> list[Item] | None:
        if text in sent and embedder.sent.count(text) == 1:
            database.conn.execute("DELETE FROM messages")
            database.message(text)
        return None

    embedder.fail = replaced
    indexer = Indexer(database, embedder, Settings())
    while not indexer.index_batch().done:
        pass
    assert len(database.vectors()) == 1
    assert embedder.messages_sent == [text]
