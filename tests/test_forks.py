from __future__ import annotations

import threading
import time

import pytest

from hermes_patch import forks
from hermes_patch.forks import Gate


def held(gate: Gate) -> tuple[threading.Thread, threading.Event]:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with gate.work():
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert inside.wait(20)
    return thread, leave


def test_a_fork_waits_for_who_is_inside_and_keeps_others_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "WAIT_SECONDS", 20.0)
    gate, order = Gate(), list[str]()
    thread, leave = held(gate)
    forking = threading.Thread(target=lambda: (gate.close(), order.append("fork")), daemon=True)
    forking.start()

    def enter() -> None:
        with gate.work():
            order.append("next")

    deadline = time.monotonic() + 20
    while not gate._forking and time.monotonic() < deadline:
        time.sleep(0.01)
    following = threading.Thread(target=enter, daemon=True)
    following.start()
    assert order == []
    leave.set()
    forking.join(20)
    assert order == ["fork"]
    gate.open()
    following.join(20)
    thread.join(20)
    assert order == ["fork", "next"]


def test_nothing_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "WAIT_SECONDS", 0.05)
    gate = Gate()
    _, leave = held(gate)
    gate.close()
    with gate.work():
        pass
    leave.set()
    gate.open()


def test_a_thread_inside_may_enter_again_and_may_fork_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "WAIT_SECONDS", 20.0)
    gate = Gate()
    started = time.monotonic()
    with gate.work():
        gate.close()
        with gate.work():
            pass
        gate.open()
    gate.close()
    gate.open()
    assert gate._inside == 0
    assert time.monotonic() - started < 15
