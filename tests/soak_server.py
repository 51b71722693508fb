"""An embeddings server that changes its mood: fine, slow, 429, or not there at all.

Texts that share words are near to each other. It counts what it answers, by text.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

DIMS = 64
SLOW_SECONDS = (2.0, 4.0)
_WORD = re.compile(r"[A-Za-z]+|[\u4e00-\u9fff]{2}|[0-9]+")
_WORDS = 30


def vector(text: str) -> list[float]:
    """Return a unit vector made of the first words of *text* and of the text as a whole."""
    parts = [_direction(word.lower()) for word in _WORD.findall(text)[:_WORDS]]
    parts.append(_fresh_direction(text))
    total = [math.fsum(values) for values in zip(*parts, strict=True)]
    norm = math.sqrt(sum(value * value for value in total)) or 1.0
    return [value / norm for value in total]


def _fresh_direction(word: str) -> list[float]:
    source = random.Random(word)
    return [source.gauss(0, 1) for _ in range(DIMS)]


_direction = functools.lru_cache(maxsize=100_000)(_fresh_direction)


class SoakServer:
    """``mode`` is "fine", "slow", "429" or "down"; ``rate`` bounds texts a second, None: no bound.

    ``answered`` counts the texts that got a vector; ``requests`` counts by mode, without those
    that were refused a connection.
    """

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.mode = "down"
        self.requests: Counter[str] = Counter()
        self.received = 0
        self.answered: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._ended = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.turn("fine")

    @property
    def url(self) -> str:
        """The address for ``remote.baseUrl``; it stays the same over times of "down"."""
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> SoakServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self.turn("down")

    def turn(self, mode: str) -> None:
        """Change the mode; "down" closes the listening socket, leaving it opens it again."""
        if mode == "down" and self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        elif mode != "down" and self._server is None:
            self._listen()
        self.mode = mode

    def _listen(self) -> None:
        handler = _handler(self._answer)
        for _ in range(50):
            with contextlib.suppress(OSError):
                self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
                break
            time.sleep(0.1)
        assert self._server is not None, f"port {self._port} was taken meanwhile"
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _answer(self, texts: list[str]) -> tuple[int, dict[str, Any]]:
        """Return status and payload of one request, after the time it takes."""
        mode = self.mode
        with self._lock:
            self.requests[mode] += 1
            self.received += len(texts)
        if mode == "429":
            return 429, {"error": {"message": "as asked", "type": "rate_limit"}}
        self._ended.wait(self._turn_comes_in(len(texts)))
        if mode == "slow":
            self._ended.wait(random.uniform(*SLOW_SECONDS))
        with self._lock:
            self.answered.update(texts)
        data = [
            {"object": "embedding", "index": n, "embedding": vector(text)}
            for n, text in enumerate(texts)
        ]
        return 200, {"object": "list", "data": data, "model": "stub"}

    def _turn_comes_in(self, texts: int) -> float:
        if self.rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + texts / self.rate
            return self._free_at - now


def _handler(
    answer: Callable[[list[str]], tuple[int, dict[str, Any]]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            # Whoever asked may have been killed meanwhile.
            with contextlib.suppress(ConnectionError, ValueError):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                given = body["input"]
                status, payload = answer(given if isinstance(given, list) else [given])
                data = json.dumps(payload).encode()
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "1")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_args: Any) -> None:
            pass

    return Handler
