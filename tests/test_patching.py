from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from hermes_patch.patching import Patch, PatchSet, is_ours


def classes() -> tuple[type, type]:
    class Mixin:
        def inherited(self) -> str:
            return "host inherited"

    class Owner(Mixin):
        def own(self) -> str:
            return "host own"

    return Owner, Mixin


def louder(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def wrapper(self: Any) -> str:
        return original(self).upper()

    return wrapper


def test_reverting_restores_every_entry_of_the_owner() -> None:
    owner, mixin = classes()
    before, mixin_before = dict(vars(owner)), dict(vars(mixin))
    patches = PatchSet()
    patches.apply(
        [
            Patch(owner, "own", louder, "a"),
            Patch(owner, "inherited", louder, "b"),
            Patch(owner, "added", lambda _: lambda self: "new", "c", adds=True),
        ]
    )
    instance = owner()
    assert (instance.own(), instance.inherited()) == ("HOST OWN", "HOST INHERITED")
    assert instance.added() == "new"
    patches.revert()
    assert dict(vars(owner)) == before
    assert dict(vars(mixin)) == mixin_before


def test_an_instance_made_before_follows() -> None:
    owner, _ = classes()
    instance = owner()
    PatchSet().apply([Patch(owner, "own", louder, "a")])
    assert instance.own() == "HOST OWN"


def test_a_capability_that_lacks_one_part_is_left_out_whole() -> None:
    owner, _ = classes()
    before = dict(vars(owner))
    refusals = PatchSet().apply(
        [Patch(owner, "own", louder, "a"), Patch(owner, "missing", louder, "a")]
    )
    assert dict(vars(owner)) == before
    assert [(r.capability, "missing" in r.reason) for r in refusals] == [("a", True)]


def test_a_maker_that_fails_leaves_nothing_patched() -> None:
    owner, _ = classes()
    before = dict(vars(owner))

    def broken(original: Any) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        PatchSet().apply([Patch(owner, "own", louder, "a"), Patch(owner, "inherited", broken, "b")])
    assert dict(vars(owner)) == before


def test_a_second_copy_of_ours_patches_nothing() -> None:
    owner, _ = classes()
    PatchSet().apply([Patch(owner, "own", louder, "a")])
    before = dict(vars(owner))
    refusals = PatchSet().apply([Patch(owner, "own", louder, "a")])
    assert dict(vars(owner)) == before
    assert "already" in refusals[0].reason


def test_ours_is_recognised_under_a_foreign_wrapper() -> None:
    owner, _ = classes()
    PatchSet().apply([Patch(owner, "own", louder, "a")])
    owner.own = louder(owner.own)  # type: ignore[attr-defined]
    assert is_ours(owner.own)  # type: ignore[attr-defined]


def test_a_foreign_patch_above_ours_survives_the_revert() -> None:
    owner, _ = classes()
    patches = PatchSet()

    def quiet(original: Callable[..., str]) -> Callable[..., str]:
        def wrapper(self: Any) -> str:
            return original(self).upper() if patches.active else original(self)

        return wrapper

    patches.apply([Patch(owner, "own", quiet, "a")])
    ours = owner.own  # type: ignore[attr-defined]

    def foreign(self: Any) -> str:
        return f"<{ours(self)}>"

    owner.own = foreign  # type: ignore[attr-defined]
    assert owner().own() == "<HOST OWN>"
    assert patches.revert() == ["own"]
    assert owner().own() == "<host own>"
    assert vars(owner)["own"] is foreign


def test_applying_twice_is_once() -> None:
    owner, _ = classes()
    patches = PatchSet()
    patches.apply([Patch(owner, "own", louder, "a")])
    first = vars(owner)["own"]
    patches.apply([Patch(owner, "own", louder, "a")])
    assert vars(owner)["own"] is first
