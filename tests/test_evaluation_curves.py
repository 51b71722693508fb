"""What a leg is said to find at a threshold is what the search finds with it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databases import DIMS, SPACE, HostDatabase
from hermes_patch import host, legs, recall, relaxed, search
from hermes_patch.evaluation import steps
from hermes_patch.evaluation.running import THRESHOLDS
from hermes_patch.search import Request, VectorQuery

WORDS = "brake rain rim tea garden window seedling pump valve cable router lamp".split()
ASKED = "brake rain tea garden router lamp"
FLOOR, OPENING = 0.3, 0.72  # which nothing reaches
PATCHED: list[tuple[Any, str]] = [
    (search, "fuse"),
    (search._Search, "outcome"),
    (relaxed, "GATE"),
    (relaxed, "ALONE_GATE"),
    (legs, "DEPTH"),
    (recall, "LEGS_SECONDS"),
    (host, "PREPARE_SECONDS"),
]


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDatabase]:
    """Conversations at random, with more of the question in some and nearer to it."""
    for owner, name in PATCHED:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    database = HostDatabase(tmp_path / "state.db", "external")
    chance = random.Random(5)
    for number in range(80):
        for _ in range(chance.randint(1, 5)):
            text = " ".join(chance.sample(WORDS, chance.randint(1, 7)))
            cosine = chance.uniform(0.0, 0.7)
            vector = (cosine, (1 - cosine**2) ** 0.5, 0.0)
            database.say(f"s{number}", f"{text} {chance.random()}", vector=vector)
    yield database
    database.conn.close()


def sessions(db: HostDatabase, floor: float | None, opening: float | None) -> list[str]:
    """Return the conversations that one leg alone finds: by vectors with a floor, else by words."""
    reader = db.reader()
    wanted = VectorQuery(SPACE, DIMS, (1.0, 0.0, 0.0), floor, opening) if floor else None
    weights = (0.0, 0.0, 1.0) if wanted else (1.0, 1.0, 0.0)
    outcome = search.fuse(
        reader,
        [],
        Request(ASKED, limit=50),
        wanted,
        relaxed=wanted is None,
        weights=weights,
        rrf_k=20,
    )
    reader.close()
    return list(dict.fromkeys(row["session_id"] for row in outcome.rows))[:10]


def swept(db: HostDatabase, mode: str) -> dict[float, list[str]]:
    watch = steps._Sweep(mode, THRESHOLDS, {"floor": FLOOR, "opening": OPENING})
    sessions(db, *((FLOOR, OPENING) if mode == "floor" else (None, None)))
    return dict(zip(watch.thresholds, watch.swept["answers"], strict=True))


def test_the_vector_leg_is_swept_as_the_search_applies_floor_and_opening(
    db: HostDatabase,
) -> None:
    chosen = (0.1, 0.25, FLOOR, 0.5, 0.62, 0.66, 0.69, OPENING, 0.75)
    real = {at: sessions(db, min(at, FLOOR), at) for at in chosen}
    found = swept(db, "floor")
    assert {at: found[at] for at in chosen} == real
    assert real[0.1] != real[FLOOR] == real[0.62] and real[OPENING] == []


def test_the_relaxed_leg_is_swept_as_the_search_applies_its_gate(
    db: HostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = {}
    for at in (0.0, 0.25, 0.35, 0.5, 0.7, 0.8, 0.9, 1.0):
        with monkeypatch.context() as patch:
            patch.setattr(relaxed, "ALONE_GATE", at)
            real[at] = sessions(db, None, None)
    found = swept(db, "gate")
    assert {at: found[at] for at in real} == real
    assert len({tuple(one) for one in real.values()}) > 3


def test_the_thresholds_in_use_are_among_those_swept(db: HostDatabase) -> None:
    watch = steps._Sweep("floor", [0.1, 0.2], {"floor": 0.15, "opening": None})
    assert watch.thresholds == [0.1, 0.15, 0.2] and watch.used == {"floor": 0.15}
    watch = steps._Sweep("gate", [0.1], {"floor": 0.15, "opening": None})
    assert watch.used == {"alone": 0.25, "beside vectors": 0.35}
    assert (relaxed.GATE, relaxed.ALONE_GATE, relaxed.LEAST) == (0.0, 0.0, 0.1)
