"""The body of an answer, bit by bit and never more of it than was asked for.

A few kilobytes that were compressed, twice for good measure, may unfold to gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import httpx

from ..errors import BadResponse

_GZIP = 16 + zlib.MAX_WBITS


def pieces(response: httpx.Response, room: Callable[[], int]) -> Iterator[bytes]:
    """Yield the decoded body as it comes; compressed pieces hold ``room()`` bytes at most.

    No compression is asked for. Plain gzip is read all the same, for servers that do not ask.

    Raises:
        BadResponse: another encoding, or the body is not in the one that is named.
    """
    named = response.headers.get_list("Content-Encoding", split_commas=True)
    encodings = [
        name for name in (n.strip().lower() for n in named) if name not in ("", "identity")
    ]
    if encodings not in ([], ["gzip"], ["x-gzip"]):
        raise BadResponse("the answer is compressed, which was not asked for")
    raw = response.stream  # iter_bytes would decode without any limit
    if not isinstance(raw, httpx.SyncByteStream):
        raise BadResponse("the answer is no stream of bytes")
    if not encodings:
        yield from raw
        return
    decoder = zlib.decompressobj(_GZIP)
    for piece in raw:
        try:
            yield decoder.decompress(piece, max(1, room()))
        except zlib.error:
            raise BadResponse("the answer cannot be decompressed") from None
