"""The memory itself: add, search, forget and list notes, each one call.

Texts are embedded before a transaction is opened. What an embedder that is down leaves
without a vector is stored all the same and embedded later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import layout, nearest, vectors
from .. import text as texts
from ..engine import Engine
from ..errors import EmbedderError, HermesPatchError
from ..guard import explain
from ..layout import Filters
from ..spaces import Space
from . import details, notes
from .database import Database
from .notes import Note
from .options import Options
from .scopes import GLOBAL, is_scope
from .vectorising import Embedded, Vectoriser

MOST_CHARACTERS = 100_000


@dataclass(frozen=True)
class Added:
    """What came of adding a text.

    ``outcome`` is ``added``, ``revived``, ``exists`` or ``duplicate`` (skipped: ``note`` says
    the same, with ``similarity``). ``vector`` is False while there is none yet, and ``why``.
    """

    outcome: str
    note: Note
    similarity: float | None = None
    vector: bool = True
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return everything in types that ``json.dumps`` takes."""
        shown: dict[str, Any] = {"outcome": self.outcome, "note": self.note.to_json()}
        if self.similarity is not None:
            shown["similarity"] = round(self.similarity, 3)
        if not self.vector:
            shown["vector"] = f"later: {self.why}"
        return shown


@dataclass(frozen=True)
class Twin:
    """A note near to another text, with the cosine of their chunks that are farthest apart."""

    note: Note
    similarity: float


