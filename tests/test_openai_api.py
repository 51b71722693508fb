"""An embedding server misbehaves in every known way; each test names what holds all the same."""

from __future__ import annotations

import base64
import json
import logging
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from fakes import unit
from hermes_patch import embedders
from hermes_patch.config import Settings
from hermes_patch.embedders import exchange, protocol
from hermes_patch.embedders.base import PROBE_TEXT, UNTRIED, Embedder, Item
from hermes_patch.embedders.openai_api import OpenAIEmbedder
from hermes_patch.errors import (
    BadResponse,
    ConfigError,
    EmbedderError,
    EmbedderRefused,
    EmbedderUnavailable,
    QueryRefused,
)
from hermes_patch.vectors import cosine

KEY = "sk-verysecretkey0123456789"
DIMS = 8
Reply = httpx.Response | Exception | None


class Server:
    """The far side: answers as OpenAI does unless ``refuse`` says otherwise."""

    def __init__(self, refuse: Callable[[list[str]], Reply] | None = None) -> None:
        self.refuse = refuse or (lambda texts: None)
        self.shape: Callable[[list[dict[str, Any]]], Any] = lambda data: data
        self.embed: Callable[[str], Any] = unit
        self.requests: list[httpx.Request] = []
        self.bodies: list[dict[str, Any]] = []

    @property
    def sizes(self) -> list[int]:
        return [len(body["input"]) for body in self.bodies]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append(request)
        self.bodies.append(body)
        texts = [part["text"] if isinstance(part, dict) else part for part in body["input"]]
        refusal = self.refuse(texts)
        if isinstance(refusal, Exception):
            raise refusal
        if refusal is not None:
            return refusal
        data = [{"index": i, "embedding": self.embed(text)} for i, text in enumerate(texts)]
        content = json.dumps({"data": self.shape(data)})
        return httpx.Response(200, content=content)


def settings(**changes: Any) -> Settings:
    values = {
        "provider": "openai",
        "model": "some-model",
        "base_url": "https://embed.example/v1",
        "api_key": KEY,
        "batch_size": 32,
    }
    return Settings(**{**values, **changes})


def embedder(
    server: Callable[[httpx.Request], httpx.Response],
    sleeps: list[float] | None = None,
    **changes: Any,
) -> OpenAIEmbedder:
    waited = [] if sleeps is None else sleeps
    return OpenAIEmbedder(settings(**changes), httpx.MockTransport(server), waited.append)


def texts(count: int) -> list[str]:
    return [f"text number {i}" for i in range(count)]


def close_to(item: Item, text: str) -> bool:
    return item.vector is not None and cosine(item.vector, unit(text)) > 0.999999


def in_turn(*replies: Reply) -> Callable[[list[str]], Reply]:
    """Give *replies* one after the other, the last one for ever."""
    left = list(replies)
    return lambda texts: left.pop(0) if len(left) > 1 else left[0]


def error(status: int, code: str | None = None, **headers: str) -> httpx.Response:
    body = {"error": {"message": f"bad key {KEY}", "code": code, "type": "some_error"}}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers=names)


# --- addresses and bodies ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("http://host:81", "http://host:81/v1/embeddings"),
        ("http://host:81/", "http://host:81/v1/embeddings"),
        ("https://host/v1", "https://host/v1/embeddings"),
        ("https://host/v1/", "https://host/v1/embeddings"),
        ("https://host/v1/embeddings", "https://host/v1/embeddings"),
        ("https://host/v1/embeddings/", "https://host/v1/embeddings"),
        ("https://host/api/v3", "https://host/api/v3/embeddings"),
        ("https://host/a/embeddings?api-version=1", "https://host/a/embeddings?api-version=1"),
        ("https://host/x/embeddings/multimodal", "https://host/x/embeddings/multimodal"),
        ("http://[::1]:81/v1", "http://[::1]:81/v1/embeddings"),
    ],
)
def test_the_address_is_completed_only_where_something_is_missing(base: str, expected: str) -> None:
    server = Server()
    embedder(server, base_url=base).embed_query("q", 5)
    assert str(server.requests[0].url) == expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("https://ark.example/api/v3", "/api/v3/embeddings/multimodal"),
        ("https://ark.example/api/v3/embeddings", "/api/v3/embeddings/multimodal"),
        ("https://ark.example/api/v3/embeddings/multimodal", "/api/v3/embeddings/multimodal"),
    ],
)
def test_a_multimodal_model_is_asked_at_its_own_path(base: str, expected: str) -> None:
    server = Server()
    embedder(server, base_url=base, multimodal=True).embed_query("q", 5)
    assert server.requests[0].url.path == expected


