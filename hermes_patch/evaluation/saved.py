"""Databases that are filled and embedded already, kept between runs in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .. import embedders, spaces, text
from ..config import Settings
from .sets import EvaluationSet


def folder() -> Path:
    """Return where databases are kept; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".cache") / "hermes-patch" / "eval"


@dataclass(frozen=True)
class Saved:
    """The place in the cache of one set, embedded in one space, for one schema of Hermes."""

    path: Path

    @classmethod
    def of(
        cls, given: EvaluationSet, settings: Settings, vendor: Path, schema: int | None
    ) -> Saved:
        """Return the place; *vendor* holds the packages of the local model."""
        embedder = embedders.create(settings, vendor if vendor.is_dir() else None)
        try:
            key = spaces.settings_key(embedder.describe(), settings.max_tokens)
        finally:
            embedder.close()
        # Which texts a message gives is no setting, so a change there shows in the code alone.
        how = Path(text.__file__).read_text(encoding="utf-8")
        parts = (given.digest(), key, settings.base_url, ",".join(settings.roles), schema, how)
        digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
        safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in given.name)[:60]
        return cls(folder() / f"{safe}-schema{schema}-{digest}.db")

    def restore(self, database: Path) -> bool:
        """Copy the kept database to *database*; False where there is none that is whole."""
        if not self.path.is_file():
            return False
        shutil.copyfile(self.path, database)
        try:
            with closing(sqlite3.connect(database)) as conn:
                whole = bool(conn.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.DatabaseError:
            whole = False
        if not whole:
            database.unlink()
            self.path.unlink(missing_ok=True)
        return whole

    def keep(self, database: Path) -> None:
        """Copy *database*, which nobody has open, into the cache; at once or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
        os.close(number)
        part = Path(name)
        try:
            with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(part)) as to:
                source.backup(to)
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)
