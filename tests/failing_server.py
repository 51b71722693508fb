"""A real embeddings server for tests that fails in one chosen way, and remembers every request.

What it does is a function from a request to an Answer; the functions here are the ways in which
servers have been seen to fail. Texts that share words get near vectors.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from hermes_patch.embedders.base import PROBE_TEXT

DIMS = 64
_WORD = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")


def words(text: str) -> list[str]:
    """Return the words of *text* in lower case, a CJK character or a sign being one."""
    return _WORD.findall(text.lower())


@functools.cache
def _direction(word: str) -> tuple[float, ...]:
    source = random.Random(word)
    return tuple(source.gauss(0, 1) for _ in range(DIMS))


def vector(text: str) -> list[float]:
    """Return the sum of one fixed direction for every distinct word or CJK character."""
    distinct = sorted(set(words(text))) or [""]
    total = [math.fsum(column) for column in zip(*map(_direction, distinct), strict=True)]
    return [round(value, 4) for value in total]


@dataclass(frozen=True)
class Asked:
    """One request; ``at`` is in seconds of a clock that only goes forward."""

    path: str
    headers: Mapping[str, str]
    size: int
    texts: list[str]
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Answer:
    """``body`` is sent as JSON. ``manner`` is "whole", "silent" or "dripping" for ever."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    manner: str = "whole"


Behaviour = Callable[[Asked], Answer]


def entries(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ``data`` of a faultless answer."""
    return [{"index": n, "embedding": vector(text)} for n, text in enumerate(texts)]


def fine(asked: Asked) -> Answer:
    """Answer as one should: OpenAI's form, or Volcengine's at its own path."""
    data = entries(asked.texts)
    return Answer(body={"data": data[0] if asked.path.endswith("multimodal") else data})


def shaped(change: Callable[[list[dict[str, Any]]], Any]) -> Behaviour:
    """Answer with a changed ``data``."""
    return lambda asked: Answer(body={"data": change(entries(asked.texts))})


def one_vector(marker: str, embedding: Any) -> Behaviour:
    """Give *embedding* for every text that contains *marker*."""

    def answer(asked: Asked) -> Answer:
        data = entries(asked.texts)
        for text, entry in zip(asked.texts, data, strict=True):
            if marker in text:
                entry["embedding"] = embedding
        return Answer(body={"data": data})

    return answer


def refusing(
    status: int, when: Callable[[Asked], bool] = lambda asked: True, code: str = "", **headers: str
) -> Behaviour:
    """Answer *status*, with an error that quotes the request, when *when* says so."""

    def answer(asked: Asked) -> Answer:
        if not when(asked):
            return fine(asked)
        quoted = f"{asked.headers.get('Authorization')} may not embed {asked.texts[0]}"
        body = {"error": {"message": quoted, "code": code or quoted, "type": quoted}}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return Answer(status, body, named)

    return answer


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """Behave in one way after the other, in the last one for ever."""
    left = list(behaviours)
    return lambda asked: (left.pop(0) if len(left) > 1 else left[0])(asked)


def silent(asked: Asked) -> Answer:
    """Accept and never answer."""
    return Answer(manner="silent")


def dripping(asked: Asked) -> Answer:
    """Begin an answer and send a byte of it now and then, without end."""
    return Answer(manner="dripping")


class FailingServer:
    """Answers as ``behaviour`` says; ``port`` 0 is a free one. Nothing listens before ``start``."""

    def __init__(self, behaviour: Behaviour = fine, port: int = 0) -> None:
        self.behaviour = behaviour
        self.asked: list[Asked] = []
        self.port = port
        self._over = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def sent(self) -> list[str]:
        """Every text received, without the probe sentence."""
        texts = [text for asked in list(self.asked) for text in asked.texts]
        return [text for text in texts if not text.endswith(PROBE_TEXT)]

    def start(self) -> FailingServer:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                owner._answer(self)

            def log_message(self, *_args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_args: Any) -> None:
                pass  # a client that hung up is what many tests are about

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        self._over.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def __enter__(self) -> FailingServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        given = json.loads(body)["input"]
        texts = [part["text"] if isinstance(part, dict) else part for part in given]
        asked = Asked(handler.path, dict(handler.headers.items()), len(body), texts)
        self.asked.append(asked)
        answer = self.behaviour(asked)
        if answer.manner == "silent":
            self._over.wait(600)
            handler.close_connection = True
            return
        data = json.dumps(answer.body).encode()
        length = len(data) if answer.manner == "whole" else 1_000_000
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        if answer.manner == "dripping":
            while not self._over.wait(0.02):
                handler.wfile.write(b" ")
            handler.close_connection = True
            return
        handler.wfile.write(data)