def test_floats_are_asked_for_and_the_key_is_sent_as_a_bearer_token() -> None:
    server = Server()
    embedder(server).embed_documents(["hello"])
    expected = {"model": "some-model", "input": ["hello"], "encoding_format": "float"}
    assert server.bodies == [expected]
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


def test_no_authorization_is_sent_without_a_key() -> None:
    server = Server()
    embedder(server, api_key="").embed_documents(["hello"])
    assert "Authorization" not in server.requests[0].headers


def test_userinfo_in_the_address_becomes_basic_authentication() -> None:
    server = Server()
    embedder(server, api_key="", base_url="https://me:p%40ss@host/v1").embed_documents(["hello"])
    expected = base64.b64encode(b"me:p@ss").decode()
    assert server.requests[0].headers["Authorization"] == f"Basic {expected}"
    assert server.requests[0].url.userinfo == b""


@pytest.mark.parametrize(("asked", "sent"), [(True, 8), (False, None)])
def test_dimensions_are_sent_only_if_the_user_set_them(asked: bool, sent: int | None) -> None:
    server = Server()
    embedder(server, dimensions=8, send_dimensions=asked).embed_documents(["hello"])
    assert server.bodies[0].get("dimensions") == sent


def test_documents_and_queries_get_their_own_prefix() -> None:
    server = Server()
    e = embedder(server, document_prefix="passage: ", query_prefix="query: ")
    e.embed_documents(["a"])
    e.embed_query("b", 5)
    assert [body["input"] for body in server.bodies] == [["passage: a"], ["query: b"]]


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("lone \ud83d surrogate", "lone \ufffd surrogate"),
        ("a pair \ud83d\ude00 in two halves", "a pair 😀 in two halves"),
        ("nul\0byte", "nul byte"),
        ("astral 😀 and שלום", "astral 😀 and שלום"),
    ],
)
def test_text_that_is_not_valid_unicode_is_made_harmless(text: str, sent: str) -> None:
    server = Server()
    embedder(server).embed_documents([text])
    assert server.bodies[0]["input"] == [sent]


def test_a_prefix_that_is_not_valid_unicode_is_made_harmless() -> None:
    server = Server()
    embedder(server, document_prefix="\ud83d: ").embed_documents(["a"])
    assert server.bodies[0]["input"] == ["\ufffd: a"]


def test_an_empty_text_is_not_sent_and_gets_a_reason() -> None:
    server = Server()
    items = embedder(server).embed_documents(["a", " \0\n", "b"])
    assert server.bodies[0]["input"] == ["a", "b"]
    assert items[1] == Item(None, "empty text", permanent=True)
    assert close_to(items[2], "b")


def test_no_text_means_no_request() -> None:
    server = Server()
    assert embedder(server).embed_documents([]) == []
    assert not server.requests


# --- redaction and where texts go -------------------------------------------------------


def test_secrets_are_redacted_before_a_text_leaves_the_machine() -> None:
    server = Server()
    e = embedder(server)
    e.embed_documents(["token ghp_abcdefghijklmnopqrstuvwxyz0123456789"])
    e.embed_query("what is postgres://u:hunter22@db/x", 5)
    assert [body["input"][0] for body in server.bodies] == [
        "token [redacted]",
        "what is postgres://u:[redacted]@db/x",
    ]


@pytest.mark.parametrize(
    "changes", [{"redact": False}, {"base_url": "http://127.0.0.1:8080"}], ids=["off", "loopback"]
)
def test_texts_are_left_alone_if_told_so_or_if_they_stay_here(changes: dict[str, Any]) -> None:
    server = Server()
    embedder(server, **changes).embed_documents(["token ghp_abcdefghijklmnopqrstuvwxyz"])
    assert server.bodies[0]["input"] == ["token ghp_abcdefghijklmnopqrstuvwxyz"]


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A TCP server on a free port; *serve* gets every connection in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with connection:
                try:
                    serve(connection)
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)


