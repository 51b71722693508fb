"""What every embedder offers, whatever computes the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

PROBE_TEXT = "The quick brown fox jumps over the lazy dog. 敏捷的棕色狐狸跳过了懒狗。"
"""Embedded once per space; another engine behind the same name gives another vector."""


UNTRIED = "not tried: "
"""How the reason of an Item begins whose text was not at fault: the server went away."""


@dataclass(frozen=True)
class Item:
    """The outcome for one text: a unit vector, or the reason why there is none.

    ``permanent`` is True when asking again would give the same answer (the text alone is
    too long) and False when a later attempt may pass (the vector came back as NaN).
    """

    vector: list[float] | None
    reason: str = ""
    permanent: bool = False


@dataclass(frozen=True)
class Description:
    """What identifies the vectors of an embedder; equal descriptions, comparable vectors."""

    provider: str
    model: str
    dims: int | None
    document_prefix: str = ""
    query_prefix: str = ""
    extra: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into unit vectors.

    All methods may be called from several threads. They raise EmbedderError subclasses
    only; no exception holds a text or a key.
    """

    @property
    def is_local(self) -> bool:
        """True when no text leaves this machine (in-process child or loopback server)."""

    @property
    def batch_size(self) -> int:
        """The largest number of texts worth handing to :meth:`embed_documents` at once."""

    def describe(self) -> Description:
        """Return what identifies the vectors, without any request."""

    def embed_documents(self, texts: Sequence[str]) -> list[Item]:
        """Return one Item for every text, in order.

        A text that alone makes the batch fail becomes an Item with a reason; the rest is
        returned. Raises EmbedderUnavailable or EmbedderRefused if nothing could be had.
        """

    def embed_query(self, text: str, timeout: float) -> list[float]:
        """Return the unit vector of a query within *timeout* seconds."""

    def close(self) -> None:
        """Release connections and processes; safe to call twice."""
