"""Real Hermes processes that a test talks to, and the package as it is deployed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any

from hermes_patch import deploy
from hermes_patch.embedders.base import PROBE_TEXT
from stub_server import DIMS, StubServer
from targets import Installed

SCRIPT = Path(__file__).parent / "scripts" / "live.py"
REPLY_SECONDS = 120.0


class NoAnswer(AssertionError):
    """The process ended or hung instead of answering."""


class Raised(Exception):
    """What was told raised; the text is "Type: message"."""


def package(hermes: Installed, folder: Path) -> Path:
    """Apply the patch to a home made for it in *folder*; the plugin folder with the package."""
    home = folder / "package" / "home"
    home.mkdir(parents=True)
    (home / "config.yaml").write_text(configured("http://127.0.0.1:9/v1"))
    deploy.apply(home, hermes_python=hermes.python)
    return home / "plugins" / "hermes_patch"


def configured(url: str, **more: object) -> str:
    """Return a config.yaml that names a stub server."""
    remote = {"baseUrl": url, **({"apiKey": more.pop("key")} if "key" in more else {})}
    block = {"provider": "openai", "model": "stub", "minSimilarity": 0.35, "queryBudget": 5.0}
    settings = {**block, "remote": remote, **more}
    return json.dumps({"agents": {"defaults": {"memorySearch": settings}}})


class Live:
    """A Hermes process, with our package unless *plugin* is None. Call it with Python."""

    def __init__(
        self,
        hermes: Installed,
        home: Path,
        plugin: Path | None,
        *,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        paths = {"PYTHONPATH": str(plugin)} if plugin is not None else {}
        environment = hermes.environment(home, {**paths, **(env or {})})
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the object
        self.process = subprocess.Popen(
            [*prefix, *hermes.command(SCRIPT)],
            env=environment,
            cwd=environment["HOME"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.end()
        finally:
            self.kill()

    def __call__(self, code: str) -> Any:
        """Return the value of the last expression of *code*; raises Raised and NoAnswer."""
        self.tell(code)
        return self.answer()

    def tell(self, code: str) -> None:
        """Send *code* without waiting for its value."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the value of what was told."""
        assert self.process.stdout is not None
        watch = threading.Timer(REPLY_SECONDS, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            raise NoAnswer(f"no answer from the process; it said:\n{self.stderr}")
        reply = json.loads(line)
        if "error" in reply:
            raise Raised(reply["error"])
        return reply["value"]

    def end(self, seconds: float = 60.0) -> int:
        """Let the process end as Hermes ends; its exit code."""
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.close()
        return self.process.wait(seconds)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def stderr(self) -> str:
        """Everything it wrote to its standard error so far."""
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")


class TwinServer(StubServer):
    """A stub server whose model has other vectors: ``turn`` permutes axes, ``dims`` cuts."""

    def __init__(self, turn: int = 0, dims: int = DIMS) -> None:
        super().__init__()
        self.turn = turn
        self.dims = dims
        self.keys: set[str | None] = set()

    @property
    def messages(self) -> list[str]:
        """The texts that were sent, without the probe sentence."""
        return [text for text in self.texts if text != PROBE_TEXT]

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.keys.add(handler.headers["Authorization"])
        super()._answer(handler)

    def _payload(self, texts: list[str], status: int) -> dict[str, Any]:
        answer = super()._payload(texts, status)
        for item in answer.get("data", ()):
            values = item["embedding"]
            item["embedding"] = (values[self.turn :] + values[: self.turn])[: self.dims]
        return answer


def unprivileged() -> tuple[str, ...] | None:
    """Return a command prefix under which file permissions hold, None where there is none."""
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    drop = "--bounding-set=-dac_override,-dac_read_search"
    return (setpriv, drop) if setpriv else None
