"""Every process of Hermes that can search or write a message loads the plugin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import targets
from hermes_patch import deploy
from live import configured
from targets import Installed

WATCHING = Path(__file__).parent / "scripts" / "watching"
# What the processes need beside what is installed with Hermes: its extra "acp", and what the
# agent of 0.9 imports.
PROTOCOLS = ("agent-client-protocol==0.9.0", "fire", "termcolor")
START_SECONDS = 60.0
COMMAND = """
import sys
from hermes_cli.main import main
sys.argv = ["hermes", *sys.argv[1:]]
main()
"""
CRON = """
from cron import scheduler
job = {"id": "abcdef123456", "name": "nightly", "prompt": "say hello", "deliver": "local",
       "schedule": {"kind": "once"}, "schedule_display": "once"}
print(scheduler.run_job(job)[0])  # no model is configured: it ends when it would ask one
"""
SURFACES = {
    "gateway": (COMMAND, "gateway", "run"),
    "cron": (CRON,),
    "acp": (COMMAND, "acp"),
    "mcp serve": (COMMAND, "mcp", "serve"),
}


# Hermes 0.9 loads plugins with its agent, which these two import at the first turn.
AT_THE_FIRST_TURN = {
    "gateway": ("import gateway.run\nfrom run_agent import AIAgent",),
    "acp": ("import acp_adapter.server\nfrom run_agent import AIAgent",),
}


def loaded(hermes: Installed, home: Path, surface: str) -> dict[str, Any] | None:
    """Start a process and return our status in it; None when it ended without us."""
    text = (hermes.site / "hermes_cli" / "main.py").read_text(encoding="utf-8")
    at_once = "discover_plugins" in text or surface not in AT_THE_FIRST_TURN
    code, *arguments = (SURFACES if at_once else AT_THE_FIRST_TURN)[surface]
    told = home.parent / f"{surface}.json"
    paths = os.pathsep.join([str(WATCHING), str(targets.overlay("protocols", PROTOCOLS))])
    process = subprocess.Popen(
        hermes.command(code, *arguments),
        env=hermes.environment(home, {"PYTHONPATH": paths, "WATCHED": str(told)}),
        cwd=home,
        stdin=subprocess.PIPE,  # kept open: a protocol on pipes would take its end for the end
        stdout=subprocess.DEVNULL,
        stderr=(home.parent / f"{surface}.err").open("wb"),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None and not told.exists():
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    if not told.exists():
        return None
    status: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return status


def is_there(hermes: Installed, surface: str) -> bool:
    """Tell whether the wheel has that process at all."""
    return surface != "mcp serve" or (hermes.site / "mcp_serve.py").is_file()


@pytest.mark.parametrize("target", targets.BESIDE_019, indirect=True)
def test_every_process_of_hermes_loads_the_plugin(hermes: Installed, tmp_path: Path) -> None:
    home = tmp_path / "a home 家"
    home.mkdir()
    (home / "config.yaml").write_text(configured("http://127.0.0.1:9/v1"))
    deploy.apply(home, hermes_python=hermes.python)
    surfaces = [surface for surface in SURFACES if is_there(hermes, surface)]
    assert len(surfaces) >= 3
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda surface: loaded(hermes, home, surface), surfaces))
    for surface, status in zip(surfaces, found, strict=True):
        assert status is not None, (tmp_path / f"{surface}.err").read_text("utf-8")[-2000:]
        assert {"search", "realtime"} <= set(status["capabilities"]), surface
        assert not status["failures"], surface
