"""Four processes on one state.db of a real Hermes, killed again and again; then an audit.

Two append, one searches, one back-fills, while the embedding server is fine, slow, answers
429 or is down. The same load without the plugin is the control, run first. Bounded: 2 x SECONDS,
plus at most 200 s for starting and stopping both loads, 180 s for the history and 300 s for the
quiet backfill after the second; usually less than a minute for all three.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import soak_audit
import targets
from hermes_patch import config, deploy, store
from hermes_patch.connecting import connect_readonly
from hermes_patch.embedders.base import PROBE_TEXT
from soak_load import QUERIES, SCRIPTS, Load, Outcome, Plan, popen_backfill
from soak_server import SoakServer, vector

SETTLE_SECONDS = 300.0
_LEASE = re.compile(r"^LEASE_SECONDS = [0-9.]+$", re.MULTILINE)
MEMORY_SEARCH = {
    "provider": "openai",
    "model": "stub",
    "minSimilarity": 0.2,
    "queryBudget": 2.0,
    "pause": 0,
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    plan = Plan()
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [target.name.removeprefix("hermes-") for target in targets.CI]
    top.add_argument("--hermes", choices=names, default="0.19.0", help="default: %(default)s")
    numbers: tuple[tuple[str, type, float, str], ...] = (
        ("--seconds", float, plan.seconds, "length of each of the two loads"),
        ("--kill-every", float, plan.kill_every, "seconds between two rounds of kill -9"),
        ("--history", int, plan.history, "messages from before apply"),
        ("--rate", float, plan.rate, "messages a second, each appender"),
        ("--server-rate", float, plan.server_rate, "texts a second of the server while loaded"),
        ("--seed", int, plan.seed, "another seed gives other texts"),
    )
    for name, type_, default, help_ in numbers:
        top.add_argument(
            name, type=type_, default=default, metavar="N", help=f"{help_}; default: %(default)s"
        )
    top.add_argument(
        "--lease-seconds",
        type=float,
        metavar="N",
        help="a shorter lease in the copy under test, so that short runs get over kills as well",
    )
    top.add_argument("--json", action="store_true", help="print JSON instead of a table")
    top.add_argument("--keep", type=Path, metavar="DIR", help="leave homes and logs in DIR")
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run a soak; 0 only if no host call failed for us and the database is as it must be."""
    args = parser().parse_args(words)
    target = next(t for t in targets.CI if t.name.endswith(args.hermes))
    values = {name: getattr(args, name) for name in Plan.__dataclass_fields__}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no child outlives us
    with _folder(args.keep) as folder:
        result = run(targets.provide(target), folder, Plan(**values), args.lease_seconds)
    print(json.dumps(result, ensure_ascii=False, indent=2) if args.json else table(result))
    return 0 if result["ok"] else 1


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def run(
    hermes: targets.Installed, folder: Path, plan: Plan, lease_seconds: float | None = None
) -> dict[str, Any]:
    """Run control and patched load in *folder* and return everything that is reported."""
    _say(f"{hermes.target.name}: {plan.history} messages of history")
    home, control_home = folder / "patched", folder / "control"
    home.mkdir()
    _make_history(hermes, home, plan)
    shutil.copytree(home, control_home)
    _say(f"control, {plan.seconds:g} s")
    control = Load(hermes, control_home, plan, None).run()
    with SoakServer(plan.server_rate) as server:
        block = {**MEMORY_SEARCH, "remote": {"baseUrl": server.url}}
        whole = {"agents": {"defaults": {"memorySearch": block}}}
        (home / "config.yaml").write_text(json.dumps(whole), encoding="utf-8")
        deploy.apply(home, hermes_python=hermes.python)
        if lease_seconds is not None:
            _shorten_lease(home / "plugins" / "hermes_patch" / "hermes_patch", lease_seconds)
        _say(f"patched, {plan.seconds:g} s")
        patched = Load(hermes, home, plan, server).run()
        before = progress(home)
        _say(f"quiet backfill: {before['embedded']} messages have vectors so far")
        server.rate = None
        server.turn("fine")
        settle = _quiet_backfill(hermes, home, folder)
        traffic = _traffic(server, patched, config.load(home).batch_size)
    checks = soak_audit.database(home / "state.db", config.load(home), patched.written, vector)
    return _result(hermes, plan, control, patched, before, settle, traffic, checks)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _shorten_lease(package: Path, seconds: float) -> None:
    changed = 0
    for path in package.rglob("*.py"):
        text, count = _LEASE.subn(f"LEASE_SECONDS = {seconds}", path.read_text("utf-8"))
        if count:
            path.write_text(text, "utf-8")
            changed += count
    assert changed, f"no LEASE_SECONDS in {package}"


