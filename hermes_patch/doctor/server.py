"""Checks of what makes the vectors: it answers, and it is what made those that are stored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from .. import embedders, failures, spaces, store, vectors
from ..config import Settings
from ..connecting import connect_readonly
from ..deploy import database as writing
from ..embedders.base import PROBE_TEXT, Embedder
from ..embedders.local import LocalEmbedder
from ..errors import BadResponse, EmbedderError
from ..guard import Failure
from .check import OK, PROBLEM, SKIPPED, WARNING, Check, Patient

PATIENCE = 20.0
"""Seconds a server has for a short text, enough to load its model; less if ``timeout`` is."""


def embedder(patient: Patient) -> Iterator[Check]:
    """One probe sentence through the whole way, in Hermes's Python or to the server."""
    settings = patient.settings
    if settings is None or not settings.enabled:
        yield Check("embedder", SKIPPED, "the configuration names none")
        return
    if settings.provider == "local" and patient.found is None:
        yield Check("embedder", SKIPPED, "no Hermes, so nobody to run the local model with")
        return
    used = _create(patient, settings)
    started = time.monotonic()
    try:
        vector = _probe(used, settings)
    except EmbedderError as error:
        kind = f"embedder: {type(error).__name__}"
        remedy = failures.remedy(Failure(kind, "", 1, 0.0))
        yield Check("embedder", PROBLEM, str(error), remedy)
        return
    finally:
        used.close()
    where = "on this machine" if settings.provider == "local" else settings.host
    took = (time.monotonic() - started) * 1000
    yield Check("embedder", OK, f"{len(vector)} dimensions in {took:.0f} ms, {where}")
    yield from _same_engine(patient, settings, used, vector)


def _create(patient: Patient, settings: Settings) -> Embedder:
    if settings.provider == "local":
        assert patient.found is not None
        vendor = patient.vendor if patient.vendor.is_dir() else None
        return LocalEmbedder(settings.model, vendor, python=str(patient.found.python))
    return embedders.create(settings)


def _probe(used: Embedder, settings: Settings) -> list[float]:
    """Return the vector of the probe sentence as a document; a server gets one try, no more."""
    if settings.provider == "openai":
        alike = replace(settings, query_prefix=settings.document_prefix)
        with closing(embedders.create(alike)) as once:
            return once.embed_query(PROBE_TEXT, min(settings.timeout, PATIENCE))
    item = used.embed_documents([PROBE_TEXT])[0]
    if item.vector is None:
        raise BadResponse(f"no vector for a short sentence: {item.reason}")
    return item.vector


def _same_engine(
    patient: Patient, settings: Settings, used: Embedder, probe: Sequence[float]
) -> Iterator[Check]:
    if not writing.is_migrated(patient.database):
        return
    with closing(connect_readonly(patient.database, leave_no_trace=True)) as conn:
        if not store.exists(conn):
            return
        known = spaces.find(conn, spaces.settings_key(used.describe(), settings.max_tokens))
        others = bool(spaces.find(conn))
    probes = [space.probe for space in known if space.probe is not None]
    near = [vectors.cosine(old, probe) for old in probes if len(old) == len(probe)]
    if any(value >= spaces.SAME_ENGINE for value in near):
        yield Check("engine", OK, "it gives the vectors that are stored")
    elif known or others:
        finding = "it gives other vectors than those stored: they are never compared"
        remedy = (
            "run `hermes-patch backfill` to embed the history anew, or go back to the old model"
        )
        yield Check("engine", WARNING, finding, remedy)


CHECKS = (embedder,)
