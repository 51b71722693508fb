"""How vectors are asked for over HTTP: addresses, bodies, answers, refusals.

Two forms are known: OpenAI's (a list of texts, a list of vectors with an ``index`` each) and
Volcengine's multimodal one (one text as a list of parts, one vector). Nothing here does I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from .. import vectors
from ..errors import (
    BadResponse,
    BatchTooLarge,
    EmbedderError,
    EmbedderRefused,
    EmbedderUnavailable,
    VectorError,
)

PLAIN = "/embeddings"
MULTIMODAL = "/embeddings/multimodal"
LONGEST_WAIT = 3600.0
"""The most of a ``Retry-After`` that is believed, in seconds."""

_MOST_BESIDES = _MOST_OF_A_VECTOR = 512 * 1024
_CODE = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_EXHAUSTED = frozenset(
    {
        "accountoverdueerror",
        "arrearage",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
        "insufficient_quota",
        "quotaexceeded",
    }
)


class Rejected(BatchTooLarge):
    """The server will not take these texts: too many, too long, or one it dislikes."""


class Failed(EmbedderUnavailable):
    """The server broke while it worked on these texts; one of them may be the cause."""


class Busy(EmbedderUnavailable):
    """The server asks to be left alone for a while."""


class TimedOut(EmbedderUnavailable):
    """The whole answer was not there in time."""


class Miscounted(BadResponse):
    """The answer holds more or fewer vectors than there were texts."""


@dataclass(frozen=True)
class Reply:
    """What came back: status, body, safe error codes and ``Retry-After`` in seconds."""

    status: int
    body: bytes = field(default=b"", repr=False)
    codes: tuple[str, ...] = ()
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        """True for a 2xx status."""
        return 200 <= self.status < 300


@dataclass(frozen=True)
class Form:
    """Where to send texts, and in which of the two forms."""

    url: str = field(repr=False)
    multimodal: bool


def form(base_url: str, multimodal: bool) -> Form:
    """Return the form for an address with or without a path; userinfo is left out of it."""
    parts = urlsplit(base_url.strip())
    path = parts.path.rstrip("/")
    if multimodal and not path.endswith(MULTIMODAL):
        path = (path or "/api/v3").removesuffix(PLAIN) + MULTIMODAL
    elif not path.endswith((PLAIN, MULTIMODAL)):
        path = (path or "/v1") + PLAIN
    netloc = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme, netloc, path, parts.query, ""))
    return Form(url, path.endswith(MULTIMODAL))


def credentials(base_url: str, api_key: str) -> tuple[str, tuple[str, ...]]:
    """Return the Authorization header ("" for none) and every secret that it is made of."""
    parts = urlsplit(base_url.strip())
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    key = api_key.strip()
    secrets = tuple(secret for secret in (key, password, user) if secret)
    if key:
        return f"Bearer {key}", secrets
    if user or password:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        return f"Basic {pair}", (*secrets, pair)
    return "", ()


def harmless(text: str) -> str:
    """Return *text* as valid Unicode: lone surrogates become U+FFFD, NUL a blank."""
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", " ")


def body(form: Form, model: str, texts: Sequence[str], dimensions: int | None) -> bytes:
    """Return the JSON to send; *dimensions* is left out when it is None."""
    content: dict[str, Any] = {"model": model}
    if form.multimodal:
        content["input"] = [{"type": "text", "text": text} for text in texts]
    else:
        content |= {"input": list(texts), "encoding_format": "float"}
    if dimensions is not None:
        content["dimensions"] = dimensions
    return json.dumps(content, ensure_ascii=False).encode("utf-8")


def most(count: int) -> int:
    """Return how many bytes an answer for *count* texts can be expected to have at most.

    Parsed, an answer may take twenty times its size.
    """
    return _MOST_BESIDES + count * _MOST_OF_A_VECTOR


def embeddings(answer: bytes, count: int) -> list[Any]:
    """Return what the answer gives for each of *count* texts, in their order, unchecked.

    Raises:
        BadResponse: not one entry for every text, or not clear which belongs to which.
    """
    try:
        data = json.loads(answer)["data"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadResponse("the answer is not JSON with a 'data' entry") from None
    entries = [data] if isinstance(data, dict) else data
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadResponse("'data' in the answer is not a list of objects")
    if len(entries) != count:
        raise Miscounted(f"expected {count} vectors, found {len(entries)}")
    if all(entry.get("index") is None for entry in entries):
        return [entry.get("embedding") for entry in entries]
    placed: dict[int, Any] = {}
    for entry in entries:
        index = entry.get("index")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            raise BadResponse("an 'index' in the answer is missing or out of range")
        placed[index] = entry.get("embedding")
    if len(placed) != count:
        raise BadResponse("an 'index' in the answer is there twice")
    return [placed[index] for index in range(count)]


def unit_vector(raw: Any) -> list[float]:
    """Return the unit vector in *raw*: numbers, or little-endian float32 in base64.

    Raises:
        VectorError: *raw* holds no usable vector.
    """
    if isinstance(raw, str):
        try:
            raw = vectors.unpack(base64.b64decode(raw.encode("ascii"), validate=True))
        except (binascii.Error, UnicodeEncodeError):
            raise VectorError("vector is neither a list of numbers nor base64") from None
    elif not isinstance(raw, list):
        raise VectorError("no vector in the answer")
    try:
        return vectors.normalise(raw)
    except OverflowError:
        raise VectorError("vector holds numbers that are too large") from None


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds a ``Retry-After`` header asks for, None when it says nothing."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            then = parsedate_to_datetime(header)
        except (ValueError, TypeError, IndexError):
            return None
        then = then if then.tzinfo else then.replace(tzinfo=UTC)
        seconds = (then - (now or datetime.now(UTC))).total_seconds()
    return min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else None


def codes(answer: bytes, sent: bytes, secrets: Sequence[str]) -> tuple[str, ...]:
    """Return the machine-readable codes of an error body.

    Servers echo keys and texts, so the message is never used, and a code neither when it is
    found in what was sent or has anything in common with a secret.
    """
    try:
        data = json.loads(answer)
    except (ValueError, RecursionError):
        return ()
    error = data.get("error", data) if isinstance(data, dict) else None
    places = [place for place in (error, data) if isinstance(place, dict)]
    values = [place.get(name) for place in places for name in ("code", "type", "error_type")]
    found = (str(v) for v in values if isinstance(v, (str, int)) and not isinstance(v, bool))
    return tuple(dict.fromkeys(code for code in found if _is_safe(code, sent, secrets)))


def _is_safe(code: str, sent: bytes, secrets: Sequence[str]) -> bool:
    if not _CODE.fullmatch(code) or code.encode() in sent:
        return False
    return not any(secret in code or code in secret for secret in secrets)


def failure(reply: Reply, host: str, model: str) -> EmbedderError:
    """Return the error that a reply without vectors stands for."""
    code = f" ({reply.codes[0]})" if reply.codes else ""
    said = f"{host} answered HTTP {reply.status}{code}"
    status = reply.status
    exhausted = any(code.lower() in _EXHAUSTED for code in reply.codes)
    if status == 402 or exhausted:
        return EmbedderRefused(f"{said}: the quota is used up; check the account's balance")
    if status in (401, 403):
        return EmbedderRefused(f"{said}: the key was not accepted; check remote.apiKey")
    if status in (404, 405, 410):
        return EmbedderRefused(
            f"{said}: no such address or model; check remote.baseUrl and the model {model!r}"
        )
    if 300 <= status < 400:
        return EmbedderRefused(
            f"{said}: redirects are not followed; set remote.baseUrl to the final address"
        )
    if status in (400, 413, 422, 451):
        return Rejected(said)
    if status in (424, 500):
        return Failed(said, reply.retry_after)
    if status in (429, 503):
        return Busy(said, reply.retry_after)
    if status in (408, 409, 425) or status > 500:
        return EmbedderUnavailable(said, reply.retry_after)
    return EmbedderRefused(f"{said}: not an answer of an embeddings server")
