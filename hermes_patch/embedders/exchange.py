"""One HTTP request under a deadline that holds for all of it.

httpx limits each wait for a byte, not their sum, and no wait for a name server at all. So a
request runs in a thread of its own, and the caller waits for it no longer than it was told
to; the thread looks at the clock at every chunk and ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable

import httpx

from .. import forks
from .._version import __version__
from ..errors import BadResponse, EmbedderRefused, EmbedderUnavailable, HermesPatchError
from . import protocol
from .protocol import Reply, TimedOut

MAX_ANSWER = 64 * 1024 * 1024
MAX_ERROR_BODY = 64 * 1024
CONCURRENT = 8
"""Requests under way at once, those included that nobody waits for any more."""
KEEP_ALIVE = 60.0


class Exchange:
    """Posts JSON to one server. Thread-safe; the client is made at the first request."""

    def __init__(
        self,
        host: str,
        authorization: str,
        secrets: tuple[str, ...],
        *,
        trust_env: bool,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._host = host
        self._authorization = authorization
        self._secrets = secrets
        self._trust_env = trust_env
        self._transport = transport
        self._lock = threading.Lock()
        self._closed = False
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._client: httpx.Client | None = None
        self._slots = threading.BoundedSemaphore(CONCURRENT)
        self._waiting: set[queue.SimpleQueue[Reply | Exception]] = set()

    def __repr__(self) -> str:
        return f"Exchange({self._host!r})"

    def post(self, url: str, content: bytes, timeout: float) -> Reply:
        """Return the server's reply, whatever its status, within *timeout* seconds.

        Raises:
            TimedOut: the reply was not complete in time.
            EmbedderUnavailable: no connection, or it broke.
            EmbedderRefused: the address or the proxy of the environment cannot be used.
            BadResponse: the reply is too large or cannot be decoded.
        """
        deadline = time.monotonic() + timeout
        self._check_open()
        slots = self._slots
        if timeout <= 0:
            raise self._late(timeout)
        if not slots.acquire(timeout=timeout):
            self._hang_up()
            raise self._late(timeout)
        outcome: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()

        def run() -> None:
            try:
                outcome.put(self._perform(url, content, timeout, deadline))
            except Exception as error:
                outcome.put(self._translate(error, timeout))
            finally:
                slots.release()

        self._waiting.add(outcome)
        try:
            _start(run)
            result = outcome.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise self._late(timeout) from None
        finally:
            self._waiting.discard(outcome)
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Let connections go and wake everybody who waits for an answer."""
        with self._lock:
            self._closed = True
        for outcome in tuple(self._waiting):
            outcome.put(EmbedderUnavailable("the embedder was closed"))
        self._hang_up()

    def _hang_up(self) -> None:
        """Close all connections, which ends requests that a server keeps alive without end."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def _check_open(self) -> None:
        with self._lock:
            if self._closed:
                raise EmbedderUnavailable("the embedder was closed")
            if self._pid != os.getpid():
                self._start_afresh()  # connections must not be shared with a forked child

    def _open_client(self) -> httpx.Client:
        with forks.work(), self._lock:
            if self._closed:
                raise EmbedderUnavailable("the embedder was closed")
            if self._client is None:
                headers = {
                    "Content-Type": "application/json",
                    "Accept": "application/json",
                    "User-Agent": f"hermes-patch/{__version__}",
                }
                if self._authorization:
                    headers["Authorization"] = self._authorization
                self._client = httpx.Client(
                    headers=headers,
                    trust_env=self._trust_env,
                    follow_redirects=False,
                    transport=self._transport,
                    limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE),
                )
            return self._client

    def _perform(self, url: str, content: bytes, timeout: float, deadline: float) -> Reply:
        client = self._open_client()
        remaining = max(0.001, deadline - time.monotonic())
        with client.stream("POST", url, content=content, timeout=remaining) as response:
            body = self._read(response, timeout, deadline)
        if response.is_success:
            return Reply(response.status_code, body)
        return Reply(
            response.status_code,
            codes=protocol.codes(body, content, self._secrets),
            retry_after=protocol.retry_after(response.headers.get("Retry-After")),
        )

    def _read(self, response: httpx.Response, timeout: float, deadline: float) -> bytes:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if time.monotonic() > deadline:
                raise self._late(timeout)
            if not response.is_success and len(body) > MAX_ERROR_BODY:
                break
            if len(body) > MAX_ANSWER:
                raise BadResponse(f"{self._host}: the answer is larger than {MAX_ANSWER} bytes")
        return bytes(body)

    def _late(self, timeout: float) -> TimedOut:
        return TimedOut(f"{self._host}: no complete answer within {timeout:g} s")

    def _translate(self, error: Exception, timeout: float) -> HermesPatchError:
        """Return an error of ours; texts of foreign ones may quote headers or addresses."""
        kind = type(error).__name__
        if isinstance(error, HermesPatchError):
            return error
        if isinstance(error, httpx.ConnectTimeout):
            return EmbedderUnavailable(f"{self._host}: no connection within {timeout:g} s")
        if isinstance(error, httpx.TimeoutException):
            return self._late(timeout)
        if isinstance(error, httpx.ConnectError):
            return EmbedderUnavailable(f"{self._host}: cannot connect; is the server running?")
        if isinstance(error, httpx.DecodingError):
            return BadResponse(f"{self._host}: the answer cannot be decompressed")
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
            return EmbedderRefused(f"{self._host}: check remote.baseUrl ({kind})")
        if isinstance(error, ImportError):
            return EmbedderRefused(
                f"{self._host}: a SOCKS proxy is set in the environment, which needs the "
                "package socksio; install it or name the host in NO_PROXY"
            )
        return EmbedderUnavailable(f"{self._host}: the connection failed ({kind})")


def _start(run: Callable[[], None]) -> None:
    try:
        threading.Thread(target=run, name="hermes-patch http", daemon=True).start()
    except RuntimeError:
        run()  # no new thread can be started while the interpreter shuts down
