"""What goes over the wire: compressed answers, many questions at once, refused queries."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from fakes import unit
from hermes_patch import config, query
from hermes_patch.config import Settings
from hermes_patch.embedders import decoding, exchange, sending
from hermes_patch.embedders.base import Item
from hermes_patch.embedders.exchange import Exchange
from hermes_patch.embedders.openai_api import OpenAIEmbedder
from hermes_patch.embedders.protocol import TimedOut
from hermes_patch.errors import (
    BadResponse,
    BusyHere,
    ConfigError,
    EmbedderError,
    EmbedderRefused,
    EmbedderUnavailable,
    QueryRefused,
)
from stub_server import StubServer

Answer = Callable[[httpx.Request], httpx.Response]
GOOD = json.dumps({"data": [{"index": 0, "embedding": unit("q")}]}).encode()


def settings(**changes: object) -> Settings:
    values = {"provider": "openai", "model": "m", "base_url": "https://embed.example/v1"}
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


def embedder(answer: Answer, **changes: object) -> OpenAIEmbedder:
    return OpenAIEmbedder(settings(**changes), httpx.MockTransport(answer), lambda seconds: None)


def encoded(content: bytes, encoding: str, status: int = 200) -> Answer:
    """Answer with *content* as it is, which the client is told to decode."""
    stream = httpx.ByteStream(content)
    headers = {"Content-Encoding": encoding}
    return lambda request: httpx.Response(status, headers=headers, stream=stream)


# --- compressed answers -----------------------------------------------------------------


def test_no_compression_is_asked_for() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Accept-Encoding"])
        return httpx.Response(200, content=GOOD)

    embedder(answer).embed_query("q", 5)
    assert seen == ["identity"]


@pytest.mark.parametrize("encoding", ["gzip", "GZip", "x-gzip", "identity, gzip"])
def test_an_answer_in_gzip_is_read_all_the_same(encoding: str) -> None:
    found = embedder(encoded(gzip.compress(GOOD), encoding)).embed_query("q", 5)
    assert found == pytest.approx(unit("q"))


def test_gzip_that_comes_byte_by_byte_is_read() -> None:
    class Drops(httpx.SyncByteStream):
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield from (bytes([byte]) for byte in gzip.compress(GOOD))

    headers = {"Content-Encoding": "gzip"}
    e = embedder(lambda request: httpx.Response(200, headers=headers, stream=Drops()))
    assert e.embed_query("q", 30) == pytest.approx(unit("q"))


@pytest.mark.parametrize("encoding", ["gzip, gzip", "deflate", "br", "zstd", "gzip, br", "odd"])
def test_an_answer_in_any_other_encoding_is_a_bad_response(encoding: str) -> None:
    twice = gzip.compress(gzip.compress(GOOD))
    with pytest.raises(BadResponse, match="compressed"):
        embedder(encoded(twice, encoding)).embed_query("q", 5)


def test_a_bomb_unfolds_no_further_than_the_largest_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "MAX_ANSWER", 100_000)
    got: list[int] = []
    real = decoding.pieces

    def counted(*args):  # type: ignore[no-untyped-def]
        for piece in real(*args):
            got.append(len(piece))
            yield piece

    monkeypatch.setattr(decoding, "pieces", counted)
    bomb = gzip.compress(b"0" * 20_000_000)
    with pytest.raises(BadResponse, match="larger than"):
        embedder(encoded(bomb, "gzip")).embed_query("q", 5)
    assert sum(got) == 100_001


def test_an_answer_far_too_large_for_its_texts_is_not_even_parsed() -> None:
    bomb = gzip.compress(b'{"data": [' + b"[]," * 700_000 + b"1]}")
    with pytest.raises(BadResponse, match="larger than"):
        embedder(encoded(bomb, "gzip")).embed_query("q", 5)


def test_long_vectors_written_at_length_are_no_bomb() -> None:
    wide = [1 / 3 + n for n in range(16_384)]
    data = [{"index": n, "embedding": wide} for n in range(4)]
    content = json.dumps({"data": data}, indent=1).encode()
    items = embedder(lambda request: httpx.Response(200, content=content)).embed_documents(
        ["a", "b", "c", "d"]
    )
    assert [item.vector is not None for item in items] == [True] * 4


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip", "br"])
def test_the_status_of_an_error_counts_whatever_its_body_is(encoding: str) -> None:
    with pytest.raises(EmbedderRefused, match="401"):
        embedder(encoded(b"neither", encoding, 401)).embed_query("q", 5)


def test_the_code_in_a_compressed_error_is_read() -> None:
    body = gzip.compress(b'{"error": {"code": "no_such_thing"}}')
    with pytest.raises(EmbedderRefused, match="no_such_thing"):
        embedder(encoded(body, "gzip", 404)).embed_query("q", 5)


# --- many questions at once -------------------------------------------------------------


def together(count: int, ask: Callable[[int], object]) -> list[Exception | None]:
    """Call *ask* in *count* threads; return what each raised."""
    raised: list[Exception | None] = [None] * count

    def run(number: int) -> None:
        try:
            ask(number)
        except Exception as error:
            raised[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.timeout(60)
def test_more_questions_than_a_healthy_server_can_answer_in_time_are_not_its_fault() -> None:
    def slow(request: httpx.Request) -> httpx.Response:
        time.sleep(0.5)
        return httpx.Response(200, content=GOOD)

    e = embedder(slow)
    raised = together(5 * exchange.CONCURRENT, lambda n: e.embed_query("q", 1.7))
    failed = [error for error in raised if error is not None]
    assert failed, "there were to be more than can be answered"
    assert {type(error) for error in failed} == {BusyHere}
    assert len(failed) <= 4 * exchange.CONCURRENT
    assert isinstance(failed[0], EmbedderUnavailable)
    assert "at once here" in str(failed[0])


@pytest.mark.timeout(60)
def test_a_question_that_is_given_up_does_not_cut_the_others_off() -> None:
    """One long request, as of the worker, is under way while many short ones find no room."""
    arrived, release = threading.Semaphore(0), threading.Event()

    class Held(httpx.BaseTransport):
        closed = 0

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            arrived.release()
            release.wait(30)
            return httpx.Response(200, content=GOOD)

        def close(self) -> None:
            Held.closed += 1

    e = OpenAIEmbedder(settings(timeout=30.0), Held(), lambda seconds: None)
    items: list[Item] = []

    def batch() -> None:
        items.extend(e.embed_documents(["q"]))

    threads = [threading.Thread(target=batch) for _ in range(exchange.CONCURRENT)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert arrived.acquire(timeout=30)
    raised = together(3, lambda n: e.embed_query("q", 0.1))
    closed = Held.closed
    release.set()
    for thread in threads:
        thread.join()
    assert {type(error) for error in raised} == {BusyHere}
    assert closed == 0
    assert len(items) == exchange.CONCURRENT and all(item.vector for item in items)


@pytest.mark.timeout(60)
def test_a_question_that_gets_its_turn_at_once_and_no_answer_timed_out() -> None:
    with StubServer() as server:
        server.mode = "hang"
        e = OpenAIEmbedder(settings(base_url=server.url))
        raised = together(exchange.CONCURRENT, lambda n: e.embed_query("q", 0.5))
        assert {type(error) for error in raised} == {TimedOut}


@pytest.mark.timeout(60)
def test_connections_are_used_again_and_given_up_ones_are_not() -> None:
    with StubServer() as server:
        e = OpenAIEmbedder(settings(base_url=server.url))
        e.embed_query("q", 30)
        (first,) = e._exchange._idle
        e.embed_query("q", 30)
        assert e._exchange._idle == [first]
        server.mode = "hang"
        with pytest.raises(EmbedderUnavailable):
            e.embed_query("q", 0.2)
        server.mode = "fine"
        e.embed_query("q", 30)
        assert first not in e._exchange._idle
        e.close()
        assert e._exchange._idle == []


def test_a_question_without_time_is_late_and_not_too_many() -> None:
    far = Exchange("h", "", (), trust_env=False, transport=httpx.MockTransport(encoded(b"", "")))
    with pytest.raises(TimedOut):
        far.post("https://h/v1", b"{}", 0)


# --- queries that have no vector --------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n", "\x00", "\x00 \x00"])
def test_an_empty_query_is_refused_without_a_request(text: str) -> None:
    with pytest.raises(QueryRefused, match="empty"):
        embedder(lambda request: pytest.fail("it was asked")).embed_query(text, 5)


@pytest.mark.parametrize("status", [400, 413, 422, 451])
def test_a_query_that_the_server_rejects_is_refused(status: int) -> None:
    with pytest.raises(QueryRefused, match=str(status)) as caught:
        embedder(lambda request: httpx.Response(status)).embed_query("q", 5)
    assert not isinstance(caught.value, (EmbedderUnavailable, EmbedderRefused, BadResponse))


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 410, 301])
def test_a_server_that_serves_nobody_is_not_the_querys_fault(status: int) -> None:
    with pytest.raises(EmbedderRefused):
        embedder(lambda request: httpx.Response(status)).embed_query("q", 5)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_server_in_trouble_is_not_the_querys_fault(status: int) -> None:
    with pytest.raises(EmbedderUnavailable):
        embedder(lambda request: httpx.Response(status)).embed_query("q", 5)


def test_refusals_are_errors_of_an_embedder() -> None:
    assert issubclass(QueryRefused, EmbedderError)


# --- secrets in queries -----------------------------------------------------------------

KEY_LINES = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 20)
LOG = "2024-05-01 12:00:00 worker started, all is well\n" * 31
TYPED = {
    "a quoted sentence": ('why does password="correct horse battery staple" fail', "horse"),
    "brackets": ("token=abc(SECRETdef)SECRETghi and more", "SECRET"),
    "longer than what is read": (f"token={'S3CRET' * 500} does not work", "S3CRET"),
    "a key at the end of a log": (
        f"{LOG}-----BEGIN PRIVATE KEY-----\n{KEY_LINES}\n-----END PRIVATE KEY-----",
        "MIIEvQ",
    ),
}


@pytest.mark.parametrize(("typed", "secret"), TYPED.values(), ids=TYPED)
def test_no_secret_of_a_query_leaves_the_machine(typed: str, secret: str) -> None:
    cleaned = query.plain_text(sending.query(typed, settings()))
    assert secret not in cleaned
    assert "[redacted]" in cleaned


@pytest.mark.parametrize("changes", [{"redact": False}, {"base_url": "http://127.0.0.1:1/v1"}])
def test_a_query_that_stays_here_is_left_as_it_is(changes: dict[str, object]) -> None:
    for typed, _ in TYPED.values():
        assert sending.query(typed, settings(**changes)) == typed


def test_the_local_model_reads_a_query_as_it_is() -> None:
    typed = TYPED["brackets"][0]
    assert sending.query(typed, Settings()) == typed


# --- secrets in the address -------------------------------------------------------------


def configured(address: str) -> Settings:
    return config.parse({"model": "m", "remote": {"baseUrl": address}})


@pytest.mark.parametrize(
    "asked",
    [
        "sig=SECRET",
        "a=1&code=SECRET",
        "sv=2024-01-01&Signature=SECRET",
        "sas=SECRET",
        "auth=SECRET",
        "X-Amz-Credential=SECRET",
        "accessKey=SECRET",
        "x=SECRETaB3dE6gH9jK2mN5pQ8",
        "x=SECRET%2BaB3dE6gH9jK2mN5",
        "x=secret-3f786850-e387-550f-dab8-36ed7e6dc881",
        "v=1&subscription=secret00112233445566778899aabbcc",
    ],
)
def test_a_secret_in_the_address_is_refused_without_showing_it(asked: str) -> None:
    with pytest.raises(ConfigError, match="apiKey") as caught:
        configured(f"https://h/v1?{asked}")
    assert "secret" not in str(caught.value).lower()


@pytest.mark.parametrize(
    "asked",
    [
        "api-version=2024-02-01-preview",
        "deployment=text-embedding-3-large",
        "model=paraphrase-multilingual-mpnet-base-v2",
        "model=Qwen3-Embedding-0.6B-GGUF&a=1",
        "model=some_model/large_model_v2.5",
        "encoding=float&design=flat",
    ],
)
def test_names_and_versions_in_the_address_are_fine(asked: str) -> None:
    assert configured(f"https://h/v1?{asked}").host == "h"
