"""Replace attributes of somebody else's classes and modules, and put back exactly what was.

Knows nothing about Hermes. Everything is planned before anything is touched; a replacement
says who made it; reverting restores the raw entry of ``vars(owner)`` (or its absence), and
only where our object still is the one in place. Where somebody patched above us, ours stays
and passes through, since taking it out would throw away theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MARK = "__hermes_patch__"
ALREADY = "is patched already"
_ABSENT: Any = object()


@dataclass(frozen=True)
class Patch:
    """One attribute to replace.

    ``make(original)`` returns the replacement; *original* is what ``getattr`` gave, None
    when ``adds`` is True and the attribute was not there. A ``refusal`` says why this patch
    cannot be made here.
    """

    owner: Any
    name: str
    make: Callable[[Any], Any]
    capability: str
    adds: bool = False
    refusal: str = ""


@dataclass(frozen=True)
class Refusal:
    """Why a capability was left out: data before it is an exception."""

    capability: str
    reason: str


@dataclass(frozen=True)
class _Mark:
    """What a replacement carries; a foreign ``functools.wraps`` copies it, so it must age."""

    capability: str
    patches: PatchSet

    @property
    def active(self) -> bool:
        return self.patches.active


@dataclass
class _Slot:
    patch: Patch
    raw: Any
    replacement: Any


class Entry:
    """One key of a dict as an attribute, so that PatchSet can replace it in place."""

    def __init__(self, mapping: dict[str, Any]) -> None:
        object.__setattr__(self, "__dict__", mapping)


def is_ours(value: Any) -> bool:
    """Tell whether *value*, or anything it wraps, is a replacement of an active PatchSet.

    It may be that of another copy of this package.
    """
    seen: set[int] = set()
    while value is not None and id(value) not in seen:
        seen.add(id(value))
        mark = getattr(value, MARK, None)
        if mark is not None and getattr(mark, "active", True):
            return True
        value = getattr(value, "__wrapped__", None)
    return False


class PatchSet:
    """A set of patches applied and reverted together; ``active`` is False when reverted.

    One that left a replacement under a foreign patch must not be applied again: that
    replacement would come to life beside its successor. A new set takes its place.
    """

    def __init__(self) -> None:
        self.active = False
        self._slots: list[_Slot] = []
        self._lock = threading.RLock()

    def apply(self, patches: list[Patch]) -> list[Refusal]:
        """Put all *patches* in place, or none of a capability that lacks one of its parts."""
        with self._lock:
            if self.active:
                return []
            refusals = {r.capability: r for r in map(_refusal, patches) if r is not None}
            planned = [p for p in patches if p.capability not in refusals]
            slots = [self._slot(patch) for patch in planned]
            done: list[_Slot] = []
            try:
                for slot in slots:
                    setattr(slot.patch.owner, slot.patch.name, slot.replacement)
                    done.append(slot)
            except Exception:
                for slot in reversed(done):
                    _restore(slot)
                raise
            self._slots = slots
            self.active = True
            return list(refusals.values())

    def revert(self) -> list[str]:
        """Take everything back; returns the names where a foreign patch lies above ours."""
        with self._lock:
            self.active = False
            buried = [s.patch.name for s in reversed(self._slots) if not _restore(s)]
            self._slots = []
            return buried

    def after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    def capabilities(self) -> Iterator[str]:
        """Yield the capabilities in place, each once."""
        yield from dict.fromkeys(slot.patch.capability for slot in self._slots)

    def _slot(self, patch: Patch) -> _Slot:
        raw = vars(patch.owner).get(patch.name, _ABSENT)
        replacement = patch.make(getattr(patch.owner, patch.name, None))
        if callable(replacement):
            setattr(replacement, MARK, _Mark(patch.capability, self))
        return _Slot(patch, raw, replacement)


def _refusal(patch: Patch) -> Refusal | None:
    if patch.refusal:
        return Refusal(patch.capability, patch.refusal)
    current = getattr(patch.owner, patch.name, _ABSENT)
    owner = getattr(patch.owner, "__name__", type(patch.owner).__name__)
    if current is _ABSENT and not patch.adds:
        return Refusal(patch.capability, f"{owner}.{patch.name} does not exist in this version")
    if is_ours(current):
        return Refusal(patch.capability, f"{owner}.{patch.name} {ALREADY}")
    return None


def _restore(slot: _Slot) -> bool:
    owner, name = slot.patch.owner, slot.patch.name
    if vars(owner).get(name, _ABSENT) is not slot.replacement:
        return False
    if slot.raw is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, slot.raw)
    return True
