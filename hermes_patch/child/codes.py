"""Coarse codes: what stands for many vectors in little memory, and the search among them.

A search names the rows that may be among the k nearest; whoever asked compares those with
the vectors themselves. Two kinds of codes prove that no other row can be: their error is
bounded, and every row that could still be among the k is named. ``Bits`` prove nothing.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from operator import mul
from typing import Any, Protocol

NOTHING = -2.0
"""Below every cosine."""
MOST = 20_000
"""The most rows that are named at once."""
SLACK = 1e-5
"""How much sums in float32 may be wrong."""
_MIDDLE = 1 << 31


@dataclass(frozen=True)
class Found:
    """Row ids, the most that the cosine of each can be, and the same of all other rows.

    ``rest`` is :data:`NOTHING` where no other row reaches the floor. The numbers of codes
    that are not exact are estimates.
    """

    ids: Sequence[int]
    uppers: Sequence[float]
    rest: float


@dataclass(frozen=True)
class Block:
    """Some rows of the table by ascending id, when each was made, and their codes."""

    ids: array[int]
    made: array[float]
    codes: Any


class Codes(Protocol):
    """One kind of code; a block is never changed once it is made."""

    kind: str
    exact: bool
    compares: bool
    """Whether :meth:`compare` is quicker than what whoever asks could do himself."""

    def encode(self, blobs: Sequence[bytes]) -> Any:
        """Return the codes of vectors of ``dims`` float32 numbers and unit length."""

    def search(self, blocks: Sequence[Block], query: array[float], k: int, floor: float) -> Found:
        """Return the rows that can be among the *k* nearest and reach *floor*."""

    def compare(self, blobs: Sequence[bytes], query: array[float]) -> list[float]:
        """Return the cosine of every vector with *query*, summed in double precision."""


class Columns:
    """Long integers that hold one number of every row each, without any package.

    Multiplying a column by a number multiplies all its rows at once. A row has four bytes
    in each column, which the whole sum of its products never leaves.
    """

    kind = "columns"
    exact = True
    compares = False

    def __init__(self, dims: int) -> None:
        self._dims = dims
        # The product of two rounded unit vectors has to stay below 2 ** 31.
        self._scale = int(2.0**15.5 / (1.0 + math.sqrt(dims) / 80_000 + 2.0**-8))
        self._unit = 1.0 / self._scale**2
        rounding = math.sqrt(dims) / (2 * self._scale)
        reading = 2.0**-8  # of 16 bits of each float32
        self._error = rounding + (1 + rounding) * (rounding + reading) + SLACK
        self._lanes = _Lanes(self._scale)

    def encode(self, blobs: Sequence[bytes]) -> Any:
        halves = array("H", b"".join(blobs))[1::2]
        zero = int.from_bytes(self._scale.to_bytes(4, "little") * len(blobs), "little")
        lane = self._lanes.__getitem__
        return [
            int.from_bytes(b"".join(map(lane, halves[j :: self._dims])), "little") - zero
            for j in range(self._dims)
        ]

    def search(self, blocks: Sequence[Block], query: array[float], k: int, floor: float) -> Found:
        factors = [round(value * self._scale) for value in query]
        margin = math.ceil(2 * self._error / self._unit)
        least = math.floor((floor - self._error) / self._unit) + _MIDDLE
        best = _Best(k, margin, max(0, least))
        for block in blocks:
            best.add(block.ids, _sums(block, factors))
        named, rest = best.named()
        least_known = NOTHING if rest is None else self._upper(rest)
        return Found([row for _, row in named], [self._upper(v) for v, _ in named], least_known)

    def compare(self, blobs: Sequence[bytes], query: array[float]) -> list[float]:
        return _compare(blobs, query)

    def _upper(self, value: int) -> float:
        return (value - _MIDDLE) * self._unit + self._error


class _Lanes(dict[int, bytes]):
    """The four bytes in a column of a float32 with a given upper half, as far as needed."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        self._scale = scale

    def __missing__(self, half: int) -> bytes:
        (value,) = struct.unpack("<f", struct.pack("<I", half << 16 | 0x8000))
        whole = round(max(-1.0, min(1.0, value)) * self._scale) if abs(value) < 1.01 else 0
        self[half] = lane = (whole + self._scale).to_bytes(4, "little")
        return lane


