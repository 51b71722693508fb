"""One HTTP request under a deadline that holds for all of it.

httpx limits each wait for a byte, not their sum, and no wait for a name server at all. So a
request runs in a thread of its own, and the caller waits for it no longer than it was told
to; the thread looks at the clock at every chunk and ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import ssl
import threading
import time
from collections.abc import Callable

import httpx

from .. import forks
from .._version import __version__
from ..errors import (
    BadResponse,
    BusyHere,
    EmbedderRefused,
    EmbedderUnavailable,
    HermesPatchError,
)
from . import decoding, protocol
from .protocol import Reply, TimedOut

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer, after it was decompressed, however many texts were sent."""
MAX_ERROR_BODY = 64 * 1024
CONCURRENT = 8
"""Requests under way at once, those included that nobody waits for any more."""
KEEP_ALIVE = 60.0


class _Call:
    """One request: its deadline, and the client that it has for itself while under way."""

    def __init__(self, host: str, timeout: float, most: int) -> None:
        self._host = host
        self.most = most
        self._timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.outcome: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        self.client: httpx.Client | None = None
        self.given_up = False
        self.waited_long = False

    @property
    def left(self) -> float:
        """The seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def begin(self) -> None:
        """Note that it is our turn now: is there still as much time as we waited for it?"""
        self.waited_long = self.left < self._timeout / 2

    def late(self, what: str = "complete answer") -> EmbedderUnavailable:
        """Return the error for a deadline that is over, which may be nobody's fault but ours."""
        if self.waited_long:
            return BusyHere(f"{self._host}: too many questions at once here")
        kind = TimedOut if what == "complete answer" else EmbedderUnavailable
        return kind(f"{self._host}: no {what} within {self._timeout:g} s")