def _answer(connection: socket.socket) -> None:
    connection.recv(65536)
    content = json.dumps({"data": [{"index": 0, "embedding": [1.0, 0.0]}]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)


def _dead_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_loopback_server_is_reached_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, _dead_port())
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with listener(_answer) as url:
        assert OpenAIEmbedder(settings(base_url=url)).embed_query("q", 10) == [1.0, 0.0]


def test_a_remote_server_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with listener(_answer) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("http_proxy", url)
        e = OpenAIEmbedder(settings(base_url="http://embed.invalid/v1"))
        assert e.embed_query("q", 10) == [1.0, 0.0]


def test_a_proxy_that_cannot_be_used_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://me:proxypassword@127.0.0.1:1")
    e = OpenAIEmbedder(settings())
    with pytest.raises(EmbedderError) as caught:
        e.embed_query("q", 5)
    assert "proxypassword" not in str(caught.value)


# --- answers ----------------------------------------------------------------------------


def test_vectors_are_matched_by_index_when_the_server_shuffles() -> None:
    server = Server()
    server.shape = lambda data: random.Random(1).sample(data, len(data))
    asked = texts(10)
    items = embedder(server).embed_documents(asked)
    assert all(map(close_to, items, asked))


def test_answers_without_any_index_are_taken_in_order() -> None:
    server = Server()
    server.shape = lambda data: [{"embedding": entry["embedding"]} for entry in data]
    asked = texts(3)
    assert all(map(close_to, embedder(server).embed_documents(asked), asked))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: [*data, {"index": len(data), "embedding": [1.0]}],
        lambda data: [{**data[0], "index": 1}, *data[1:]],
        lambda data: [{"embedding": data[0]["embedding"]}, *data[1:]],
        lambda data: [{**data[0], "index": 99}, *data[1:]],
        lambda data: [{**data[0], "index": -1}, *data[1:]],
        lambda data: [{**data[0], "index": "0"}, *data[1:]],
        lambda data: [{**data[0], "index": False}, *data[1:]],
        lambda data: [],
        lambda data: None,
        lambda data: "text",
        lambda data: [1, 2, 3],
    ],
    ids=[
        "fewer", "more", "duplicate", "missing", "too-large", "negative", "string", "boolean",
        "none", "null", "text", "numbers",
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_assigned_fails_the_batch(spoil: Callable[..., Any]) -> None:
    server = Server()
    server.shape = spoil
    with pytest.raises(BadResponse):
        embedder(server).embed_documents(texts(3))


@pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_an_answer_that_is_not_json_is_a_bad_response(content: bytes) -> None:
    e = embedder(Server(lambda texts: httpx.Response(200, content=content)))
    with pytest.raises(BadResponse):
        e.embed_documents(["a"])


def test_an_answer_that_cannot_be_decompressed_is_a_bad_response() -> None:
    def refuse(texts: list[str]) -> Reply:
        stream = httpx.ByteStream(b"not gzip")
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=stream)

    with pytest.raises(BadResponse):
        embedder(Server(refuse)).embed_documents(["a"])


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield b"0" * 10_000

    monkeypatch.setattr(exchange, "MAX_ANSWER", 100_000)
    e = embedder(Server(lambda texts: httpx.Response(200, stream=Endless())))
    with pytest.raises(BadResponse, match="larger than"):
        e.embed_documents(["a"])


def test_base64_vectors_are_understood() -> None:
    server = Server()
    server.embed = lambda text: base64.b64encode(struct.pack("<8f", *unit(text))).decode()
    assert close_to(embedder(server).embed_documents(["a"])[0], "a")


@pytest.mark.parametrize(
    "bad",
    [
        [float("nan")] * DIMS,
        [float("inf"), *[0.0] * (DIMS - 1)],
        [0.0] * DIMS,
        [1.0] * (DIMS + 1),
        ["1.0"] * DIMS,
        [True] * DIMS,
        [None] * DIMS,
        [1e154] * DIMS,
        [10**400] * DIMS,
        [[1.0]] * DIMS,
        [],
        {},
        None,
        "no base64!",
        "AAA=",
    ],
    ids=[
        "nan", "inf", "zero", "length", "strings", "booleans", "nulls", "overflow", "huge", "lists",
        "empty", "mapping", "null", "no-base64", "odd-base64",
    ],
)  # fmt: skip
def test_one_bad_vector_among_ten_costs_that_one_only(bad: Any) -> None:
    server = Server()
    server.embed = lambda text: bad if "4" in text else unit(text)
    asked = texts(10)
    items = embedder(server).embed_documents(asked)
    assert [close_to(item, text) for item, text in zip(items, asked, strict=True)] == [
        i != 4 for i in range(10)
    ]
    assert items[4].vector is None
    assert items[4].reason
    assert not items[4].permanent