def _sums(block: Block, factors: Sequence[int]) -> Sequence[int]:
    """Return the sum of products of every row, plus :data:`_MIDDLE`."""
    rows = len(block.ids)
    total = int.from_bytes(_MIDDLE.to_bytes(4, "little") * rows, "little")
    for factor, column in zip(factors, block.codes, strict=True):
        total += factor * column
    # A row that is no unit vector may have run over at the upper end.
    whole = (total & ((1 << 32 * rows) - 1)).to_bytes(4 * rows, "little")
    return memoryview(whole).cast("I")


class Bits:
    """The sign of every number, without any package: small, quick, and an estimate only."""

    kind = "bits"
    exact = False
    compares = False
    _SIGNS = bytes(b"01"[byte >> 7] for byte in range(256))

    def __init__(self, dims: int) -> None:
        self._dims = dims

    def encode(self, blobs: Sequence[bytes]) -> Any:
        return [int(blob[3::4].translate(self._SIGNS), 2) for blob in blobs]

    def search(self, blocks: Sequence[Block], query: array[float], k: int, floor: float) -> Found:
        (asked,) = self.encode([array("f", query).tobytes()])
        best = _Best(4 * k + 600 + sum(len(block.ids) for block in blocks) // 100, 0, 0)
        for block in blocks:
            best.add(block.ids, [self._dims - (asked ^ code).bit_count() for code in block.codes])
        named, rest = best.named()
        agreeing = [math.cos(math.pi * (1 - value / self._dims)) for value, _ in named]
        return Found([row for _, row in named], agreeing, NOTHING if rest is None else 1.0)

    def compare(self, blobs: Sequence[bytes], query: array[float]) -> list[float]:
        return _compare(blobs, query)


def _compare(blobs: Sequence[bytes], query: array[float]) -> list[float]:
    return [math.fsum(map(mul, query, array("f", blob))) for blob in blobs]


class _Best:
    """The rows with the k highest whole numbers so far, and those less than *margin* below."""

    def __init__(self, k: int, margin: int, least: int) -> None:
        self._k = k
        self._margin = margin
        self._least = least
        self._floor = least
        self._kept: list[tuple[int, int]] = []
        self._cut = False

    def add(self, ids: Sequence[int], values: Sequence[int]) -> None:
        least = self._least
        self._kept += [
            (value, row) for value, row in zip(values, ids, strict=True) if value >= least
        ]
        if len(self._kept) > 2 * self._k + 2000:
            self._tighten()

    def _tighten(self) -> None:
        if len(self._kept) <= self._k:
            return
        kth = nlargest(self._k, self._kept)[-1][0]
        self._least = max(self._floor, kth - self._margin)
        self._kept = [pair for pair in self._kept if pair[0] >= self._least]

    def named(self) -> tuple[list[tuple[int, int]], int | None]:
        """Return (value, row) by descending value and the most any other can be, if any can."""
        self._tighten()
        self._kept.sort(reverse=True)
        most = max(self._k, MOST)
        others = self._kept[most:]
        if others:
            return self._kept[:most], others[0][0]
        return self._kept, None if self._least == self._floor else self._least - 1


def usable(dims: int, use_numpy: bool) -> list[Codes]:
    """Return the kinds that can be had here, the best one first."""
    found: list[Codes] = [Bits(dims)]
    if array("H", b"\x01\x00")[0] == 1:  # the columns read the upper half of little-endian floats
        found.insert(0, Columns(dims))
    if use_numpy:
        with suppress(ImportError):
            from .int8 import Int8

            found.insert(0, Int8(dims))
    return found
