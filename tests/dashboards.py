"""The real dashboard of a real Hermes, asked over HTTP.

Its web framework is no part of the installations of ``targets``: the versions that Hermes's
releases name are put into a folder of their own and onto the dashboard's path.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import targets
from targets import Installed

# What the releases pin in their extra "web", and what that needs beside it.
WEB = (
    "fastapi==0.133.1",
    "uvicorn==0.41.0",
    "starlette==1.0.1",
    "python-multipart==0.0.27",
    "websockets==15.0.1",
    "click>=8,<9",
    "annotated-doc",
)
TOKEN = "token-of-the-tests"
START_SECONDS = 90.0
# The server module of the 0.22.2 wheel uses a name that it never imports, so its dashboard
# does not start. Given that name it does; nothing else is changed.
LAUNCH = """
import builtins, importlib.util, pathlib, sys
if importlib.util.find_spec("hermes_cli.web_server_sessions") is not None:
    builtins.Path = pathlib.Path
from hermes_cli.main import main
sys.argv = ["hermes", "dashboard", "--no-open", "--port", sys.argv[1], *sys.argv[2:]]
main()
"""


def web_packages() -> Path:
    """Return a folder with the web framework."""
    return targets.overlay("web", WEB)


class Dashboard:
    """A running ``hermes dashboard`` on the loopback interface."""

    def __init__(self, hermes: Installed, home: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        assets = hermes.site / "hermes_cli" / "web_dist"
        if not (assets / "index.html").exists():  # a wheel without them
            assets = home.parent / "assets"
            assets.mkdir(exist_ok=True)
            (assets / "assets").mkdir(exist_ok=True)
            (assets / "index.html").write_text("<html></html>")
        self.environment = hermes.environment(
            home,
            {
                "PYTHONPATH": str(web_packages()),
                "HERMES_DASHBOARD_SESSION_TOKEN": TOKEN,
                "HERMES_WEB_DIST": str(assets),
            },
        )
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  closed with the object
        self._process = subprocess.Popen(
            hermes.command(LAUNCH, port),
            env=self.environment,
            cwd=self.environment["HOME"],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    @property
    def output(self) -> str:
        """Everything it printed so far."""
        self._out.seek(0)
        return self._out.read().decode("utf-8", "replace")

    def get(self, path: str, **query: object) -> Any:
        """Return the JSON that the dashboard answers with."""
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(url, headers={"X-Hermes-Session-Token": TOKEN})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)

    def search(self, text: str) -> list[dict[str, Any]]:
        """Return the results of the search box for *text*."""
        return list(self.get("/api/sessions/search", q=text)["results"])

    def found(self, text: str) -> list[str]:
        """Return the sessions that the search box finds for *text*."""
        return [result["session_id"] for result in self.search(text)]

    def end(self) -> None:
        """End it as its owner would, by a signal."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                # As the page does: its list of sessions comes before any search.
                self.get("/api/sessions", limit=1)
                return
            time.sleep(0.1)
        raise AssertionError(f"the dashboard did not start:\n{self.output}")


@contextlib.contextmanager
def other_requests(dashboard: Dashboard, pause: float = 0.02) -> Iterator[list[float]]:
    """Ask an endpoint that needs no database all the while; yields the seconds each took."""
    seconds: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(pause):
            started = time.perf_counter()
            dashboard.get("/api/dashboard/themes")
            seconds.append(time.perf_counter() - started)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seconds
    finally:
        stop.set()
        thread.join()
