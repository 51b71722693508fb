"""The embedded default: a model in a child process, without network or key.

Several embedders of one process share one child for the same model and packages. The child
starts on first need, ends when idle, and is restarted a bounded number of times.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import vectors
from ..child import client, engine, wire
from ..errors import BadResponse, EmbedderRefused, EmbedderUnavailable
from . import profiles
from .base import Description, Item

MOST_CHARACTERS = 2500
"""Of a text; callers hand over chunks, so only a text that nobody chunked is cut."""
_QUERY_CHARACTERS = 1000
_QUERY_LIMIT = 4.0
_FRAME_LIMIT = 20.0
_SECONDS_PER_BYTE = 0.01


class LocalEmbedder:
    """Unit vectors from a model in a child process; implements ``base.Embedder``.

    ``vendor`` is the folder with the model's packages, None for those importable here or by
    *python*. ``model`` may give way to ``use-multilingual-centred`` where e5 cannot run:
    :meth:`describe` tells. Texts are cut at ``MOST_CHARACTERS``.
    """

    is_local = True

    def __init__(
        self,
        model: str,
        vendor: Path | None = None,
        python: str | None = None,
        idle_seconds: float = 600.0,
    ) -> None:
        """Raises EmbedderRefused when *model* is not a local one."""
        if model not in engine.KINDS:
            raise EmbedderRefused(
                f"{model!r} is not a local model; known are {', '.join(engine.KINDS)}"
            )
        key = engine.Key(model, vendor, python or sys.executable or "", float(idle_seconds))
        self._engine = engine.find_or_make(key)
        self._closed = False

    @property
    def batch_size(self) -> int:
        """The largest number of texts worth handing over at once."""
        return profiles.find(self._engine.model).batch_size

    def describe(self) -> Description:
        """Return the model in use, which may be another one than asked for."""
        model = self._engine.model
        return Description(provider="local", model=model, dims=engine.KINDS[model].dims)

    def warm(self) -> None:
        """Start the child without waiting for it; raises EmbedderError."""
        self._open()
        self._engine.running()

    def embed_documents(self, texts: Sequence[str]) -> list[Item]:
        """Return one Item for every text, in order; short texts are computed together."""
        self._open()
        model = self._engine.model
        cleaned = [wire.clean(text, MOST_CHARACTERS) for text in texts]
        items: dict[int, Item] = {}
        for frame in _frames(cleaned, engine.KINDS[model]):
            found = self._documents(model, [cleaned[i] for i in frame])
            items.update(zip(frame, found, strict=True))
        return [items[i] for i in range(len(texts))]

    def embed_query(self, text: str, timeout: float) -> list[float]:
        """Return the unit vector of a query within *timeout* seconds, start included."""
        self._open()
        deadline = time.monotonic() + timeout
        cleaned = [wire.clean(text, _QUERY_CHARACTERS)]
        ask = self._asker(self._engine.model, "query", cleaned, client.URGENT, _QUERY_LIMIT)
        try:
            item = ask(deadline)[0]
        except client.ChildEnded:
            try:
                item = ask(deadline)[0]
            except client.ChildEnded as ended:
                raise _died(ended) from None
        if item.vector is None:
            raise BadResponse(f"{self._engine.model}: {item.reason}")
        return item.vector

    def close(self) -> None:
        """Let go of the child; the last embedder that does so ends it."""
        if not self._closed:
            self._closed = True
            engine.let_go(self._engine)

    def _open(self) -> None:
        if self._closed:
            raise EmbedderUnavailable("the embedder is closed")

    def _documents(self, model: str, texts: list[str]) -> list[Item]:
        size = sum(len(text.encode("utf-8")) for text in texts)
        limit = _FRAME_LIMIT + size * _SECONDS_PER_BYTE
        ask = self._asker(model, "document", texts, client.LATER, limit)
        try:
            return ask(None)
        except (client.ChildEnded, BadResponse) as error:
            if len(texts) > 1:
                return [self._documents(model, [text])[0] for text in texts]
            first = error
        try:
            return ask(None)
        except client.ChildEnded:
            return [Item(None, "the model's process died on this text", permanent=True)]
        except BadResponse:
            reason = "the model failed on this text"
            return [Item(None, reason, permanent=not isinstance(first, client.ChildEnded))]

    def _asker(
        self, model: str, kind: str, texts: list[str], priority: int, limit: float
    ) -> Callable[[float | None], list[Item]]:
        header: wire.Header = {"do": "embed", "kind": kind, "texts": texts}

        def ask(deadline: float | None) -> list[Item]:
            if self._engine.model != model:
                raise self._engine.changed()
            reply, body = self._engine.ask(header, priority, limit, deadline)
            return _items(reply, body, len(texts), engine.KINDS[model].dims)

        return ask


def _frames(texts: Sequence[str], kind: engine.Kind) -> list[list[int]]:
    """Return the indexes of *texts* in groups, texts of a like length together."""
    sizes = [len(text.encode("utf-8")) for text in texts]
    frames: list[list[int]] = []
    room = 0
    for i in sorted(range(len(texts)), key=sizes.__getitem__):
        if not frames or room < sizes[i] or len(frames[-1]) >= kind.frame_texts:
            frames.append([])
            room = kind.frame_bytes
        frames[-1].append(i)
        room -= sizes[i]
    return frames


def _items(reply: wire.Header, body: bytes, count: int, dims: int) -> list[Item]:
    step = dims * vectors.BYTES_PER_DIMENSION
    if reply.get("dims") != dims or len(body) != count * step:
        raise BadResponse(f"expected {count} vectors of {dims} numbers, found {len(body)} bytes")
    useless = set(reply.get("bad") or ())
    nothing = Item(None, "the model gave no usable vector for this text", permanent=True)
    return [
        nothing if i in useless else Item(list(vectors.unpack(body[i * step : (i + 1) * step])))
        for i in range(count)
    ]


def _died(ended: client.ChildEnded) -> EmbedderUnavailable:
    how = "hung and was ended" if ended.hung else f"died ({ended.returncode})"
    return EmbedderUnavailable(
        f"the model's process {how} twice in a row; {engine.AGAIN} if it stays so"
    )