def _make_history(hermes: targets.Installed, home: Path, plan: Plan) -> None:
    given = {"session": "history", "first": 0, "count": plan.history, "seed": plan.seed}
    log = {"log": str(home.parent / "history.log")}
    hermes.run(SCRIPTS / "soak_append.py", json.dumps({**given, **log}), home=home, timeout=180)


def progress(home: Path) -> dict[str, Any]:
    """Return how far the load came by itself, before the quiet backfill."""
    conn = connect_readonly(home / "state.db", timeout=10)
    try:
        noted = json.loads(store.state(conn, "failures") or "[]")
        mark = int(store.state(conn, "watermark") or 0)
        embedded = conn.execute("SELECT count(DISTINCT msg_id) FROM message_embeddings").fetchone()
        newer = conn.execute(
            "SELECT count(DISTINCT msg_id) FROM message_embeddings WHERE msg_id > ?", (mark,)
        ).fetchone()
        skips = conn.execute(
            "SELECT reason, count(*) FROM embedding_skips WHERE space_id <> 0 GROUP BY reason"
        ).fetchall()
    finally:
        conn.close()
    failures = [f"{one['kind']} x{one['count']}: {one['message']}" for one in noted]
    return {
        "embedded": embedded[0],
        "of_them_new": newer[0],
        "failed": dict(skips),
        "noted_failures": failures,
    }


def _quiet_backfill(hermes: targets.Installed, home: Path, folder: Path) -> dict[str, Any]:
    """Run one backfill to its end with a fine server and nobody else there."""
    started = time.monotonic()
    out = folder / "quiet-backfill.out"
    process = popen_backfill(hermes, home, out)
    try:
        code: int | str = process.wait(SETTLE_SECONDS)
    except subprocess.TimeoutExpired:
        code = f"not done in {SETTLE_SECONDS:g} s"
    finally:
        process.kill()
        process.wait()
    said = out.read_text("utf-8", "replace")
    told = json.loads(said[said.index("{") :]) if code == 0 else {"error": said[-500:]}
    return {**told, "exit": code, "seconds": round(time.monotonic() - started, 1)}


def _traffic(server: SoakServer, patched: Outcome, batch: int) -> dict[str, Any]:
    ours = {text: n for text, n in server.answered.items() if text not in {*QUERIES, PROBE_TEXT}}
    kills = sum(ended.killed for ended in patched.ended.values())
    return {
        "requests": dict(server.requests),
        "texts_in_requests": server.received,
        "texts_embedded": sum(ours.values()),
        "distinct_texts": len(ours),
        "texts_embedded_again": sum(n - 1 for n in ours.values()),
        "kills": {name: ended.killed for name, ended in patched.ended.items()},
        "kills_may_cost_texts": kills * batch,
    }


def _result(
    hermes: targets.Installed,
    plan: Plan,
    control: Outcome,
    patched: Outcome,
    before: dict[str, Any],
    settle: dict[str, Any],
    traffic: dict[str, Any],
    checks: list[soak_audit.Check],
) -> dict[str, Any]:
    mine, theirs = sum(patched.failures.values()), sum(control.failures.values())
    unharmed = mine <= theirs
    sound = settle["exit"] == 0 and all(check.ok for check in checks)
    return {
        "ok": unharmed and sound,
        "hermes": hermes.target.name,
        "plan": asdict(plan),
        "no_host_call_failed_for_us": unharmed,
        "database_is_sound": sound,
        "control": _told(control),
        "patched": {**_told(patched), "before_settle": before},
        "settle": settle,
        "checks": [{**asdict(check), "ok": check.ok} for check in checks],
        "traffic": traffic,
    }


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "seconds": round(outcome.seconds, 1),
        "calls": dict(outcome.calls),
        "failures": dict(outcome.failures),
        "ms": {call: percentiles(values) for call, values in outcome.ms.items()},
        "processes": {
            name: {"killed": e.killed, "exits": dict(e.exits), "last_words": e.words}
            for name, e in outcome.ended.items()
        },
        "journal_mode": outcome.journal,
        "wal_bytes_at_end": outcome.wal_end,
        "wal_bytes_most": outcome.wal_most,
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and the largest of *values*."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "p50": ordered[round(0.5 * last)],
        "p99": ordered[round(0.99 * last)],
        "max": ordered[last],
    }


