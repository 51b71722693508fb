"""A real OpenAI-compatible embeddings server that misbehaves on command and counts.

Vectors depend on the words of a text: texts that share words are near to each other.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar

DIMS = 64


def vector(text: str) -> list[float]:
    """Return the sum of one fixed random direction per word, or per pair of CJK characters."""
    words = text.lower().split() if text.isascii() else [text[i : i + 2] for i in range(len(text))]
    total = [0.0] * DIMS
    for word in words or [text]:
        source = random.Random(hashlib.sha256(word.strip(".,?!").encode()).digest())
        total = [value + source.gauss(0, 1) for value in total]
    return total


class StubServer:
    """``mode`` is "fine", "hang", "garbage", "wrong-count", "nan" or a status such as "429".

    A batch with a text that contains ``poison`` is answered with 400.
    """

    def __init__(self) -> None:
        self.mode = "fine"
        self.poison: str | None = None
        self.texts: list[str] = []
        self.requests = 0
        self.received = threading.Event()
        self._release = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            server_version: ClassVar[str] = "stub"

            def do_POST(self) -> None:
                owner._answer(self)

            def log_message(self, *_args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> StubServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release.set()
        self._server.shutdown()
        self._server.server_close()

    def config(self, **more: object) -> str:
        """Return a config.yaml that names this server."""
        block = {"provider": "openai", "model": "stub", "remote": {"baseUrl": self.url}, **more}
        return json.dumps({"agents": {"defaults": {"memorySearch": block}}})

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        self.requests += 1
        self.texts += texts
        self.received.set()
        if self.mode == "hang":
            self._release.wait(600)
            return
        status = int(self.mode) if self.mode.isdigit() else 200
        if self.poison is not None and any(self.poison in text for text in texts):
            status = 400
        data = json.dumps(self._payload(texts, status)).encode()
        if self.mode == "garbage":
            data = b"<html>this is not JSON"
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _payload(self, texts: list[str], status: int) -> dict[str, Any]:
        if status != 200:
            return {"error": {"message": "as asked", "type": "server_error"}}
        data: list[dict[str, Any]] = [
            {"object": "embedding", "index": n, "embedding": vector(text)}
            for n, text in enumerate(texts)
        ]
        if self.mode == "nan":
            data[0]["embedding"] = [float("nan")] * DIMS
        if self.mode == "wrong-count":
            data = data[:-1]
        return {"object": "list", "data": data, "model": "stub"}