def test_numbers_without_a_fraction_are_numbers() -> None:
    server = Server()
    server.embed = lambda text: [0, 3, 4]
    assert embedder(server).embed_documents(["a"])[0].vector == pytest.approx([0, 0.6, 0.8])


def test_the_first_answer_settles_the_dimensions() -> None:
    server = Server()
    e = embedder(server)
    e.embed_query("q", 5)
    server.embed = lambda text: unit(text, 9) if "0" in text else unit(text)
    assert [item.vector is None for item in e.embed_documents(texts(3))] == [True, False, False]


def test_a_wrong_first_vector_does_not_settle_the_dimensions() -> None:
    server = Server()
    server.embed = lambda text: unit(text, 9) if "0" in text else unit(text)
    items = embedder(server).embed_documents(texts(3))
    assert [item.vector is None for item in items] == [True, False, False]


def test_dimensions_that_only_a_profile_names_give_way_to_the_servers() -> None:
    items = embedder(Server(), dimensions=2048).embed_documents(texts(3))
    assert all(item.vector for item in items)


def test_dimensions_that_the_user_set_and_the_server_ignores_are_refused() -> None:
    e = embedder(Server(), dimensions=4, send_dimensions=True)
    with pytest.raises(EmbedderRefused, match="8 dimensions, expected 4"):
        e.embed_documents(texts(3))


def test_a_server_that_changes_its_dimensions_is_refused() -> None:
    server = Server()
    e = embedder(server)
    e.embed_documents(texts(3))
    server.embed = lambda text: unit(text, 16)
    with pytest.raises(EmbedderRefused, match="16 dimensions, expected 8"):
        e.embed_documents(texts(3))


def test_the_description_does_not_change_with_the_first_answer() -> None:
    e = embedder(Server(), document_prefix="d: ", query_prefix="q: ")
    before = e.describe()
    e.embed_documents(["a"])
    assert e.describe() == before
    assert (before.provider, before.model, before.dims) == ("openai", "some-model", None)
    assert (before.document_prefix, before.query_prefix) == ("d: ", "q: ")


# --- batches ----------------------------------------------------------------------------


def _culprit(status: int, marker: str = "17") -> Callable[[list[str]], Reply]:
    return lambda texts: error(status) if any(marker in text for text in texts) else None


@pytest.mark.parametrize(
    ("status", "permanent"), [(400, True), (413, True), (422, True), (500, False)]
)
def test_one_text_that_fails_the_batch_stands_alone_in_the_end(
    status: int, permanent: bool
) -> None:
    asked = texts(32)
    items = embedder(Server(_culprit(status))).embed_documents(asked)
    assert [i for i, item in enumerate(items) if item.vector is None] == [17]
    assert items[17].permanent is permanent
    assert str(status) in items[17].reason
    assert all(close_to(items[i], asked[i]) for i in range(32) if i != 17)


def test_a_culprit_does_not_lower_the_batch_size() -> None:
    e = embedder(Server(_culprit(400)))
    e.embed_documents(texts(32))
    assert e.batch_size == 32


def test_a_text_refused_on_its_own_does_not_raise() -> None:
    (item,) = embedder(Server(_culprit(400, "long"))).embed_documents(["much too long"])
    assert item.permanent


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_servers_limit_is_found_once_and_remembered(status: int) -> None:
    server = Server(lambda texts: error(status) if len(texts) > 10 else None)
    e = embedder(server)
    asked = texts(32)
    assert all(map(close_to, e.embed_documents(asked), asked))
    assert e.batch_size == 8
    server.bodies.clear()
    e.embed_documents(asked)
    assert server.sizes == [8, 8, 8, 8]


