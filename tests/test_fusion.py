"""Reciprocal rank fusion of lineages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hermes_patch.fusion import Ranking, fuse

# Messages 10, 11 … belong to lineage 1, 20, 21 … to lineage 2.
LINEAGE = {i: i // 10 for i in range(100)}


def test_lineage_found_by_two_legs_stands_before_the_first_of_either() -> None:
    keyword, vector = Ranking([10, 20]), Ranking([30, 21])
    assert fuse([keyword, vector], LINEAGE)[0] in (20, 21)


def test_many_messages_of_one_lineage_do_not_push_down_the_next() -> None:
    keyword = Ranking([10, 11, 12, 13, 14, 20])
    vector = Ranking([30, 31, 32, 33, 20])
    assert fuse([keyword, vector], LINEAGE)[0] == 20


def test_anchor_is_the_message_that_both_legs_found() -> None:
    order = fuse([Ranking([10, 11]), Ranking([12, 11])], LINEAGE)
    assert order[0] == 11


def test_anchor_comes_from_the_leg_with_the_larger_vote() -> None:
    keyword, vector = Ranking([10], weight=1.0), Ranking([11], weight=2.0)
    assert fuse([keyword, vector], LINEAGE) == [11, 10]


def test_one_anchor_of_every_lineage_comes_first() -> None:
    order = fuse([Ranking([10, 11, 20, 12, 30, 21])], LINEAGE)
    assert order == [10, 20, 30, 11, 12, 21]


def test_ranking_that_continues_another_votes_less() -> None:
    exact, relaxed = Ranking([10, 20]), Ranking([30], behind=2)
    assert fuse([relaxed, exact], LINEAGE) == [10, 20, 30]


def test_equal_votes_keep_the_order_of_the_rankings() -> None:
    assert fuse([Ranking([10]), Ranking([20])], LINEAGE) == [10, 20]


def test_weight_zero_orders_nothing() -> None:
    assert fuse([Ranking([10, 20]), Ranking([20, 10], weight=0.0)], LINEAGE) == [10, 20]


def test_a_smaller_k_lets_the_first_places_weigh_more() -> None:
    rankings = [Ranking([10, 30, 40, 20]), Ranking([50, 60, 70, 20])]
    assert fuse(rankings, LINEAGE, k=60)[0] == 20
    assert fuse(rankings, LINEAGE, k=1)[0] == 10


def test_a_lineage_that_several_messages_support_stands_before_a_slightly_better_one() -> None:
    scores = {10: 0.50, 20: 0.49, 21: 0.40, 22: 0.40}
    ids = [10, 20, 21, 22]
    assert fuse([Ranking(ids, scores=scores)], LINEAGE)[0] == 10
    assert fuse([Ranking(ids, scores=scores, support=0.5)], LINEAGE)[0] == 20


def test_support_is_bounded_however_many_messages_a_lineage_has() -> None:
    many = {20 + n: 0.3 for n in range(10)}
    ranking = Ranking([10, *many], scores={10: 0.5, **many}, support=0.5)
    assert fuse([ranking], LINEAGE)[0] == 10


def test_a_message_without_a_score_supports_nothing() -> None:
    ranking = Ranking([10, 20, 21], scores={10: 0.5, 20: 0.49}, support=1.0)
    assert fuse([ranking], LINEAGE)[0] == 10


def test_a_hit_of_little_trust_supports_but_does_not_decide() -> None:
    doubtful, sure = Ranking([30, 21], trust={30: 0.2, 21: 0.2}), Ranking([10, 20])
    assert fuse([doubtful, sure], LINEAGE) == [20, 10, 30, 21]
    assert fuse([Ranking([30, 21]), sure], LINEAGE) == [21, 30, 10, 20]


def test_a_lineage_has_the_trust_of_its_most_trusted_message() -> None:
    first, second = Ranking([10, 11], trust={10: 0.1, 11: 1.0}), Ranking([20], weight=0.9)
    assert fuse([second, first], LINEAGE)[0] in (10, 11)


ids = st.lists(st.integers(0, 99), unique=True, max_size=30)


@given(ids, ids)
def test_nothing_is_lost_and_nothing_comes_twice(first: list[int], second: list[int]) -> None:
    order = fuse([Ranking(first), Ranking(second)], LINEAGE)
    assert sorted(order) == sorted({*first, *second})
