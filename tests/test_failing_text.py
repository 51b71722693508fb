"""Texts of every awkward kind, from the table to a real server and back by a search."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from failing_rig import Rig, until
from failing_server import FailingServer
from hermes_patch import layout, store, worker
from hermes_patch import text as texts
from hermes_patch.redaction import MARK

MakeRig = Callable[..., Rig]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "DEBOUNCE", 0.01)
    monkeypatch.setattr(worker, "PAUSE", 0.0)


@pytest.fixture
def server() -> Iterator[FailingServer]:
    with FailingServer() as running:
        yield running


@pytest.fixture
def rig(tmp_path: Path, server: FailingServer) -> Iterator[MakeRig]:
    made: list[Rig] = []

    def make(url: str = server.url, **more: Any) -> Rig:
        made.append(Rig(tmp_path, url, [], **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


# --- nothing to embed -------------------------------------------------------------------

CALL = json.dumps([{"id": "c1", "function": {"name": "ls", "arguments": "{}"}}])
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
NOTHING: dict[str, tuple[Any, dict[str, Any]]] = {
    "empty": ("", {}),
    "blank": (" \t\r\n\u3000\u00a0", {}),
    "zero width": ("\u200b\u200c\u200d\u2060\ufeff", {}),
    "NUL": ("\0\0\0", {}),
    "a tool call only": ("", {"role": "assistant", "tool_calls": CALL}),
    "an image only": ([IMAGE], {}),
    "no parts": ([], {}),
    "signs only": ("…!? 👍🏽 12345", {}),
}


def _null(rig: Rig) -> None:
    rig.db.conn.execute(
        "INSERT INTO messages (session_id, role, content, tool_calls, timestamp) "
        "VALUES ('a', 'assistant', NULL, ?, 2000)",
        (CALL,),
    )


@pytest.mark.parametrize("by", ["worker", "backfill"])
def test_rows_with_nothing_to_embed_are_skipped_for_good(
    rig: MakeRig, server: FailingServer, by: str
) -> None:
    r = rig()
    for content, columns in NOTHING.values():
        r.db.say("a", content, **columns)
    _null(r)

    if by == "backfill":
        r.backfill()
    r.worker.wake()
    until(lambda: not r.pending())
    assert server.asked == []
    with r.engine.reader() as conn:
        counted = store.coverage(conn, layout.read(conn), None, r.settings.roles)
    assert (counted.embedded, counted.failed) == (0, 0)
    kept = r.db.conn.execute("SELECT * FROM embedding_skips").fetchall()
    assert len(kept) == len(NOTHING)
    r.backfill()
    assert r.db.conn.execute("SELECT * FROM embedding_skips").fetchall() == kept
    wanted = r.db.say("a", "the disk is full")
    r.backfill()
    assert set(r.vectors()) == {wanted} and server.sent == ["the disk is full"]


# --- awkward characters -----------------------------------------------------------------

LINE = "a quick brown fox jumps over it " * 33_000
AWKWARD: dict[str, tuple[Any, str]] = {
    "half a pair": ([{"type": "text", "text": "rocket launch \ud83d tomorrow"}], "rocket launch"),
    "NUL": ("rocket\0launch tomorrow", "rocketlaunch tomorrow"),
    "emoji": ("🚀 launch 👩‍👩‍👧‍👦 tomorrow 🇫🇷", "🚀 launch"),
    "right to left": ("שלום עולם \u202e مرحبا بالعالم", "مرحبا بالعالم"),
    "combining": ("e\u0301te\u0301 cafe\u0301 tomorrow", "cafe\u0301 tomorrow"),
    "beyond the first plane": ("𠮷野家 𝒹𝒾𝓈𝓀 full", "𠮷野家"),
    "private use": ("rocket \ue000\uf8ff launch", "rocket launch"),
    "a line of a megabyte": (f"{LINE}zebra crossing", "zebra crossing"),
    "a megabyte without a blank": ("x" * 1_000_000 + " zebra crossing", "zebra crossing"),
    "a query with half a pair": ("rocket launch", "rocket launch \ude80"),
    "a query with NUL": ("rocket launch", "rocket\0 launch"),
}


@pytest.mark.parametrize("kind", AWKWARD)
def test_text_of_any_kind_is_stored_hashed_sent_and_found(
    rig: MakeRig, server: FailingServer, kind: str
) -> None:
    content, query = AWKWARD[kind]
    r = rig()
    r.db.say("b", "the kettle is in the kitchen")
    msg_id = r.say("a", content)
    until(lambda: len(r.vectors()) == 2)
    assert not r.reasons()
    (stored,) = r.db.conn.execute("SELECT content FROM messages WHERE id = ?", (msg_id,)).fetchone()
    text = texts.message_text(stored)
    hashes = r.db.conn.execute(
        "SELECT DISTINCT text_hash FROM message_embeddings WHERE msg_id = ?", (msg_id,)
    ).fetchall()
    assert hashes == [(texts.text_hash(text),)]
    whole = "".join(server.sent)
    assert len(whole) >= len(text) and all(part in whole for part in text.split()[-3:])
    hits = r.near(query)
    assert [hit.message.id for hit in hits][:1] == [msg_id]
    assert r.found(query, msg_id)[:1] == [msg_id]


def test_a_row_that_is_not_utf8_costs_itself_only(rig: MakeRig) -> None:
    r = rig()
    before = r.db.say("a", "the disk is full")
    r.db.conn.execute(
        "INSERT INTO messages (session_id, role, content, timestamp) "
        "VALUES ('a', 'user', CAST(X'726f636b657420eda0bd206c61756e6368' AS TEXT), 2000)"
    )
    after = r.db.say("a", "the kettle is in the kitchen")
    r.backfill()
    assert {before, after} <= set(r.vectors())
    assert r.pending() == []
    assert [hit.message.id for hit in r.near("the disk is full")][:1] == [before]


# --- lists ------------------------------------------------------------------------------


def test_only_the_words_of_a_multimodal_message_leave(rig: MakeRig, server: FailingServer) -> None:
    blob = "".join(random.Random(1).choices(string.ascii_letters, k=2_000_000))
    url = f"data:image/png;base64,{blob}"
    parts: list[Any] = [
        {"type": "text", "text": "what is on this picture"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url[:5000]},
        {"type": "image", "source": {"type": "base64", "data": blob[:5000]}},
        {"type": "file", "file": {"file_data": url[:5000], "filename": "canary.pdf"}},
        {"type": "text", "text": "of the rack?"},
    ]
    r = rig()
    msg_id = r.say("a", parts)
    until(r.vectors)
    assert server.sent == ["what is on this picture\nof the rack?"]
    assert max(asked.size for asked in server.asked) < 1000
    row = r.search("picture of the rack", msg_id)[0]
    assert row["id"] == msg_id and blob[:100] not in json.dumps(row["context"])


# --- secrets ----------------------------------------------------------------------------

BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
SECRETS = {
    "sk-abcdefghijklmnopqrstuvwxyz012345": "sk-abcdefghijkl",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789": "ghp_abcdefghij",
    "postgres://u:hunter2canary@h/db": "hunter2canary",
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "\n".join([BODY] * 24)
    + "\n-----END RSA PRIVATE KEY-----": BODY,
}


@pytest.fixture
def remote(server: FailingServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address that is not loopback; its requests come to the server, as to a proxy."""
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, server.url.removesuffix("/v1"))
    return "http://embed.invalid/v1"