class Exchange:
    """Posts JSON to one server. Thread-safe; clients are made when they are needed.

    Each request under way has a client, and so a connection, of its own: to close it is the
    only way to end an answer without end, and must not end any other.
    """

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
        self._ssl: ssl.SSLContext | None = None
        self._idle: list[httpx.Client] = []
        self._slots = threading.BoundedSemaphore(CONCURRENT)
        self._calls: set[_Call] = set()

    def __repr__(self) -> str:
        return f"Exchange({self._host!r})"

    def post(self, url: str, content: bytes, timeout: float, most: int = MAX_ANSWER) -> Reply:
        """Return the server's reply, whatever its status, within *timeout* seconds.

        ``most`` is the largest answer to expect, in bytes.

        Raises:
            TimedOut: the reply was not complete in time.
            BusyHere: the time went by while others of us were being answered.
            EmbedderUnavailable: no connection, or it broke.
            EmbedderRefused: the address or the proxy of the environment cannot be used.
            BadResponse: the reply is too large or cannot be decoded.
        """
        self._check_open()
        call, slots = _Call(self._host, timeout, min(most, MAX_ANSWER)), self._slots
        if timeout <= 0:
            raise call.late()
        acquired = slots.acquire(timeout=timeout)
        call.begin()
        if not acquired:
            raise call.late()

        def run() -> None:
            try:
                call.outcome.put(self._perform(call, url, content))
            except Exception as error:
                call.outcome.put(self._translate(error, call))
            finally:
                self._put_back(call)
                slots.release()

        self._calls.add(call)
        try:
            _start(run)
            result = call.outcome.get(timeout=call.left)
        except queue.Empty:
            self._hang_up(call)
            raise call.late() from None
        finally:
            self._calls.discard(call)
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Let connections go and wake everybody who waits for an answer."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for call in tuple(self._calls):
            call.outcome.put(EmbedderUnavailable("the embedder was closed"))
            self._hang_up(call)
        for client in idle:
            _close(client)

    def _check_open(self) -> None:
        with self._lock:
            if self._closed:
                raise EmbedderUnavailable("the embedder was closed")
            if self._pid != os.getpid():
                self._start_afresh()  # connections must not be shared with a forked child

    def _hang_up(self, call: _Call) -> None:
        """Close the connection of *call*, which a server may keep alive without end."""
        with self._lock:
            call.given_up = True
            client = call.client
        _close(client)

    def _take(self, call: _Call) -> httpx.Client:
        with forks.work(), self._lock:
            if self._closed:
                raise EmbedderUnavailable("the embedder was closed")
            if call.given_up:
                raise call.late()
            call.client = self._idle.pop() if self._idle else self._new_client()
            return call.client

    def _put_back(self, call: _Call) -> None:
        with self._lock:
            client, call.client = call.client, None
            usable = not (self._closed or call.given_up)
            if usable and client is not None:
                self._idle.append(client)
        if not usable:
            _close(client)

    def _new_client(self) -> httpx.Client:
        if self._ssl is None and self._transport is None:
            self._ssl = httpx.create_ssl_context(trust_env=self._trust_env)  # slow: files are read
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"hermes-patch/{__version__}",
        }
        if self._authorization:
            headers["Authorization"] = self._authorization
        return httpx.Client(
            headers=headers,
            trust_env=self._trust_env,
            follow_redirects=False,
            transport=self._transport,
            verify=self._ssl or True,
            limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE),
        )

    def _perform(self, call: _Call, url: str, content: bytes) -> Reply:
        client = self._take(call)

        def check(stage: str, _: object) -> None:
            # A connection that came about after it was hung up can only be left from here.
            if call.given_up and stage.endswith("_headers.started"):
                raise call.late()

        with client.stream(
            "POST",
            url,
            content=content,
            timeout=max(0.001, call.left),
            extensions={"trace": check},
        ) as response:
            body = self._read(response, call)
        if response.is_success:
            return Reply(response.status_code, body)
        return Reply(
            response.status_code,
            codes=protocol.codes(body, content, self._secrets),
            retry_after=protocol.retry_after(response.headers.get("Retry-After")),
        )

    def _read(self, response: httpx.Response, call: _Call) -> bytes:
        """Return the body; of an error, as much of it as may hold a code."""
        fine = response.is_success
        most = call.most if fine else MAX_ERROR_BODY
        body = bytearray()
        pieces = decoding.pieces(response, lambda: most + 1 - len(body))
        try:
            for piece in pieces:
                body += piece
                if not call.left:
                    raise call.late()
                if len(body) > most:
                    break
        except BadResponse as error:
            if fine:
                raise BadResponse(f"{self._host}: {error}") from None
        if fine and len(body) > most:
            raise BadResponse(f"{self._host}: the answer is larger than {most} bytes")
        return bytes(body)

    def _translate(self, error: Exception, call: _Call) -> HermesPatchError:
        """Return an error of ours; texts of foreign ones may quote headers or addresses."""
        kind = type(error).__name__
        if isinstance(error, HermesPatchError):
            return error
        if isinstance(error, httpx.ConnectTimeout):
            return call.late("connection")
        if isinstance(error, httpx.TimeoutException):
            return call.late()
        if isinstance(error, httpx.ConnectError):
            return EmbedderUnavailable(f"{self._host}: cannot connect; is the server running?")
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
            return EmbedderRefused(f"{self._host}: check remote.baseUrl ({kind})")
        if isinstance(error, ImportError):
            return EmbedderRefused(
                f"{self._host}: a SOCKS proxy is set in the environment, which needs the "
                "package socksio; install it or name the host in NO_PROXY"
            )
        return EmbedderUnavailable(f"{self._host}: the connection failed ({kind})")


def _close(client: httpx.Client | None) -> None:
    if client is not None:
        with contextlib.suppress(Exception):
            client.close()


def _start(run: Callable[[], None]) -> None:
    try:
        threading.Thread(target=run, name="hermes-patch http", daemon=True).start()
    except RuntimeError:
        run()  # no new thread can be started while the interpreter shuts down