def test_a_failing_batch_does_not_lower_the_batch_size() -> None:
    # 500 says nothing about the number of texts.
    server = Server(in_turn(error(500), None))
    e = embedder(server)
    e.embed_documents(texts(8))
    assert (server.sizes, e.batch_size) == ([8, 4, 4], 32)


def test_requests_hold_about_a_megabyte_at_most() -> None:
    server = Server()
    asked = ["字" * 100_000 + str(i) for i in range(8)]
    items = embedder(server).embed_documents(asked)
    assert server.sizes == [3, 3, 2]
    assert max(len(request.content) for request in server.requests) < 1_100_000
    assert all(map(close_to, items, asked))


def test_a_text_larger_than_a_request_is_sent_alone() -> None:
    server = Server()
    embedder(server).embed_documents(["a", "b" * 1_500_000, "c"])
    assert server.sizes == [1, 1, 1]


def test_a_request_refused_for_every_text_is_refused_and_no_text_is_blamed() -> None:
    server = Server(lambda texts: error(400, "unknown_parameter"))
    with pytest.raises(EmbedderRefused, match="unknown_parameter"):
        embedder(server).embed_documents(texts(32))
    assert len(server.requests) <= 8


def test_a_server_broken_for_every_text_is_unavailable_after_few_requests() -> None:
    server = Server(lambda texts: error(500))
    with pytest.raises(EmbedderUnavailable):
        embedder(server).embed_documents(texts(32))
    assert len(server.requests) <= 8


def test_what_was_had_before_the_server_went_away_is_returned() -> None:
    server = Server()
    server.refuse = lambda texts: error(503) if len(server.requests) > 2 else None
    asked = texts(40)
    items = embedder(server, batch_size=10).embed_documents(asked)
    assert all(map(close_to, items[:20], asked[:20]))
    assert all(item.reason.startswith(UNTRIED) for item in items[20:])
    assert not any(item.permanent for item in items)


def test_a_batch_that_takes_too_long_is_made_smaller() -> None:
    server = Server(lambda texts: httpx.ReadTimeout("slow") if len(texts) > 8 else None)
    e = embedder(server)
    asked = texts(32)
    assert all(map(close_to, e.embed_documents(asked), asked))
    assert server.sizes[:3] == [32, 16, 8]


def test_a_batch_grows_again_when_answers_come_quickly() -> None:
    server = Server(in_turn(httpx.ReadTimeout("slow"), None))
    e = embedder(server)
    e.embed_documents(texts(32))
    assert e.batch_size == 16
    e.embed_documents(texts(16))
    assert e.batch_size == 32


def test_a_text_that_hangs_the_server_does_not_hold_up_the_others() -> None:
    server = Server(lambda texts: httpx.ReadTimeout("x") if "hang" in texts[0] else None)
    e = embedder(server, batch_size=1)
    items = e.embed_documents(["a", "hang", "b"])
    assert [item.vector is None for item in items] == [False, True, False]
    assert not items[1].permanent


# --- waiting ----------------------------------------------------------------------------


def test_retry_after_seconds_are_waited() -> None:
    sleeps: list[float] = []
    server = Server(in_turn(error(429, Retry_After="7"), error(503, Retry_After="2"), None))
    items = embedder(server, sleeps).embed_documents(["a"])
    assert sleeps == [7, 2]
    assert close_to(items[0], "a")


def test_a_retry_after_date_is_waited_for() -> None:
    sleeps: list[float] = []
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    embedder(Server(in_turn(error(429, Retry_After=date), None)), sleeps).embed_documents(["a"])
    assert 20 < sleeps[0] <= 30


@pytest.mark.parametrize("header", ["86400", "1e9", "inf"])
def test_a_wait_is_bounded(header: str) -> None:
    sleeps: list[float] = []
    embedder(Server(in_turn(error(429, Retry_After=header), None)), sleeps).embed_documents(["a"])
    assert sleeps == [60]


@pytest.mark.parametrize("header", ["soon", "", "nan"])
def test_a_retry_after_that_says_nothing_means_growing_back_off(header: str) -> None:
    sleeps: list[float] = []
    refusal = [error(429, Retry_After=header) for _ in range(3)]
    embedder(Server(in_turn(*refusal, None)), sleeps).embed_documents(["a"])
    assert all(low <= s <= 3 * low for low, s in zip((0.5, 1, 2), sleeps, strict=True))