def table(result: dict[str, Any]) -> str:
    """Return *result* for a person."""
    control, patched, traffic = result["control"], result["patched"], result["traffic"]
    lines = [
        f"{result['hermes']}, {result['plan']['seconds']:g} s each, "
        f"journal mode {patched['journal_mode']}: {'OK' if result['ok'] else 'FAILED'}",
        "",
        f"(1) host calls{'':27}unpatched   patched",
    ]
    for call in ("append_message", "search_messages", "session_search"):
        lines.append(_row(call, control["calls"].get(call, 0), patched["calls"].get(call, 0)))
    failures = [Counter(side["failures"]) for side in (control, patched)]
    lines.append(_row("failed", *(sum(side.values()) for side in failures)))
    lines += [
        _row(f"  {what}", *(side[what] for side in failures)) for what in sum(failures, Counter())
    ]
    lines += ["", f"(2) after one quiet backfill ({_settled(result['settle'])})"]
    for check in result["checks"]:
        mark = "ok" if check["ok"] else f"{check['wrong']} WRONG {check['examples']}"
        lines.append(f"  {check['name']:<55}{check['looked_at']:>8}  {mark}")
    lines += ["", f"(3) milliseconds{'':25}unpatched   patched"]
    for call in ("append_message", "search_messages", "session_search"):
        for what in ("p50", "p99", "max"):
            sides = [side["ms"].get(call, {}).get(what, 0) for side in (control, patched)]
            lines.append(_row(f"{call} {what}", *sides))
    lines += ["", "(4) traffic and kills"]
    return "\n".join([*lines, *_facts(control, patched, traffic)])


def _row(name: str, control: float, patched: float) -> str:
    cells = [f"{n:>10.1f}" if isinstance(n, float) else f"{n:>10}" for n in (control, patched)]
    return f"  {name:<38}{''.join(cells)}"


def _settled(settle: dict[str, Any]) -> str:
    if settle["exit"] != 0:
        return f"exit {settle['exit']}: {settle['error']}"
    return f"{settle['seconds']} s, {settle['stored']} messages, {settle['texts_sent']} texts sent"


def _facts(control: dict[str, Any], patched: dict[str, Any], traffic: dict[str, Any]) -> list[str]:
    before = patched["before_settle"]
    requests = ", ".join(f"{mode} {n}" for mode, n in traffic["requests"].items())
    facts = [
        ("requests by mode", f"{sum(traffic['requests'].values())} ({requests})"),
        ("texts in them", traffic["texts_in_requests"]),
        ("texts embedded", f"{traffic['texts_embedded']} ({traffic['distinct_texts']} distinct)"),
        (
            "embedded more than once",
            f"{traffic['texts_embedded_again']} (kills may cost {traffic['kills_may_cost_texts']})",
        ),
        ("kills", ", ".join(f"{name} {n}" for name, n in traffic["kills"].items() if n)),
        ("kills in the control", control["processes"]["appender"]["killed"]),
        ("back-filler, exits by code", patched["processes"]["back-filler"]["exits"] or "none"),
        ("  its last error", patched["processes"]["back-filler"]["last_words"] or "none"),
        (
            "with vectors before the backfill",
            f"{before['embedded']} messages, {before['of_them_new']} of them new",
        ),
        ("  recorded as failed then", before["failed"] or "none"),
        *(("  noted failure", failure) for failure in before["noted_failures"]),
    ]
    for name, side in (("unpatched", control), ("patched", patched)):
        end, most = side["wal_bytes_at_end"] / 1e6, side["wal_bytes_most"] / 1e6
        facts.append((f"WAL {name}", f"{end:.1f} MB at the end, {most:.1f} MB at most"))
    return [f"  {name:<38}{value}" for name, value in facts]


if __name__ == "__main__":
    sys.exit(main())
