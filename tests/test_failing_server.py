"""The embeddings server fails in every known way, with everything of ours above it."""

from __future__ import annotations

import base64
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import failing_server as servers
from failing_rig import Rig, block, until
from failing_server import Asked, FailingServer, vector
from fakes import PlainDatabase
from hermes_patch import config, guard, overview, store, worker
from hermes_patch.embedders.base import PROBE_TEXT
from hermes_patch.embedders.openai_api import OpenAIEmbedder
from hermes_patch.errors import BadResponse, EmbedderError
from hermes_patch.indexer import Indexer
from hermes_patch.vectors import cosine
from servers import free_port

KEY = "sk-canary0123456789abcdef"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "DEBOUNCE", 0.01)
    monkeypatch.setattr(worker, "PAUSE", 0.0)
    monkeypatch.setattr(worker, "BACKOFF", (0.05, 0.2))


@pytest.fixture
def server() -> Iterator[FailingServer]:
    with FailingServer() as running:
        yield running


MakeRig = Callable[..., Rig]


@pytest.fixture
def rig(tmp_path: Path, server: FailingServer) -> Iterator[MakeRig]:
    made: list[Rig] = []

    def make(url: str = server.url, waits: list[float] | None = None, **more: Any) -> Rig:
        made.append(Rig(tmp_path, url, waits, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def asks(marker: str) -> Callable[[Asked], bool]:
    """Tell whether a request is for a text with *marker*."""
    return lambda asked: any(marker in text for text in asked.texts)


def assert_own_vectors(rig: Rig, said: dict[int, str]) -> None:
    """Every stored vector is that of its own message."""
    for msg_id, (found, *more) in rig.vectors().items():
        assert not more and cosine(found, vector(said[msg_id])) > 0.9999, said[msg_id]


# --- down -------------------------------------------------------------------------------


def test_a_server_that_is_down_is_asked_rarely_and_nothing_is_lost(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BACKOFF", (0.5, 1.0))
    port = free_port()
    r = rig(f"http://127.0.0.1:{port}/v1", waits=[])
    said, started = {}, time.monotonic()
    for n in range(200):
        said[r.say("a", f"message about topic {n}")] = f"message about topic {n}"
        time.sleep(0.005)
    attempts, seconds = r.network.attempts, time.monotonic() - started
    assert r.db.conn.execute("SELECT count(*) FROM messages").fetchone() == (200,)
    assert r.handle.threads <= {"hermes-patch worker"}
    with FailingServer(port=port):
        until(lambda: len(r.vectors()) == 200)
    assert_own_vectors(r, said)
    # Each try of the worker is three attempts, and the shortest pause between two is 0.4 s.
    assert 0 < attempts <= 3 * (2 + seconds / 0.4)


def test_searches_leave_a_dead_server_alone_and_give_the_hosts_rows(rig: MakeRig) -> None:
    r = rig()
    wanted = r.say("a", "the disk is full")
    until(r.vectors)
    dead = rig(f"http://127.0.0.1:{free_port()}/v1", waits=[])
    for n in range(20):
        assert dead.found(f"docker volumes {n}", wanted) == [wanted]
    assert 0 < dead.network.attempts <= guard.OPEN_AFTER


# --- silent and dripping ----------------------------------------------------------------

ENDLESS = [servers.silent, servers.dripping]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("behaviour", ENDLESS)
def test_a_search_gives_keyword_hits_although_the_answer_never_comes(
    rig: MakeRig, server: FailingServer, behaviour: servers.Behaviour
) -> None:
    r = rig(timeout=600, queryBudget=0.3)
    wanted = r.say("a", "the disk is full")
    relaxed = r.say("b", "the disk of the camera")
    for n in range(20):
        r.db.say("noise", f"filler about weather report {n}")
    until(lambda: not r.pending())
    server.behaviour = behaviour
    started = time.monotonic()
    assert r.found("full disk", wanted) == [wanted, relaxed]
    # The budget is 0.3 s and the patience of the embedder ten minutes.
    assert time.monotonic() - started < 30


@pytest.mark.timeout(120)
@pytest.mark.parametrize("behaviour", ENDLESS)
def test_the_worker_gets_past_a_text_that_the_server_never_answers(
    rig: MakeRig, server: FailingServer, behaviour: servers.Behaviour
) -> None:
    trapped = asks("tarpit")
    server.behaviour = lambda asked: (behaviour if trapped(asked) else servers.fine)(asked)
    r = rig(timeout=1, batchSize=2, waits=[])
    ids = [r.db.say("a", f"message about topic {n}") for n in range(6)]
    culprit = r.db.say("a", "message about a tarpit")
    ids += [r.db.say("a", f"message about subject {n}") for n in range(6)]
    r.worker.wake()
    until(lambda: set(r.vectors()) == set(ids) and culprit in r.reasons())
    after = r.say("b", "written later")
    until(lambda: after in r.vectors())


LEAVING = """
import atexit, sys
from pathlib import Path
from failing_rig import Rig, until
from failing_server import FailingServer, dripping, silent
from hermes_patch.worker import Registry, Worker

server = FailingServer().start()
rig = Rig(Path(sys.argv[1]), server.url, timeout=600, queryBudget=0.2)
workers = Registry(lambda engine: Worker(engine, applied_at=50.0))
atexit.register(workers.stop, 0.5)
rig.worker = workers.of(rig.engine)
rig.say("a", "the disk is full")
until(rig.vectors)
before = len(server.asked)
server.behaviour = {"silent": silent, "dripping": dripping}[sys.argv[2]]
rig.say("a", "the disk is full again")
until(lambda: len(server.asked) > before)
assert rig.found("full", 1, 2) == [1, 2]
print("leaving", flush=True)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("manner", ["silent", "dripping"])
def test_a_process_ends_although_the_server_never_answers(tmp_path: Path, manner: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, str(tmp_path), manner],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent,
    )
    assert (done.returncode, done.stdout) == (0, "leaving\n")
    told = done.stderr.splitlines()
    assert len(told) <= 2 and all("failed, Hermes is not affected" in line for line in told)


# --- busy and exhausted -----------------------------------------------------------------


def test_a_busy_server_is_left_alone_as_long_as_it_asks(
    rig: MakeRig, server: FailingServer
) -> None:
    told = 0.4
    busy = servers.refusing(429, Retry_After=str(told))
    server.behaviour = servers.in_turn(*[busy] * 6, servers.fine)
    r = rig()
    ids = []
    while len(server.asked) < 7:
        ids.append(r.say("a", f"message about topic {len(ids)}"))
        time.sleep(0.02)
        assert len(ids) < 3000
    until(lambda: set(r.vectors()) == set(ids))
    times = [asked.at for asked in server.asked[:7]]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert min(gaps) >= told


def test_a_busy_server_that_says_nothing_is_asked_after_growing_pauses(
    rig: MakeRig, server: FailingServer
) -> None:
    server.behaviour = servers.in_turn(*[servers.refusing(429)] * 6, servers.fine)
    waits: list[float] = []
    r = rig(waits=waits)
    ids = [r.db.say("a", f"message about topic {n}") for n in range(20)]
    r.worker.wake()
    until(lambda: set(r.vectors()) == set(ids))
    # Four tries in a row, then the worker's own back-off, then the rest.
    assert [low <= wait <= 3 * low for low, wait in zip((0.5, 1, 2), waits, strict=False)] == [
        True
    ] * 3
    assert len(waits) == 5


def test_an_exhausted_quota_is_told_once_and_the_server_is_left_alone(
    rig: MakeRig, server: FailingServer, caplog: pytest.LogCaptureFixture
) -> None:
    r = rig()
    host = r.say("a", "the disk is full")
    until(r.vectors)
    before = len(server.asked)
    server.behaviour = servers.refusing(429, code="insufficient_quota", Retry_After="0")
    for n in range(60):
        r.say("a", f"message about topic {n}")
        time.sleep(0.02)
    assert all(r.found("docker volumes", host) == [host] for n in range(10))
    until(lambda: "quota" in (store.state(r.db.conn, "failures") or ""))
    (r.home / "config.yaml").write_text(_yaml(server.url))
    shown = [line for line in overview.lines(overview.gather(r.home)) if "quota is used up" in line]
    assert len([line for line in shown if "realtime" in line]) == 1
    assert "127.0.0.1" in shown[0] and "check the account's balance" in shown[0]
    logged = [r.getMessage() for r in caplog.records if r.name.startswith("hermes_patch")]
    assert len([line for line in logged if "realtime" in line]) == 1 and len(logged) <= 2
    assert len(server.asked) - before <= guard.OPEN_AFTER + 3


def _yaml(url: str, **more: Any) -> str:
    return json.dumps({"agents": {"defaults": {"memorySearch": block(url, **more)}}})


# --- answers that cannot be assigned ----------------------------------------------------


def test_shuffled_answers_are_matched_by_index(rig: MakeRig, server: FailingServer) -> None:
    server.behaviour = servers.shaped(lambda data: random.Random(1).sample(data, len(data)))
    r = rig()
    said = {r.db.say("a", text): text for text in map("message about topic {}".format, range(40))}
    r.backfill()
    assert set(r.vectors()) == set(said)
    assert_own_vectors(r, said)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[1:],
        lambda data: [*data, {**data[0], "index": len(data)}],
        lambda data: [{**data[0], "index": 1}, *data[1:]],
        lambda data: [{"embedding": data[0]["embedding"]}, *data[1:]],
        lambda data: [{**entry, "index": entry["index"] + 1} for entry in data],
    ],
    ids=["fewer", "more", "duplicate", "missing", "counted from one"],
)
def test_an_answer_that_does_not_fit_costs_its_batch_and_no_vector_goes_astray(
    rig: MakeRig, server: FailingServer, spoil: Callable[[list[dict[str, Any]]], Any]
) -> None:
    r = rig()
    first = {r.db.say("a", "the first message"): "the first message"}
    r.backfill()
    server.behaviour = servers.shaped(spoil)
    said = first | {
        r.db.say("a", text): text for text in map("message about topic {}".format, range(10))
    }
    with pytest.raises(BadResponse):
        r.backfill()
    assert set(r.vectors()) == set(first) and not r.reasons()
    server.behaviour = servers.fine
    r.backfill()
    assert set(r.vectors()) == set(said)
    assert_own_vectors(r, said)


def _without_repetitions(asked: Asked) -> servers.Answer:
    return servers.Answer(body={"data": servers.entries(list(dict.fromkeys(asked.texts)))})


def test_a_server_that_answers_equal_texts_once_gets_them_one_by_one(
    rig: MakeRig, server: FailingServer
) -> None:
    server.behaviour = _without_repetitions
    r = rig(maxTokens=64)
    repeated = r.db.say("a", "again " * 2000)
    r.backfill()
    assert len(r.vectors()[repeated]) > 10


def test_a_text_that_a_server_leaves_out_costs_that_one_only(
    rig: MakeRig, server: FailingServer
) -> None:
    def leaving_out(asked: Asked) -> servers.Answer:
        kept = [text for text in asked.texts if "7" not in text]
        return servers.Answer(body={"data": servers.entries(kept)})

    server.behaviour = leaving_out
    r = rig()
    said = {r.db.say("a", text): text for text in map("message about topic {}".format, range(10))}
    r.backfill()
    (lost,) = set(said) - set(r.vectors())
    assert said[lost].endswith("7") and r.reasons() == {
        lost: f"127.0.0.1:{server.port}: expected 1 vectors, found 0"
    }
    assert_own_vectors(r, said)


# --- one bad item -----------------------------------------------------------------------


def drain(indexer: Indexer) -> None:
    while not indexer.index_batch().done:
        pass


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([float("nan")] * servers.DIMS, "NaN or Inf"),
        ([float("inf")] + [0.0] * (servers.DIMS - 1), "NaN or Inf"),
        ([0.0] * servers.DIMS, "all zero"),
        ([1.0] * (servers.DIMS + 1), "65 dimensions, expected 64"),
        ([1.0] * (servers.DIMS - 1), "63 dimensions, expected 64"),
        (["1.0"] * servers.DIMS, "not a number"),
        ("one, two", "neither a list of numbers nor base64"),
        (None, "no vector"),
    ],
    ids=["NaN", "Inf", "zero", "longer", "shorter", "strings", "a string", "null"],
)
def test_one_bad_vector_of_ten_is_recorded_and_asked_for_a_bounded_number_of_times(
    tmp_path: Path, server: FailingServer, bad: Any, reason: str
) -> None:
    server.behaviour = servers.one_vector("4", bad)
    database, settings = PlainDatabase(tmp_path / "state.db"), config.parse(block(server.url))
    ids = [database.message(f"message about topic {n}") for n in range(10)]
    now = [1000.0]
    indexer = Indexer(database, OpenAIEmbedder(settings), settings, clock=lambda: now[0])
    drain(indexer)
    assert set(database.vectors()) == set(ids) - {ids[4]}
    (row,) = database.conn.execute("SELECT msg_id, reason FROM embedding_skips").fetchall()
    assert row[0] == ids[4] and reason in row[1]
    drain(indexer)
    assert server.sent.count("message about topic 4") == 1
    for _ in range(store.MAX_ATTEMPTS + 5):
        now[0] += 1e6
        drain(indexer)
    assert server.sent.count("message about topic 4") == store.MAX_ATTEMPTS
    assert len(server.sent) == 9 + store.MAX_ATTEMPTS


def test_vectors_of_whole_numbers_are_stored(rig: MakeRig, server: FailingServer) -> None:
    server.behaviour = servers.one_vector("topic", [3, 4] + [0] * (servers.DIMS - 2))
    r = rig()
    msg_id = r.db.say("a", "message about topic")
    r.backfill()
    assert r.vectors()[msg_id][0][:3] == pytest.approx([0.6, 0.8, 0.0])


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (500, store.MAX_ATTEMPTS)])
def test_one_text_that_fails_its_batch_stands_alone_in_the_end(
    tmp_path: Path, server: FailingServer, status: int, tries: int
) -> None:
    server.behaviour = servers.refusing(status, asks("poison"))
    database, settings = PlainDatabase(tmp_path / "state.db"), config.parse(block(server.url))
    ids = [database.message(f"message about topic {n}") for n in range(20)]
    culprit = database.message("message about poison")
    ids += [database.message(f"message about subject {n}") for n in range(20)]
    now = [1000.0]
    embedder = OpenAIEmbedder(settings, sleep=lambda seconds: None)
    indexer = Indexer(database, embedder, settings, clock=lambda: now[0])
    drain(indexer)
    assert set(database.vectors()) == set(ids)
    for _ in range(store.MAX_ATTEMPTS + 5):
        now[0] += 1e6
        drain(indexer)
    row = database.conn.execute(
        "SELECT msg_id, reason, attempts, next_try FROM embedding_skips"
    ).fetchall()
    assert row == [(culprit, f"127.0.0.1:{server.port} answered HTTP {status}", tries, None)]


# --- limits -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "most"), [(400, 1), (400, 10), (413, 10), (422, 10), (400, 16), (413, 32)]
)
def test_the_number_of_texts_a_server_takes_is_found_once_and_kept(
    rig: MakeRig, server: FailingServer, status: int, most: int
) -> None:
    server.behaviour = servers.refusing(status, lambda asked: len(asked.texts) > most)
    r = rig(batchSize=64)
    said = {r.db.say("a", text): text for text in map("message about topic {}".format, range(100))}
    r.backfill()
    assert set(r.vectors()) == set(said)
    assert_own_vectors(r, said)
    refused = [n for n, asked in enumerate(server.asked) if len(asked.texts) > most]
    assert 0 < len(refused) <= 6
    assert len(server.asked) <= 20 + 100 / (most / 2)
    assert not r.reasons()


@pytest.mark.parametrize("most", [100_000, 300_000, 2_000_000])
def test_the_size_a_server_takes_is_found_and_nothing_is_lost(
    rig: MakeRig, server: FailingServer, most: int
) -> None:
    server.behaviour = servers.refusing(413, lambda asked: asked.size > most)
    r = rig(batchSize=64, maxTokens=20_000)
    filler = "a sentence of a long report. " * 1700
    ids = [r.db.say("a", f"report {n}: {filler}") for n in range(50)]
    r.backfill()
    assert set(r.vectors()) == set(ids) and not r.reasons()
    refused = [asked.size for asked in server.asked if asked.size > most]
    assert len(refused) <= 8 and max(asked.size for asked in server.asked) < 2_000_000


# --- too long ---------------------------------------------------------------------------

ANSWER = "The blue heron nests beside the northern lake."
LONG = {
    "English": "We walked along the river and talked about the harvest. " * 3500,
    "one paragraph a line": "Another line of the minutes\n" * 7000,
    "only CJK": "今天天气晴朗我们去河边散步。" * 4800,
    "CJK without a full stop": "今天天气晴朗我们去河边散步" * 5000,
    "one word repeated": "again " * 33_000,
    "one letter repeated": "x" * 200_000,
    "digits": "0123456789" * 20_000,
}


def _tokens(text: str) -> int:
    """Count as a model with a small vocabulary might."""
    return sum(1 + (len(word) - 1) // 5 if word.isalpha() else len(word)
               for word in servers.words(text))  # fmt: skip


@pytest.mark.parametrize("kind", LONG)
def test_the_last_paragraph_of_a_long_message_is_found_and_nothing_is_cut_off(
    rig: MakeRig, server: FailingServer, kind: str
) -> None:
    long = f"{LONG[kind]}\n\n{ANSWER}"
    server.behaviour = servers.refusing(400, lambda asked: max(map(_tokens, asked.texts)) > 512)
    r = rig()
    msg_id = r.db.say("long", long)
    other = r.db.say("short", "The kettle is in the kitchen.")
    r.backfill()
    assert not r.reasons() and set(r.vectors()) == {msg_id, other}
    covered, sent = bytearray(len(long)), set(server.sent)
    query = "SELECT chunk_start, chunk_end FROM message_embeddings WHERE msg_id = ?"
    for start, end in r.db.conn.execute(query, (msg_id,)):
        covered[start:end] = b"x" * (end - start)
        assert long[start:end] in sent
    assert all(covered[at] or long[at].isspace() for at in range(len(long)))
    hit = r.near("blue heron nests")[0]
    assert hit.message.id == msg_id and ANSWER in long[hit.start : hit.end]
    assert r.found("blue heron nests")[0] == msg_id


# --- secrets ----------------------------------------------------------------------------


def _refused(rig: Rig, msg_id: int) -> list[str]:
    """Return everything that can be seen of a server that refuses us, but no message."""
    until(lambda: "HTTP" in (store.state(rig.db.conn, "failures") or ""))
    assert rig.found("docker volumes", msg_id) == [msg_id]
    shown: list[object] = [rig.embedder, rig.settings, rig.embedder._exchange, rig.engine]
    shown += rig.engine.guard.failures()
    chain: list[BaseException] = []
    for ask in (lambda: rig.backfill(), lambda: rig.embedder.embed_query("confidential", 5)):
        with pytest.raises(EmbedderError) as caught:
            ask()
        chain.append(caught.value)
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
    shown += [f"{link!r} {link}" for link in chain]
    shown += overview.lines(overview.gather(rig.home))
    kept = rig.db.conn.execute("SELECT value FROM embedding_state UNION ALL SELECT reason FROM "
                               "embedding_skips").fetchall()  # fmt: skip
    return [*map(repr, shown), repr(kept), json.dumps(overview.gather(rig.home))]


@pytest.mark.parametrize("where", ["apiKey", "userinfo", "both"])
@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_key_that_the_server_echoes_is_shown_nowhere(
    rig: MakeRig,
    server: FailingServer,
    caplog: pytest.LogCaptureFixture,
    where: str,
    status: int,
) -> None:
    caplog.set_level(logging.DEBUG)
    server.behaviour = servers.refusing(status)
    url = server.url.replace("//", "//me:hunter22canary@") if where != "apiKey" else server.url
    more = {"key": KEY} if where != "userinfo" else {}
    r = rig(url, waits=[], **more)
    (r.home / "config.yaml").write_text(_yaml(url, **more))
    shown = _refused(r, r.say("a", "confidential words"))
    assert len(server.asked) > 2 and server.asked[0].headers["Authorization"]
    everything = "\n".join([*shown, caplog.text])
    assert f"127.0.0.1:{server.port} answered HTTP {status}" in everything
    pair = base64.b64encode(b"me:hunter22canary").decode()
    for secret in (KEY, KEY[3:20], "hunter22canary", pair, "confidential"):
        assert secret not in everything


# --- prefixes ---------------------------------------------------------------------------

_QWEN = (
    "Instruct: Given a question, retrieve the passages of past conversations that answer it\n"
    "Query: "
)
_BGE = "Represent this sentence for searching relevant passages: "
_GEMMA = ("title: none | text: ", "task: search result | query: ")
FAMILIES = {
    "nomic-embed-text:v1.5": ("search_document: ", "search_query: "),
    "intfloat/multilingual-e5-small": ("passage: ", "query: "),
    "e5-base-v2": ("passage: ", "query: "),
    "multilingual-e5-large-instruct": ("", _QWEN),
    "Qwen/Qwen3-Embedding-0.6B": ("", _QWEN),
    "BAAI/bge-small-en-v1.5": ("", _BGE),
    "BAAI/bge-base-zh-v1.5": ("", "为这个句子生成表示以用于检索相关文章："),
    "mxbai-embed-large": ("", _BGE),
    "embeddinggemma:300m": _GEMMA,
    "BAAI/bge-m3": ("", ""),
    "text-embedding-3-small": ("", ""),
    "doubao-embedding-vision-250615": ("", ""),
}


@pytest.mark.parametrize("model", FAMILIES)
def test_each_model_gets_its_prefixes_in_what_is_sent(
    rig: MakeRig, server: FailingServer, model: str
) -> None:
    document, query = FAMILIES[model]
    r = rig(waits=[], model=model, minSimilarity=0.1)
    msg_id = r.db.say("a", "the disk is full")
    r.backfill()
    assert server.sent == [f"{document}the disk is full"]
    assert server.asked[0].texts == [f"{document}{PROBE_TEXT}"]
    assert [hit.message.id for hit in r.near("no room on the disk")] == [msg_id]
    assert server.sent[1:] == [f"{query}no room on the disk"]


@pytest.mark.parametrize("key", ["documentPrefix", "queryPrefix"])
def test_another_prefix_is_a_new_space_and_old_vectors_are_never_compared(
    rig: MakeRig, server: FailingServer, key: str
) -> None:
    before = rig(minSimilarity=0.1, **{key: "passage: "})
    msg_id = before.db.say("a", "the disk is full")
    before.backfill()
    assert [hit.message.id for hit in before.near("the disk")] == [msg_id]
    after = rig(minSimilarity=0.1, **{key: "lookup: "})
    assert after.near("the disk") == [] and after.pending() == [msg_id]
    after.backfill()
    assert [hit.message.id for hit in after.near("the disk")] == [msg_id]
    assert len(after.spaces()) == 2 and len(after.vectors()[msg_id]) == 2
    assert before.pending() == []
