"""Frames on the pipes between Hermes and the child, the same in both directions.

A frame is two little-endian unsigned 32-bit numbers (bytes of the header, bytes of the
body), the header as JSON in UTF-8, and the body: raw little-endian float32, or nothing.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

_LENGTHS = struct.Struct("<II")
MAX_BYTES = 256 * 1024 * 1024

Header = dict[str, Any]


def clean(text: str, limit: int) -> str:
    """Return the first *limit* characters of *text* as something UTF-8 and C can carry.

    Lone surrogates become "?", NUL characters spaces.
    """
    head = text[:limit].replace("\x00", " ")
    return head.encode("utf-8", "replace").decode("utf-8")


def write_frame(fd: int, header: Header, body: bytes = b"") -> None:
    """Write one frame to *fd*; raises OSError when nobody reads any more."""
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    rest = memoryview(_LENGTHS.pack(len(head), len(body)) + head + body)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_frame(fd: int) -> tuple[Header, bytes]:
    """Read one frame from *fd*.

    Raises:
        EOFError: the other side is gone.
        ValueError: what arrived is not a frame.
    """
    head_bytes, body_bytes = _LENGTHS.unpack(_read(fd, _LENGTHS.size))
    if head_bytes + body_bytes > MAX_BYTES:
        raise ValueError("not a frame: too long")
    header = json.loads(_read(fd, head_bytes))
    if not isinstance(header, dict):
        raise ValueError("not a frame: the header is no object")
    return header, _read(fd, body_bytes)


def _read(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError("the pipe is closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