@pytest.mark.parametrize("header", ["-5", "Mon, 01 Jan 2001 00:00:00 GMT"])
def test_a_retry_after_in_the_past_is_no_wait(header: str) -> None:
    assert protocol.retry_after(header) == 0


def test_a_busy_server_is_asked_four_times_at_most() -> None:
    server = Server(lambda texts: error(429, Retry_After="9"))
    with pytest.raises(EmbedderUnavailable) as caught:
        embedder(server).embed_documents(texts(5))
    assert caught.value.retry_after == 9
    assert len(server.requests) == 4


def test_an_exhausted_quota_is_refused_at_once() -> None:
    server = Server(lambda texts: error(429, "insufficient_quota", Retry_After="1"))
    with pytest.raises(EmbedderRefused, match="quota"):
        embedder(server).embed_documents(texts(5))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "apiKey"),
        (403, "apiKey"),
        (404, "baseUrl"),
        (405, "baseUrl"),
        (402, "balance"),
        (301, "final address"),
        (308, "final address"),
        (418, "not an answer"),
    ],
)
def test_a_refusal_names_what_to_do_and_is_not_repeated(status: int, remedy: str) -> None:
    reply = error(status, Location="https://elsewhere.example/v1/embeddings")
    server = Server(lambda texts: reply)
    with pytest.raises(EmbedderRefused, match=remedy):
        embedder(server).embed_documents(texts(5))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("x"),
        httpx.ConnectTimeout("x"),
        httpx.RemoteProtocolError("x"),
        httpx.ReadError("x"),
        error(502),
        error(504),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 5])
def test_a_broken_connection_is_tried_three_times(failure: Reply, count: int) -> None:
    server = Server(lambda texts: failure)
    with pytest.raises(EmbedderUnavailable):
        embedder(server).embed_documents(texts(count))
    assert server.sizes == [count] * 3


@pytest.mark.parametrize("failure", [httpx.ReadTimeout("x"), error(500)], ids=str)
def test_a_single_text_that_fails_is_tried_again_before_a_probe_tells_the_cause(
    failure: Reply,
) -> None:
    server = Server(lambda texts: failure)
    with pytest.raises(EmbedderUnavailable):
        embedder(server).embed_documents(["a"])
    assert [body["input"] for body in server.bodies] == [["a"], ["a"], [PROBE_TEXT]]


def test_a_connection_that_breaks_once_costs_nothing() -> None:
    server = Server(in_turn(httpx.ReadError("x"), None))
    assert close_to(embedder(server).embed_documents(["a"])[0], "a")


@pytest.mark.parametrize(
    "failure",
    [error(429, Retry_After="1"), error(500), error(502), httpx.ConnectError("x")],
    ids=str,
)
def test_a_query_is_tried_once_and_never_waits(failure: Reply) -> None:
    sleeps: list[float] = []
    server = Server(lambda texts: failure)
    with pytest.raises(EmbedderUnavailable):
        embedder(server, sleeps).embed_query("q", 5)
    assert (len(server.requests), sleeps) == (1, [])


def test_a_query_that_is_too_long_says_so() -> None:
    with pytest.raises(QueryRefused):
        embedder(Server(lambda texts: error(400))).embed_query("q", 5)


def test_a_query_without_a_usable_vector_is_a_bad_response() -> None:
    server = Server()
    server.embed = lambda text: [0.0] * DIMS
    with pytest.raises(BadResponse, match="zero"):
        embedder(server).embed_query("q", 5)


def test_a_query_without_words_is_not_sent() -> None:
    server = Server()
    with pytest.raises(EmbedderError):
        embedder(server).embed_query(" \n", 5)
    assert not server.requests


def test_a_query_without_time_is_not_sent() -> None:
    server = Server()
    with pytest.raises(EmbedderUnavailable):
        embedder(server).embed_query("q", 0)
    assert not server.requests


# --- deadlines, over real sockets -------------------------------------------------------


def _until_closed(connection: socket.socket, drop: bytes) -> None:
    # Paced by the far side's patience alone: ends when the client hangs up.
    connection.settimeout(0.005)
    while True:
        try:
            if not connection.recv(65536):
                return
        except TimeoutError:
            connection.sendall(drop)


