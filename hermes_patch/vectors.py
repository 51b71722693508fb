"""Vectors as they are stored: little-endian float32, of unit length."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence

from .errors import VectorError

BYTES_PER_DIMENSION = 4


def normalise(values: Sequence[float], dims: int | None = None) -> list[float]:
    """Return *values* scaled to unit length.

    Raises:
        VectorError: *values* is empty, has another length than *dims*, is not made of
            finite numbers, or is all zero.
    """
    if not values:
        raise VectorError("empty vector")
    if dims is not None and len(values) != dims:
        raise VectorError(f"vector has {len(values)} dimensions, expected {dims}")
    floats = values if set(map(type, values)) == {float} else _floats(values)
    norm = math.hypot(*floats)
    if not math.isfinite(norm * norm):
        raise VectorError("vector holds NaN or Inf")
    if norm < 1e-12:
        raise VectorError("vector is all zero")
    return [v / norm for v in floats]


def _floats(values: Sequence[float]) -> list[float]:
    try:
        floats = [float(v) for v in values if not isinstance(v, (str, bytes, bool))]
    except (TypeError, ValueError, OverflowError) as error:
        raise VectorError("vector holds something that is not a number") from error
    if len(floats) != len(values):
        raise VectorError("vector holds something that is not a number")
    return floats


def pack(values: Sequence[float]) -> bytes:
    """Return *values* as little-endian float32 bytes, 4 per dimension."""
    return struct.pack(f"<{len(values)}f", *values)


def unpack(blob: bytes) -> array[float]:
    """Return the float32 numbers in *blob*.

    Raises:
        VectorError: the length of *blob* is not a multiple of four.
    """
    if len(blob) % BYTES_PER_DIMENSION:
        raise VectorError(f"{len(blob)} bytes are not a whole number of float32 values")
    values = array("f")
    values.frombytes(blob)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def to_blob(values: Sequence[float], dims: int | None = None) -> bytes:
    """Validate, normalise and pack *values* in one step; raises VectorError."""
    return pack(normalise(values, dims))


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the cosine similarity of two vectors of the same length, 0.0 if one is zero."""
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    norms = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(y * y for y in b))
    return dot / norms if norms else 0.0
