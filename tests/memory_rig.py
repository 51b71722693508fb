"""A memory in a folder of its own, with an embedder in this process that does as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_patch.config import Settings
from hermes_patch.embedders.base import PROBE_TEXT, Description, Item
from hermes_patch.errors import EmbedderUnavailable
from hermes_patch.memory.core import Memory
from hermes_patch.memory.options import Options
from hermes_patch.vectors import normalise
from stub_server import vector

SETTINGS = Settings(
    provider="openai", model="words", base_url="http://127.0.0.1:9/v1", query_budget=5.0
)


class Words:
    """Vectors of the words of a text; ``turn`` makes those of another model of the same size."""

    is_local = True
    batch_size = 16

    def __init__(self, turn: int = 0, model: str = "words") -> None:
        self.turn = turn
        self.model = model
        self.down = False
        self.requests: list[list[str]] = []
        self.before: Callable[[Sequence[str]], None] = lambda texts: None
        self.known: dict[str, Item] = {}

    @property
    def sent(self) -> list[str]:
        """Every text that was to be stored, without the probe sentence."""
        return [text for batch in self.requests for text in batch if text != PROBE_TEXT]

    def describe(self) -> Description:
        return Description("fake", self.model, 64)

    def embed_documents(self, texts: Sequence[str]) -> list[Item]:
        if self.down:
            raise EmbedderUnavailable("the server is down")
        self.requests.append(list(texts))
        self.before(texts)
        return [self.known.get(text) or Item(self._unit(text)) for text in texts]

    def embed_query(self, text: str, timeout: float) -> list[float]:
        if self.down:
            raise EmbedderUnavailable("the server is down")
        self.before([text])
        return self._unit(text)

    def _unit(self, text: str) -> list[float]:
        values = vector(text)
        return normalise(values[self.turn :] + values[: self.turn])

    def close(self) -> None:
        pass


def options(home: Path, **more: Any) -> Options:
    """Return options for the words of a text, with a floor that one shared word in three passes."""
    plain = Options(
        settings=SETTINGS, path=home / "semantic_memory.db", min_score=0.2, duplicate_threshold=0.92
    )
    return replace(plain, **more)


def opened(home: Path, embedder: Words | None = None, **more: Any) -> tuple[Memory, Words]:
    """Open the memory of *home*; return it with its embedder."""
    memory = Memory(options(home, **more))
    words = embedder or Words()
    memory.engine._made["embedder"] = words
    return memory, words