def test_secrets_stay_here_and_the_words_around_them_go(
    rig: MakeRig, server: FailingServer, remote: str
) -> None:
    r = rig(remote)
    for secret in SECRETS:
        r.say("a", f"please rotate {secret} before the audit")
        r.near(f"who rotated {secret} last year")
    until(lambda: len(r.vectors()) == len(SECRETS))
    r.near("who rotated sk-abcdefghijklmnopqrstuvwxyz012345 last year")
    sent = "\n".join(server.sent)
    assert not [core for core in SECRETS.values() if core in sent]
    assert all(MARK in text for text in server.sent)
    assert sent.count("please rotate ") == sent.count("before the audit") == len(SECRETS)
    assert "who rotated [redacted] last year" in sent


@pytest.mark.parametrize("where", ["told not to", "loopback"])
def test_secrets_are_left_alone_if_told_so_or_if_they_stay_on_this_machine(
    rig: MakeRig, server: FailingServer, remote: str, where: str
) -> None:
    r = rig(remote, redact=False) if where == "told not to" else rig()
    said = [f"please rotate {secret} before the audit" for secret in SECRETS]
    for text in said:
        r.say("a", text)
    until(lambda: len(r.vectors()) == len(SECRETS))
    assert set("\n".join(said).split()) <= set("\n".join(server.sent).split())


def _token(source: random.Random) -> tuple[str, str]:
    core = "".join(source.choices(string.ascii_letters + string.digits, k=36))
    return f"ghp_{core}", core


