"""Vectors from any server with an OpenAI-compatible ``/embeddings``, or Volcengine's form."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import httpx

from .. import redaction
from ..config import Settings
from ..errors import (
    BadResponse,
    ConfigError,
    EmbedderRefused,
    EmbedderUnavailable,
    QueryRefused,
    VectorError,
)
from . import protocol
from .base import Description, Item
from .batches import BatchLimit, Run
from .exchange import Exchange
from .protocol import Form, Rejected, Reply

QUICK = 0.25
"""The share of the timeout within which an answer counts as quick."""


class OpenAIEmbedder:
    """An Embedder that asks a server over HTTP.

    ``transport`` replaces the network and ``sleep`` the waiting (seconds) in tests; by
    default ``close`` ends a wait. Raises ConfigError for a key no header can carry.
    """

    def __init__(
        self,
        settings: Settings,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        header, secrets = protocol.credentials(settings.base_url, settings.api_key)
        if not (header.isascii() and header.isprintable()):
            raise ConfigError("memorySearch.remote.apiKey: holds something no key is made of")
        self._settings = settings
        self._form = protocol.form(settings.base_url, settings.multimodal)
        self._other = _other_form(settings, self._form)
        self._exchange = Exchange(
            settings.host,
            header,
            secrets,
            trust_env=not settings.is_loopback,
            transport=transport,
        )
        self._limit = BatchLimit(settings.batch_size)
        self._lock = threading.Lock()
        self._dims: int | None = None
        self._closing = threading.Event()
        self._sleep = sleep or self._closing.wait

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self._settings.model!r} at {self._settings.host})"

    @property
    def is_local(self) -> bool:
        """True when the server listens on this machine's loopback interface."""
        return self._settings.is_loopback

    @property
    def batch_size(self) -> int:
        """The configured number of texts, or the smaller one that the server takes."""
        return self._limit.size

    def describe(self) -> Description:
        """Return what identifies the vectors; it never changes, whatever the server says."""
        settings = self._settings
        return Description(
            provider="openai",
            model=settings.model,
            dims=settings.dimensions,
            document_prefix=settings.document_prefix,
            query_prefix=settings.query_prefix,
        )

    def embed_documents(self, texts: Sequence[str]) -> list[Item]:
        """Return one Item for every text, in order; see :class:`batches.Run` for the effort.

        Items whose reason begins with ``base.UNTRIED`` were not at fault: the server went
        away after others had got their vectors.

        Raises:
            EmbedderUnavailable: down, busy or too slow, also after some retries.
            EmbedderRefused: a person has to change something.
            BadResponse: the answer does not say which vector belongs to which text.
        """
        prefix = protocol.harmless(self._settings.document_prefix)
        timeout = self._settings.timeout
        run = Run(
            lambda batch: self._ask([prefix + text for text in batch], timeout),
            self._limit,
            self._wait,
            one_by_one=lambda: self._form.multimodal,
            pause=self._settings.pause,
            quick=QUICK * timeout,
        )
        return run.items([self._presentable(text) for text in texts])

    def embed_query(self, text: str, timeout: float) -> list[float]:
        """Return the unit vector of a query; one try, *timeout* seconds in all.

        Raises:
            QueryRefused: the text is empty, or the server rejects it.
            EmbedderError: there is none for another cause.
        """
        query = self._presentable(text)
        if not query.strip():
            raise QueryRefused("an empty query has no vector")
        prefix = protocol.harmless(self._settings.query_prefix)
        try:
            item = self._ask([prefix + query], timeout)[0]
        except Rejected as error:
            raise QueryRefused(f"{error} to this query") from None
        if item.vector is None:
            raise BadResponse(f"{self._settings.host}: {item.reason}")
        return item.vector

    def close(self) -> None:
        """Let connections go; calls under way and later ones raise EmbedderUnavailable."""
        self._closing.set()
        self._exchange.close()

    def _presentable(self, text: str) -> str:
        if self._settings.redact and not self._settings.is_loopback:
            text = redaction.redact(text)
        return protocol.harmless(text)

    def _wait(self, seconds: float) -> None:
        if seconds > 0 and not self._closing.is_set():
            self._sleep(seconds)
        if self._closing.is_set():
            raise EmbedderUnavailable("the embedder was closed")

    def _ask(self, texts: list[str], timeout: float) -> list[Item]:
        """Make one request; raises EmbedderError for anything but one entry a text."""
        host, started = self._settings.host, time.monotonic()
        reply = self._post(self._form, texts, timeout)
        other = self._other
        if reply.status in (404, 405) and other is not None:
            # A gateway may serve a multimodal model in OpenAI's form.
            second = self._post(other, texts, timeout - (time.monotonic() - started))
            if second.ok:
                reply, self._form, self._other = second, other, None
        if not reply.ok:
            raise protocol.failure(reply, host, self._settings.model)
        try:
            raws = protocol.embeddings(reply.body, len(texts))
        except BadResponse as error:
            raise type(error)(f"{host}: {error}") from None
        return self._checked([_vector_or_reason(raw) for raw in raws])

    def _post(self, form: Form, texts: list[str], timeout: float) -> Reply:
        settings = self._settings
        dimensions = settings.dimensions if settings.send_dimensions else None
        content = protocol.body(form, settings.model, texts, dimensions)
        return self._exchange.post(form.url, content, timeout, protocol.most(len(texts)))

    def _checked(self, found: list[list[float] | str]) -> list[Item]:
        dims = self._expected([len(vector) for vector in found if not isinstance(vector, str)])
        items = []
        for vector in found:
            if isinstance(vector, str):
                items.append(Item(None, vector))
            elif len(vector) != dims:
                items.append(Item(None, f"vector has {len(vector)} dimensions, expected {dims}"))
            else:
                items.append(Item(vector))
        return items

    def _expected(self, lengths: list[int]) -> int | None:
        """Return the dimensions to expect; the first answer settles them.

        A length that only a profile names gives way to what the server really serves.
        """
        asked = self._settings.dimensions
        with self._lock:
            if self._dims is None and lengths:
                if asked not in lengths and self._settings.send_dimensions:
                    raise self._other_length(lengths[0], asked)
                usual = Counter(lengths).most_common(1)[0][0]
                self._dims = asked if asked in lengths else usual
            elif len(lengths) > 1 and len(set(lengths)) == 1 and lengths[0] != self._dims:
                raise self._other_length(lengths[0], self._dims)
            return self._dims

    def _other_length(self, found: int, expected: int | None) -> EmbedderRefused:
        return EmbedderRefused(
            f"{self._settings.host}: {self._settings.model!r} gives {found} dimensions, expected "
            f"{expected}; set dimensions to {found}, or leave it out"
        )


def _other_form(settings: Settings, form: Form) -> Form | None:
    """Return the plain form where the multimodal one is a guess from the model's name."""
    if not form.multimodal or protocol.MULTIMODAL in settings.base_url:
        return None
    return protocol.form(settings.base_url, multimodal=False)


def _vector_or_reason(raw: object) -> list[float] | str:
    try:
        return protocol.unit_vector(raw)
    except VectorError as error:
        return str(error)
