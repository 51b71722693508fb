"""Vectors of notes: every text cut into chunks, all embedded with no transaction open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import spaces, vectors
from ..embedders import sending
from ..embedders.base import Item
from ..engine import Engine
from ..errors import BadResponse, VectorError
from ..indexer import VERIFY_SECONDS
from ..spaces import Space
from ..store import ChunkVector


@dataclass(frozen=True)
class Embedded:
    """The vectors of one text in order of its chunks; ``reason`` says why there are none."""

    chunks: Sequence[ChunkVector] = ()
    reason: str = ""


class Vectoriser:
    """Embeds notes in the space the engine has verified."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._verified: tuple[Space, float] | None = None

    def space(self, ticks: float) -> Space:
        """Return the space in use, asked of the embedder at most every ten minutes.

        *ticks* is ``time.monotonic()``. Raises EmbedderError.
        """
        engine = self._engine
        if self._verified is not None and ticks < self._verified[1]:
            with engine.reader() as conn:
                if spaces.has(conn, self._verified[0]):
                    return self._verified[0]
        made = spaces.verify(engine, engine.embedder, engine.indexer.key())
        engine.indexer.verified = made
        self._verified = (made, ticks + VERIFY_SECONDS)
        return made

    def embed(self, texts: Sequence[str], space: Space) -> list[Embedded]:
        """Return the vectors of *texts*, in order, from one batch.

        Raises:
            EmbedderError: no vectors could be had for any of them.
        """
        settings = self._engine.settings
        cut = [sending.chunks(text, settings) for text in texts]
        flat = [chunk.text for chunks in cut for chunk in chunks]
        if not flat:
            return []
        try:
            items = self._engine.embedder.embed_documents(flat)
        except Exception:
            self._verified = None  # it may come back as another
            raise
        if len(items) != len(flat):
            raise BadResponse(f"{len(flat)} texts gave {len(items)} vectors")
        result, at = [], 0
        for chunks in cut:
            own = items[at : at + len(chunks)]
            at += len(chunks)
            bounds = [(chunk.start, chunk.end) for chunk in chunks]
            result.append(_together(bounds, own, space.dims))
        return result


def _together(bounds: Sequence[tuple[int, int]], items: Sequence[Item], dims: int) -> Embedded:
    made = []
    for number, ((start, end), item) in enumerate(zip(bounds, items, strict=True)):
        if item.vector is None:
            return Embedded(reason=item.reason or "no vector")
        try:
            made.append(ChunkVector(number, start, end, vectors.to_blob(item.vector, dims)))
        except VectorError as error:
            return Embedded(reason=str(error))
    return Embedded(made)