def _silent(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def _dripping_head(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Endless: ")
    _until_closed(connection, b"x")


def _dripping_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    _until_closed(connection, b" ")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("serve", [_silent, _dripping_head, _dripping_body])
def test_a_query_ends_in_time_although_the_answer_never_does(
    serve: Callable[[socket.socket], None],
) -> None:
    with listener(serve) as url, pytest.raises(EmbedderUnavailable, match="0.3 s"):
        OpenAIEmbedder(settings(base_url=url)).embed_query("q", 0.3)


@pytest.mark.timeout(60)
def test_documents_end_in_time_although_the_answer_never_does() -> None:
    with listener(_dripping_body) as url:
        e = OpenAIEmbedder(settings(base_url=url, timeout=0.2), sleep=lambda seconds: None)
        with pytest.raises(EmbedderUnavailable):
            e.embed_documents(["a"])


@pytest.mark.timeout(60)
def test_requests_that_hang_for_ever_do_not_shut_out_later_ones() -> None:
    hanging = threading.Event()
    hanging.set()

    def serve(connection: socket.socket) -> None:
        (_dripping_head if hanging.is_set() else _answer)(connection)

    with listener(serve) as url:
        e = OpenAIEmbedder(settings(base_url=url))
        for _ in range(exchange.CONCURRENT + 1):
            with pytest.raises(EmbedderUnavailable):
                e.embed_query("q", 0.3)
        hanging.clear()
        assert e.embed_query("q", 30) == [1.0, 0.0]


def test_a_refused_connection_is_unavailable() -> None:
    e = OpenAIEmbedder(settings(base_url=_dead_port()))
    with pytest.raises(EmbedderUnavailable, match="running"):
        e.embed_query("q", 10)


@pytest.mark.timeout(60)
def test_a_request_that_was_given_up_hangs_up() -> None:
    hung_up = threading.Event()

    def serve(connection: socket.socket) -> None:
        try:
            _dripping_body(connection)
        finally:
            hung_up.set()

    with listener(serve) as url:
        with pytest.raises(EmbedderUnavailable):
            OpenAIEmbedder(settings(base_url=url)).embed_query("q", 0.3)
        assert hung_up.wait(30)


@pytest.mark.timeout(60)
def test_closing_wakes_who_waits_for_an_answer() -> None:
    asked, over = threading.Event(), threading.Event()

    def never(texts: list[str]) -> Reply:
        asked.set()
        over.wait(60)
        return None

    e = embedder(Server(never))
    threading.Thread(target=lambda: (asked.wait(30), e.close()), daemon=True).start()
    with pytest.raises(EmbedderUnavailable, match="closed"):
        e.embed_query("q", 600)
    over.set()


@pytest.mark.timeout(60)
def test_closing_ends_a_wait() -> None:
    asked = threading.Event()

    def refuse(texts: list[str]) -> Reply:
        asked.set()
        return error(429, Retry_After="60")

    e = OpenAIEmbedder(settings(), httpx.MockTransport(Server(refuse)))
    threading.Thread(target=lambda: (asked.wait(30), e.close()), daemon=True).start()
    with pytest.raises(EmbedderUnavailable, match="closed"):
        e.embed_documents(["a"])


def test_a_closed_embedder_says_so_and_can_be_closed_again() -> None:
    server = Server()
    e = embedder(server)
    e.embed_query("q", 5)
    e.close()
    e.close()
    with pytest.raises(EmbedderUnavailable, match="closed"):
        e.embed_query("q", 5)
    assert len(server.requests) == 1


def test_many_threads_get_their_own_vectors() -> None:
    e = embedder(Server())
    wrong: list[str] = []

    def work(name: str) -> None:
        for i in range(20):
            asked = [f"{name} {i} {j}" for j in range(3)]
            if not all(map(close_to, e.embed_documents(asked), asked)):
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(f"thread {n}",)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- Volcengine's form ------------------------------------------------------------------


def _ark(server: Server) -> Server:
    server.shape = lambda data: {"embedding": data[0]["embedding"]}
    return server


def test_a_multimodal_model_gets_one_text_a_request_with_pauses_between() -> None:
    sleeps: list[float] = []
    server = _ark(Server())
    e = embedder(server, sleeps, multimodal=True, pause=0.5, batch_size=10)
    asked = texts(3)
    assert all(map(close_to, e.embed_documents(asked), asked))
    assert server.bodies == [
        {"model": "some-model", "input": [{"type": "text", "text": text}]} for text in asked
    ]
    assert sleeps == [0.5, 0.5]
    assert e.batch_size == 10


def test_a_multimodal_answer_may_be_a_list_of_one() -> None:
    assert close_to(embedder(Server(), multimodal=True).embed_documents(["a"])[0], "a")


def test_a_multimodal_path_is_enough_to_use_its_form() -> None:
    server = _ark(Server())
    embedder(server, base_url="https://h/api/v3/embeddings/multimodal").embed_query("q", 5)
    assert server.bodies[0]["input"] == [{"type": "text", "text": "q"}]


def test_a_gateway_without_the_multimodal_path_is_asked_in_the_plain_form() -> None:
    server = Server()

    def gateway(request: httpx.Request) -> httpx.Response:
        answer = server(request)
        return error(404) if request.url.path.endswith("multimodal") else answer

    e = embedder(gateway, multimodal=True)
    asked = texts(3)
    assert all(map(close_to, e.embed_documents(asked), asked))
    paths = [request.url.path for request in server.requests]
    assert paths == ["/v1/embeddings/multimodal", "/v1/embeddings", "/v1/embeddings"]


def test_an_unknown_multimodal_model_is_refused() -> None:
    server = Server(lambda texts: error(404, "InvalidEndpointOrModel.NotFound"))
    e = embedder(server, multimodal=True)
    with pytest.raises(EmbedderRefused, match="InvalidEndpointOrModel"):
        e.embed_documents(["a"])


# --- secrets ----------------------------------------------------------------------------


def _echo(status: int) -> Callable[[list[str]], Reply]:
    def refuse(texts: list[str]) -> Reply:
        body = {
            "error": {
                "message": f"{KEY} may not embed {texts[0]}",
                "code": KEY,
                "type": texts[0].split()[0],
            }
        }
        return httpx.Response(status, json=body)

    return refuse


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 429, 500, 503])
def test_neither_key_nor_text_is_in_an_error(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    e = embedder(Server(_echo(status)), base_url="https://me:hunter22@embed.example/v1")
    with pytest.raises(EmbedderError) as caught:
        e.embed_documents(["confidential words"])
    chain: list[BaseException] = [caught.value]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    shown = caplog.text + repr(e) + "".join(f"{link!r}{link}" for link in chain)
    assert not [secret for secret in (KEY, "hunter22", "confidential") if secret in shown]


def test_neither_key_nor_text_is_in_a_reason() -> None:
    def refuse(texts: list[str]) -> Reply:
        return _echo(400)(texts) if "confidential" in texts[0] else None

    (item,) = embedder(Server(refuse)).embed_documents(["confidential words"])
    assert item.reason == "embed.example answered HTTP 400"


@pytest.mark.parametrize("part", [KEY[:12], KEY[5:20], f"bad_{KEY}"])
def test_a_part_of_the_key_is_no_error_code(part: str) -> None:
    assert protocol.codes(json.dumps({"error": {"code": part}}).encode(), b"", (KEY,)) == ()


def test_a_sentence_is_no_error_code() -> None:
    assert protocol.codes(b'{"error": {"code": "you said: hello"}}', b"", ()) == ()


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_a_key_that_no_header_can_carry_is_a_config_error_without_the_key(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        embedder(Server(), api_key=key)
    assert key not in str(caught.value)


def test_an_unexpected_error_shows_its_type_only() -> None:
    e = embedder(Server(lambda texts: RuntimeError(f"header {KEY}")))
    with pytest.raises(EmbedderUnavailable, match="RuntimeError") as caught:
        e.embed_query("q", 5)
    assert KEY not in str(caught.value)


# --- the factory ------------------------------------------------------------------------


def test_the_factory_makes_an_embedder_of_the_protocol_without_connecting() -> None:
    made = embedders.create(settings())
    assert isinstance(made, OpenAIEmbedder)
    assert isinstance(made, Embedder)
    assert not made.is_local
    made.close()


def test_a_loopback_server_is_local() -> None:
    assert embedder(Server(), base_url="http://localhost:1/v1").is_local


def test_there_is_no_embedder_when_it_is_off() -> None:
    with pytest.raises(ConfigError):
        embedders.create(Settings(provider="off"))
