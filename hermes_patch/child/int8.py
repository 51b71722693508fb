"""Codes of one byte a number, made and compared with numpy."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

from .codes import MOST, NOTHING, SLACK, Block, Found

MOST_THREADS = 4
"""So many cores are used at most."""


class Int8:
    """Every number in one byte, with numpy. The error of each row is known, not estimated."""

    kind = "int8"
    exact = True
    compares = True

    def __init__(self, dims: int) -> None:
        """Raises ImportError without numpy."""
        import numpy

        self._np = numpy
        self._dims = dims
        self._rows = max(1, 196_608 // dims)  # so many in float32 stay in the cache
        self._workers = min(MOST_THREADS, os.cpu_count() or 1)
        self._rooms = numpy.empty((self._workers, self._rows, dims), numpy.float32)
        self._pool = ThreadPoolExecutor(self._workers)

    def encode(self, blobs: Sequence[bytes]) -> Any:
        np = self._np
        given = np.frombuffer(b"".join(blobs), "<f4").reshape(-1, self._dims)
        codes = np.empty(given.shape, np.int8)
        step, error = np.empty(len(given), np.float32), np.empty(len(given), np.float32)
        for start in range(0, len(given), self._rows):
            part = slice(start, start + self._rows)
            codes[part], step[part], error[part] = self._encoded(given[part])
        return codes, step, error

    def _encoded(self, x: Any) -> tuple[Any, Any, Any]:
        """Return whole numbers, what one of them stands for, and the error of each row."""
        np = self._np
        with np.errstate(all="ignore"):
            good = np.abs(_lengths(np, x) - 1.0) < 0.01
        if not good.all():
            x = np.where(good[:, None], x, np.float32(0))
        step = np.maximum(np.maximum(x.max(axis=1), -x.min(axis=1)), 1e-12) / np.float32(127)
        whole = np.rint(x / step[:, None])
        error = _lengths(np, x - whole * step[:, None]) + SLACK
        error[~good] = -1e9
        return whole, step, error

    def search(self, blocks: Sequence[Block], query: array[float], k: int, floor: float) -> Found:
        np = self._np
        uppers, errors = self._uppers(blocks, np.array(query, np.float32))
        least = floor
        if len(uppers) > k:
            lowers = uppers - 2 * errors
            lowers[errors < 0] = NOTHING
            least = max(floor, float(np.partition(lowers, -k)[-k]))
        wanted = np.flatnonzero(uppers >= least)
        wanted = wanted[np.argsort(-uppers[wanted])[: max(k, MOST)]]
        ids = np.concatenate([np.frombuffer(block.ids, np.int64) for block in blocks])[wanted]
        named = uppers[wanted].tolist()
        uppers[wanted] = NOTHING
        rest = float(uppers.max()) if len(uppers) else NOTHING
        return Found(ids.tolist(), named, rest if rest >= floor else NOTHING)

    def compare(self, blobs: Sequence[bytes], query: array[float]) -> list[float]:
        np = self._np
        given = np.frombuffer(b"".join(blobs), "<f4").reshape(-1, self._dims)
        with np.errstate(all="ignore"):
            found: list[float] = (given.astype(np.float64) @ np.array(query)).tolist()
        return found

    def _uppers(self, blocks: Sequence[Block], query: Any) -> tuple[Any, Any]:
        np = self._np
        total = sum(len(block.ids) for block in blocks)
        uppers, errors = np.empty(total, np.float32), np.empty(total, np.float32)
        tasks, at = [], 0
        for block in blocks:
            codes, step, error = block.codes
            part = uppers[at : at + len(step)]
            tasks.append((codes, step, error, part))
            errors[at : at + len(step)] = error
            at += len(step)
        if len(tasks) == 1:
            self._work(tasks, self._rooms[0], query)
            return uppers, errors
        shares = [tasks[n :: self._workers] for n in range(self._workers)]
        # numpy lets go of the interpreter meanwhile, so that threads are of use.
        list(self._pool.map(self._work, shares, self._rooms, repeat(query)))
        return uppers, errors

    def _work(self, tasks: Sequence[tuple[Any, ...]], room: Any, query: Any) -> None:
        np = self._np
        for codes, step, error, part in tasks:
            for start in range(0, len(step), self._rows):
                some = codes[start : start + self._rows]
                here = room[: len(some)]
                np.copyto(here, some, casting="unsafe")
                np.dot(here, query, out=part[start : start + len(some)])
            part *= step
            part += error


def _lengths(np: Any, x: Any) -> Any:
    return np.sqrt(np.einsum("ij,ij->i", x, x))
