"""What apply and revert did, as data: steps in order, and sentences for the user."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config import Settings


@dataclass(frozen=True)
class Step:
    """One thing that was touched or looked at.

    ``action`` is created, updated, unchanged, removed, kept or, in a dry run,
    ``would create`` and so on.
    """

    what: str
    path: str
    action: str


@dataclass(frozen=True)
class Report:
    """The outcome of apply or revert."""

    command: str
    home: Path
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    takeover: bool = False
    dry_run: bool = False

    @property
    def changed(self) -> bool:
        """True when at least one step changed something, or would."""
        return any(step.action not in ("unchanged", "kept") for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return everything in types that ``json.dumps`` takes."""
        return {
            "command": self.command,
            "home": str(self.home),
            "dry_run": self.dry_run,
            "changed": self.changed,
            "takeover": self.takeover,
            "steps": [asdict(step) for step in self.steps],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the report for a terminal, one line a step, the notes after them."""
        width = max((len(step.action) for step in self.steps), default=0)
        steps = [f"{step.action:<{width}}  {step.what}  {step.path}" for step in self.steps]
        return [*steps, *([""] if self.notes else []), *self.notes]


_DRY = {"created": "would create", "updated": "would update", "removed": "would remove"}


def dry(step: Step) -> Step:
    """Return *step* as a dry run says it."""
    return Step(step.what, step.path, _DRY.get(step.action, step.action))


def describe_sending(settings: Settings) -> str:
    """Return one sentence on what leaves this machine, and where it goes."""
    if not settings.enabled:
        return "Semantic recall is off (provider: off); nothing is embedded and nothing is sent."
    if settings.provider == "local":
        return "Embeddings are computed on this machine; nothing leaves it."
    where = f"{settings.host} (model {settings.model})"
    if settings.is_loopback:
        return (
            f"Embeddings are computed on this machine by {where}; older messages "
            "only by `hermes-patch backfill`."
        )
    secrets = "secrets redacted" if settings.redact else "secrets NOT redacted (redact: false)"
    if not settings.realtime:
        return (
            f"Search queries will be sent to {where}, {secrets}; messages "
            "only by `hermes-patch backfill`."
        )
    return (
        f"New messages and search queries will be sent to {where}, {secrets}; "
        "older ones only by `hermes-patch backfill`."
    )