def _password(source: random.Random) -> tuple[str, str]:
    core = "".join(source.choices(string.ascii_letters + "!;", k=24))
    return f"postgres://user:{core}@host/db", core


def _value(source: random.Random) -> tuple[str, str]:
    core = "".join(source.choices(string.ascii_letters, k=24))
    return f"password = {core}", core


def _block(source: random.Random) -> tuple[str, str]:
    core = "".join(source.choices(string.ascii_letters + string.digits, k=64 * 6))
    lines = "\n".join(core[at : at + 64] for at in range(0, len(core), 64))
    return f"-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----", core


@pytest.mark.parametrize("make", [_token, _password, _value, _block])
def test_a_secret_that_lies_across_two_chunks_stays_here_too(
    rig: MakeRig, server: FailingServer, remote: str, make: Callable[..., tuple[str, str]]
) -> None:
    source = random.Random(7)
    pairs = [make(source) for _ in range(120)]
    padded = [f"{'word ' * source.randrange(1, 30)}{secret}" for secret, _ in pairs]
    r = rig(remote, maxTokens=64)
    r.say("a", " ".join(padded))
    until(r.vectors)
    sent = "\n".join(server.sent)
    seen = [
        core for _, core in pairs if any(core[at : at + 8] in sent for at in range(len(core) - 7))
    ]
    assert not seen, f"{len(seen)} of {len(pairs)} secrets left in part"


# --- floods -----------------------------------------------------------------------------


def test_neither_tool_output_nor_system_prompts_are_embedded(
    rig: MakeRig, server: FailingServer
) -> None:
    r = rig()
    for n in range(20):
        r.say("a", f"disk usage of /dev/sda{n}: 93 % full", role="tool", tool_name="df")
        r.say("a", f"You are an agent on host {n} whose disk is full", role="system")
    wanted = r.say("a", "the disk of the camera is full")
    until(lambda: not r.pending())
    r.backfill()
    assert server.sent == ["the disk of the camera is full"] and set(r.vectors()) == {wanted}
    assert [hit.message.id for hit in r.near("disk is full")] == [wanted]
    assert r.found("is the disk full")[0] == wanted


CRON = (
    "Nightly check of 2026-{month:02}-{day:02}: is the disk full? Report the disk usage, run {n}."
)


MINE = (
    "the disk of the camera got full on our trip through Norway, so a bigger one with twice "
    "as much room was ordered from the little shop near the station"
)


def _nightly(r: Rig, count: int) -> list[int]:
    ids = []
    for n in range(count):
        r.db.session(f"cron_{n}", source="cron")
        text = CRON.format(n=n, month=1 + n // 28 % 12, day=1 + n % 28)
        ids.append(r.db.say(f"cron_{n}", text))
    return ids


@pytest.mark.parametrize("host", [0, 50], ids=["found by us alone", "found by the host too"])
def test_five_hundred_cron_prompts_do_not_drown_what_the_user_said(rig: MakeRig, host: int) -> None:
    r = rig(batchSize=256, minSimilarity=0.1)
    wanted = r.db.say("mine", MINE)
    nightly = _nightly(r, 500)
    r.backfill()
    hits = [hit.message.id for hit in r.near("is the disk full")]
    assert hits[0] in nightly  # nearer than what the user said, as a bad day has it
    assert wanted in hits[:5]
    assert wanted in r.found("is the disk full", *nightly[:host])[:5]


def test_a_prompt_repeated_word_by_word_is_one_hit(rig: MakeRig, server: FailingServer) -> None:
    r = rig(batchSize=256)
    wanted = r.db.say("mine", "the disk of the camera is full")
    for n in range(500):
        r.db.session(f"cron_{n}", source="cron")
        r.db.say(f"cron_{n}", "Is the disk full? Report the disk usage.")
    r.backfill()
    assert len(server.sent) == 2 and len(r.vectors()) == 501
    hits = [hit.message.id for hit in r.near("is the disk full")]
    assert len(hits) == 2 and wanted in hits
    assert wanted in r.found("is the disk full")[:2]


def test_the_summaries_of_one_conversation_take_one_place(rig: MakeRig) -> None:
    r = rig(batchSize=256)
    wanted = r.db.say("mine", "the disk of the camera is full")
    parent = None
    for n in range(40):
        r.db.session(f"part {n}", parent=parent)
        parent = f"part {n}"
        text = f"[CONTEXT COMPACTION — REFERENCE ONLY] Is the disk full? {n} words so far."
        r.db.say(parent, text, role="assistant")
    r.backfill()
    assert wanted in r.found("is the disk full")[:2]
