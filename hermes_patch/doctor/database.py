"""Checks of state.db: our tables, whether every row of them fits, and what is missing."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from .. import failures, layout, lease, migrations, spaces, store, sweep, vectors
from ..connecting import connect_readonly
from ..deploy import database as writing
from ..deploy import hermes
from ..errors import VectorError
from ..overview import coverage, current_space
from ..text import counted
from .check import OK, PROBLEM, SKIPPED, WARNING, Check, Patient

LARGEST_CHECKED = 200_000_000
"""Bytes up to which the whole file is checked for damage."""
LARGEST_SWEPT = 300_000
"""Messages up to which every text is compared with its vectors."""
_EXPECTED = {"msg_id", "session_id", "embedding", "text_hash", "dims", "space_id", "chunk"}


def file(patient: Patient) -> Iterator[Check]:
    """The file itself: there, readable, undamaged, and without triggers on our tables."""
    path = patient.database
    if not writing.is_ready(path):
        yield Check("database", WARNING, f"{path} holds no messages yet", "start Hermes once")
        return
    with closing(connect_readonly(path, leave_no_trace=True)) as conn:
        yield Check("database", OK, f"{path}, {path.stat().st_size / 1e6:.1f} MB")
        yield _damage(conn, path.stat().st_size)
        yield _triggers(conn)


def _damage(conn: sqlite3.Connection, size: int) -> Check:
    if size > LARGEST_CHECKED:
        return Check("integrity", SKIPPED, f"{size / 1e6:.0f} MB: too large for a quick check")
    found = str(conn.execute("PRAGMA quick_check(1)").fetchone()[0])
    if found == "ok":
        return Check("integrity", OK, "the quick check found no damage")
    remedy = "stop Hermes, keep a copy, and run `hermes sessions recover` where there is one"
    return Check("integrity", PROBLEM, "the quick check found damage", remedy)


def _triggers(conn: sqlite3.Connection) -> Check:
    rows = conn.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
    ours = [
        name for name, on, sql in rows if any(t in (on, *_words(sql)) for t in migrations.TABLES)
    ]
    if not ours:
        return Check("triggers", OK, "none touches our tables")
    finding = f"trigger {ours[0]} touches our tables; hermes-patch makes none"
    remedy = f"drop it (DROP TRIGGER {ours[0]}): it can break Hermes's own deletes"
    return Check("triggers", PROBLEM, finding, remedy)


def _words(sql: str | None) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in sql or "").split()


def tables(patient: Patient) -> Iterator[Check]:
    """Our tables: all there, in the expected shape."""
    path = patient.database
    if not writing.is_ready(path):
        return
    with closing(connect_readonly(path, leave_no_trace=True)) as conn:
        missing = migrations.pending(conn)
        columns = layout.columns(conn, "message_embeddings")
        names = ", ".join(migrations.applied(conn))
    if missing:
        yield Check(
            "tables",
            PROBLEM,
            f"missing: migration {', '.join(missing)}",
            "run `hermes-patch apply` again",
            fix=lambda: _migrate(patient),
        )
    elif not columns >= _EXPECTED:
        absent = ", ".join(sorted(_EXPECTED - columns))
        remedy = "run `hermes-patch revert --purge`, then apply and backfill"
        yield Check("tables", PROBLEM, f"message_embeddings lacks {absent}", remedy)
    else:
        yield Check("tables", OK, f"migrations {names}")


def _migrate(patient: Patient) -> None:
    source = patient.found.source_dir if patient.found else None
    owns = hermes.host_schema_version(source) == 6
    writing.migrate(patient.database, writing.schema(), owns=owns, watermark=True)


def rows(patient: Patient) -> Iterator[Check]:
    """Our rows: none of a deleted message, none of another text, no unusable vector."""
    if not writing.is_migrated(patient.database):
        return
    with closing(connect_readonly(patient.database, leave_no_trace=True)) as conn:
        if not store.exists(conn):
            return
        yield _fitting(patient, conn)
        yield _usable(patient, conn)
        yield _lease(patient, conn)


def _fitting(patient: Patient, conn: sqlite3.Connection) -> Check:
    count = conn.execute("SELECT count(*) FROM message_embeddings").fetchone()[0]
    large = count > LARGEST_SWEPT
    found = sweep.recent(conn, LARGEST_SWEPT // 10) if large else sweep.everything(conn)
    if not found:
        most = " (of the newest messages)" if large else ""
        return Check("rows", OK, f"{counted(count, 'vector')} fit their messages{most}")
    gone, edited = counted(len(found.gone), "message"), counted(len(found.edited), "message")
    return Check(
        "rows",
        WARNING,
        f"rows of {gone} that are gone, and of {edited} whose text changed; none is served",
        "Hermes's next idle moment or `hermes-patch backfill` mends it",
        fix=lambda: _mend(patient, found),
    )


def _mend(patient: Patient, found: sweep.Finding) -> None:
    for part in sweep.batches(found):
        writing.change(patient.database, partial(sweep.mend, found=part))


def _drop(patient: Patient, msg_ids: set[int]) -> None:
    for part in sweep.batches(sweep.Finding(edited=msg_ids)):
        writing.change(patient.database, partial(sweep.drop, msg_ids=part.edited))


def _usable(patient: Patient, conn: sqlite3.Connection) -> Check:
    dims = {space.id: space.dims for space in spaces.find(conn)}
    bad = set()
    for msg_id, space_id, size, blob in conn.execute(
        "SELECT msg_id, space_id, dims, embedding FROM message_embeddings"
    ):
        if dims.get(space_id) != size or not _is_unit(blob, size):
            bad.add(int(msg_id))
    if not bad:
        return Check("vectors", OK, "all are of unit length and of the size of their space")
    return Check(
        "vectors",
        PROBLEM,
        f"vectors of {counted(len(bad), 'message')} are of a wrong size or length",
        "drop them, so that they are made anew",
        fix=lambda: _drop(patient, bad),
    )


def _is_unit(blob: bytes, dims: int) -> bool:
    try:
        values = vectors.unpack(blob)
    except (VectorError, TypeError):
        return False
    norm = math.hypot(*values)
    return len(values) == dims and math.isfinite(norm) and abs(norm - 1.0) < 0.01


def _lease(patient: Patient, conn: sqlite3.Connection) -> Check:
    row = conn.execute("SELECT owner, expires_at FROM embedding_lease").fetchone()
    if row is None:
        return Check("lease", OK, "nobody indexes just now")
    owner, expires = str(row[0]), float(row[1])
    if lease.holder(conn, time.time()) is not None:
        return Check("lease", OK, f"{owner} indexes just now")
    state = "is over" if expires <= time.time() else "is that of a process that died"
    release: Callable[[sqlite3.Connection], None] = partial(lease.release, owner=owner)
    return Check(
        "lease",
        WARNING,
        f"the lease of {owner} {state}",
        "nothing has to be done: whoever indexes next takes it",
        fix=lambda: writing.change(patient.database, release),
    )


def contents(patient: Patient) -> Iterator[Check]:
    """What is embedded, what waits, what failed, and what lies unused."""
    settings = patient.settings
    if settings is None or not settings.enabled or not writing.is_migrated(patient.database):
        return
    with closing(connect_readonly(patient.database, leave_no_trace=True)) as conn:
        if not store.exists(conn):
            return
        current = current_space(conn, settings)
        counts = coverage(conn, layout.read(conn), current, settings)
        assert counts is not None
        yield _coverage(counts)
        if counts["failed"]:
            finding = f"{counted(counts['failed'], 'message')} could not be embedded"
            remedy = "`hermes-patch status` says why; `hermes-patch backfill --retry-failed`"
            yield Check("failed", WARNING, finding, remedy)
        unused = [space for space in spaces.find(conn) if space != current]
        if unused and current is not None:
            names = ", ".join(dict.fromkeys(space.model for space in unused))
            yield Check("spaces", WARNING, f"vectors of {names} are kept and not used")
        for failure in failures.read(conn):
            if failure.over is None:
                finding = f"{failure.kind}, {failure.count} ×: {failure.message}"
                yield Check("failure", WARNING, finding, failures.remedy(failure))


def _coverage(counts: dict[str, float]) -> Check:
    said = f"{counts['embedded']} of {counts['embeddable']} messages can be found by meaning"
    if counts["ratio"] >= 0.99:
        return Check("coverage", OK, said)
    return Check("coverage", WARNING, said, "run `hermes-patch backfill`")


CHECKS = (file, tables, rows, contents)