class Memory:
    """The notes of one Hermes home. All methods may be called from several threads."""

    def __init__(
        self,
        options: Options,
        vendor: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the database, made where it is missing; raises sqlite3.Error, OSError."""
        self.options = options
        self.clock = clock
        self._database = Database(options.path)
        self.engine = Engine(options.path, lambda: options.settings, owned=True, vendor=vendor)
        self.engine.attach(self._database, self._database.identity)
        self.vectoriser = Vectoriser(self.engine)
        self._adding = threading.Lock()

    # -- writing ---------------------------------------------------------------------------

    def add(
        self, text: str, scope: str = GLOBAL, *, target: str | None = None, dedupe: bool = True
    ) -> Added:
        """Have a live note of *text* in *scope*; *target* marks it as Hermes's own.

        A note of Hermes's own is never skipped as a duplicate.

        Raises:
            HermesPatchError: the text is empty, too long or without a word, or the scope is none.
            sqlite3.Error: the database could not be written.
        """
        clean = check(text, scope)
        known = self._revived(clean, scope, target)
        if known is not None:
            return known
        space, made = self._embedded(clean)
        guarded = dedupe and self.options.dedupe_on_write and target is None
        with self._adding:
            if guarded and space is not None and made.chunks:
                twin = self.twin(space, clean, made, [scope])
                if twin is not None:
                    return Added("duplicate", twin.note, twin.similarity)
            return self._put(clean, scope, target, space, made)

    def add_embedded(
        self, text: str, scope: str, target: str | None, space: Space, made: Embedded
    ) -> Added:
        """Store a note whose vectors were made before."""
        return self._put(check(text, scope), scope, target, space, made)

    def _revived(self, text: str, scope: str, target: str | None) -> Added | None:
        """Return what came of a text that is known, tombstones included; None for a new one."""
        key = texts.text_hash(text)
        with self.engine.reader() as conn:
            before = notes.by_hash(conn, key, scope)
            space = self.engine.indexer.space(conn)
            known = before is not None and self._has_vector(conn, before.id, space)
        if before is None or not known:
            return None
        return self._put(text, scope, target, None, Embedded())

    def _has_vector(self, conn: Any, note_id: int, space: Space | None) -> bool:
        return space is not None and bool(
            conn.execute(
                "SELECT 1 FROM message_embeddings WHERE msg_id = ? AND space_id = ? LIMIT 1",
                (note_id, space.id),
            ).fetchone()
        )

    def _embedded(self, text: str) -> tuple[Space | None, Embedded]:
        try:
            space = self.vectoriser.space(time.monotonic())
            return space, self.vectoriser.embed([text], space)[0]
        except EmbedderError as error:
            self.engine.guard.note("embedding", error)
            return None, Embedded(reason=explain(error))

    def _put(
        self, text: str, scope: str, target: str | None, space: Space | None, made: Embedded
    ) -> Added:
        key, when = texts.text_hash(text), self.clock()

        def change(conn: Any) -> tuple[Note, str]:
            note, outcome = notes.insert(conn, text, key, scope, when)
            if space is not None and made.chunks and not self._has_vector(conn, note.id, space):
                notes.put_vectors(conn, space, note, made.chunks)
            if target is not None:
                notes.set_canonical(conn, note.id, target)
            return notes.by_ids(conn, [note.id])[note.id], outcome

        note, outcome = self.engine.write(change)
        return Added(outcome, note, vector=not made.reason, why=made.reason)

    def forget(self, what: int | str, scopes: Sequence[str] | None = None) -> list[Note]:
        """Make the note with that id, or that very text, a tombstone; return what was forgotten.

        Empty when there is none of *scopes* (any for None).
        """
        with self.engine.reader() as conn:
            if isinstance(what, int):
                found = list(notes.by_ids(conn, [what]).values())
            else:
                key = texts.text_hash(texts.message_text(what))
                every = scopes or [row[0] for row in conn.execute("SELECT id FROM scopes")]
                found = [n for scope in every if (n := notes.by_hash(conn, key, scope))]
        wanted = [
            note
            for note in found
            if note.superseded is None and (scopes is None or note.scope in scopes)
        ]
        when = self.clock()
        return self.engine.write(
            lambda conn: [n for n in wanted if notes.supersede(conn, n.id, notes.FORGOTTEN, when)]
        )

    # -- comparing -------------------------------------------------------------------------

    def neighbours(
        self,
        space: Space,
        vector: Sequence[float],
        k: int,
        floor: float,
        scopes: Sequence[str],
        deadline: float | None = None,
    ) -> list[nearest.Neighbour]:
        """Return the *k* live notes of *scopes* nearest to *vector*, the best first."""
        filters = Filters(source_filter=scopes)
        with self.engine.reader() as conn:
            return nearest.nearest(
                conn,
                space.id,
                space.dims,
                vector,
                k,
                floor,
                filters,
                layout.read(conn),
                deadline,
                self.engine.coarse,
            )

    def near(
        self, space: Space, made: Embedded, floor: float, scopes: Sequence[str], k: int = 8
    ) -> list[Twin]:
        """Return live notes that every chunk of a text is near to, the nearest first."""
        found: dict[int, float] | None = None
        for chunk in made.chunks:
            vector = vectors.unpack(chunk.blob)
            near = self.neighbours(space, vector, k, floor, scopes)
            these = {one.msg_id: one.similarity for one in near}
            if found is None:
                found = these
            else:
                found = {n: min(s, these[n]) for n, s in found.items() if n in these}
        if not found:
            return []
        with self.engine.reader() as conn:
            known = notes.by_ids(conn, found)
        twins = [Twin(known[n], similarity) for n, similarity in found.items() if n in known]
        return sorted(twins, key=lambda twin: (-twin.similarity, twin.note.id))

    def twin(self, space: Space, text: str, made: Embedded, scopes: Sequence[str]) -> Twin | None:
        """Return the nearest live note that says the same as *text*, None when there is none."""
        near = self.near(space, made, self.options.duplicate_threshold, scopes)
        return next((one for one in near if not details.differ(text, one.note.text)), None)

    # -- telling ---------------------------------------------------------------------------

    def listed(
        self,
        scopes: Sequence[str] | None,
        *,
        tombstones: bool = False,
        limit: int = 50,
        offset: int = 0,
    ) -> list[Note]:
        """Return notes, the newest first."""
        with self.engine.reader() as conn:
            return notes.live(conn, scopes, tombstones=tombstones, limit=limit, offset=offset)

    def stats(self) -> dict[str, Any]:
        """Return counts, the model and the way vectors are compared."""
        with self.engine.reader() as conn:
            space = self.engine.indexer.space(conn)
            data: dict[str, Any] = dict(notes.counts(conn, space.id if space else None))
            data["scopes"] = dict(
                conn.execute(
                    "SELECT scope, count(*) FROM notes WHERE superseded IS NULL GROUP BY scope"
                ).fetchall()
            )
            data["waiting_writes"] = conn.execute("SELECT count(*) FROM mirror_queue").fetchone()[0]
            data["tier"] = nearest.tier(conn)
        data["model"] = self.engine.embedder.describe().model
        data["database"] = str(self.options.path)
        data["failures"] = [vars(failure) for failure in self.engine.guard.failures()]
        return data

    def refresh(self, going: Callable[[], bool] = lambda: True) -> int:
        """Embed the notes that have no vector in the space in use; return how many got one.

        Raises EmbedderError, sqlite3.Error.
        """
        stored = 0
        while going():
            result = self.engine.indexer.index_batch()
            stored += result.stored
            if result.done:
                break
        return stored

    def close(self) -> None:
        """Let the embedder and the codes go."""
        self.engine.close()


def check(text: str, scope: str = GLOBAL) -> str:
    """Return *text* as it is stored; raises HermesPatchError with what is wrong."""
    clean = texts.message_text(text)
    if not clean:
        raise HermesPatchError("the note is empty; say what to remember")
    if len(clean) > MOST_CHARACTERS:
        raise HermesPatchError(
            f"the note has {len(clean)} characters, at most {MOST_CHARACTERS} are kept; shorten it"
        )
    if not texts.is_embeddable(clean):
        raise HermesPatchError("the note has no words that mean something; say a whole sentence")
    if not is_scope(scope):
        raise HermesPatchError(f"{scope!r} is no scope; use global or project:<id>")
    return clean
