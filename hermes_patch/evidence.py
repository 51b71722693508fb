"""What the legs of one search found, and how each of them votes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from . import fusion, legs, relaxed
from .fusion import Ranking
from .legs import Split, VectorHit
from .units import Scorer


@dataclass(frozen=True)
class Found:
    """How a message was found: "keyword", "vector" or "both"; its cosine if by vector."""

    search_type: str
    similarity: float | None = None


@dataclass
class Evidence:
    """What the legs of one search found: messages, each leg's best first.

    ``loose`` is the relaxed leg with the host's incomplete rows behind it.
    """

    split: Split
    loose: dict[int, relaxed.Hit]
    near: dict[int, VectorHit]
    floor: float
    scorer: Scorer

    @cached_property
    def by_keyword(self) -> set[int]:
        """The messages found by their words."""
        return {*self.split.exact, *self.split.partial, *self.loose}

    def rankings(
        self, root_of: Mapping[int, str], weights: tuple[float, float, float]
    ) -> list[Ranking]:
        """Return what each leg says; a repetition supports nothing."""
        exact, loose, near = self.split.exact, self.loose, self.near
        return [
            Ranking(exact, weights[0]),
            Ranking(
                list(loose),
                weights[1],
                behind=len(fusion.lineages(exact, root_of)),
                scores={i: hit.relevance for i, hit in loose.items() if not hit.repeats},
                support=relaxed.SUPPORT,
                trust={i: hit.trust for i, hit in loose.items()},
            ),
            Ranking(
                list(near),
                weights[2],
                scores={i: h.strength - self.floor for i, h in near.items() if not h.repeats},
                support=legs.SUPPORT,
            ),
        ]

    def how(self, msg_id: int) -> Found:
        """Tell how a message was found."""
        hit, by_keyword = self.near.get(msg_id), msg_id in self.by_keyword
        if hit is None:
            return Found("keyword")
        return Found("both" if by_keyword else "vector", hit.similarity)
