"""The cache of query vectors keeps what is recent and forgets the rest."""

from __future__ import annotations

import threading

from hermes_patch.embedders.cache import QueryCache


class Clock:
    """Time that passes when it is told to, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_vector_is_found_again_by_space_and_text() -> None:
    cache = QueryCache()
    cache.put((1, "query"), [0.6, 0.8])
    assert list(cache.get((1, "query")) or []) == [0.6, 0.8]


def test_another_space_or_text_finds_nothing() -> None:
    cache = QueryCache()
    cache.put((1, "query"), [0.6, 0.8])
    assert cache.get((2, "query")) is None
    assert cache.get((1, "Query")) is None


def test_a_vector_is_forgotten_when_its_time_is_over() -> None:
    clock = Clock()
    cache = QueryCache(seconds=10, clock=clock)
    cache.put((1, "query"), [1.0])
    clock.now = 9.9
    assert cache.get((1, "query")) is not None
    clock.now = 10.0
    assert cache.get((1, "query")) is None
    assert len(cache) == 0


def test_reading_does_not_make_a_vector_younger() -> None:
    clock = Clock()
    cache = QueryCache(seconds=10, clock=clock)
    cache.put((1, "query"), [1.0])
    for clock.now in (5.0, 9.0):
        cache.get((1, "query"))
    clock.now = 12.0
    assert cache.get((1, "query")) is None


def test_the_least_recently_used_vector_makes_room() -> None:
    cache = QueryCache(size=2)
    cache.put((1, "a"), [1.0])
    cache.put((1, "b"), [1.0])
    cache.get((1, "a"))
    cache.put((1, "c"), [1.0])
    assert [cache.get((1, text)) is not None for text in "abc"] == [True, False, True]


def test_a_cache_without_room_keeps_nothing() -> None:
    cache = QueryCache(size=0)
    cache.put((1, "a"), [1.0])
    assert cache.get((1, "a")) is None


def test_changing_a_vector_afterwards_does_not_change_the_cache() -> None:
    cache = QueryCache()
    vector = [1.0, 0.0]
    cache.put((1, "a"), vector)
    vector[0] = 5.0
    assert list(cache.get((1, "a")) or []) == [1.0, 0.0]


def test_clear_forgets_everything() -> None:
    cache = QueryCache()
    cache.put((1, "a"), [1.0])
    cache.clear()
    assert cache.get((1, "a")) is None


def test_no_query_is_shown() -> None:
    cache = QueryCache()
    cache.put((1, "a private question"), [1.0])
    assert "private" not in repr(cache)


def test_many_threads_never_overfill_or_break_it() -> None:
    cache = QueryCache(size=8)
    broken: list[Exception] = []

    def work(space: int) -> None:
        try:
            for i in range(2000):
                cache.put((space, str(i % 20)), [float(space)])
                found = cache.get((space, str(i % 7)))
                assert found is None or list(found) == [space]
        except Exception as error:
            broken.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken
    assert len(cache) <= 8
