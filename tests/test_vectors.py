"""Vectors are of unit length, little-endian float32, and never quietly wrong."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_patch import vectors
from hermes_patch.errors import VectorError

NUMBERS = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-6)
VECTORS = st.lists(NUMBERS, min_size=1, max_size=40).filter(any)


@given(VECTORS)
def test_a_normalised_vector_has_unit_length_and_the_same_direction(values: list[float]) -> None:
    unit = vectors.normalise(values)
    assert math.isclose(math.fsum(v * v for v in unit), 1.0)
    assert vectors.cosine(unit, values) == pytest.approx(1.0)


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=40))
def test_packing_and_unpacking_gives_the_same_numbers(values: list[float]) -> None:
    assert list(vectors.unpack(vectors.pack(values))) == values


def test_numbers_are_stored_as_little_endian_float32() -> None:
    assert vectors.pack([1.0, -2.5]) == struct.pack("<f", 1.0) + struct.pack("<f", -2.5)
    assert vectors.pack([1.0]) == b"\x00\x00\x80\x3f"


def test_whole_numbers_are_numbers() -> None:
    assert vectors.normalise([3, 4]) == [0.6, 0.8]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "empty"),
        ([0.0, 0.0], "all zero"),
        ([1e-20, 0.0], "all zero"),
        ([float("nan"), 1.0], "NaN or Inf"),
        ([float("inf"), 1.0], "NaN or Inf"),
        ([1e308, 1.0], "NaN or Inf"),
        (["1.0", 1.0], "not a number"),
        ([b"1", 1.0], "not a number"),
        ([True, 1.0], "not a number"),
        ([None, 1.0], "not a number"),
        ([[1.0], 1.0], "not a number"),
        ([10**400, 1.0], "not a number"),
        ("12", "not a number"),
    ],
)
def test_what_is_no_direction_is_refused(values: list[float], reason: str) -> None:
    with pytest.raises(VectorError, match=reason):
        vectors.normalise(values)


def test_another_length_than_expected_is_refused() -> None:
    with pytest.raises(VectorError, match="2 dimensions, expected 3"):
        vectors.normalise([1.0, 0.0], 3)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_torn_blob_is_refused(size: int) -> None:
    with pytest.raises(VectorError, match=f"{size} bytes"):
        vectors.unpack(b"x" * size)


def test_an_empty_blob_holds_no_numbers() -> None:
    assert len(vectors.unpack(b"")) == 0


def test_to_blob_normalises_and_packs() -> None:
    assert list(vectors.unpack(vectors.to_blob([0.0, 5.0], 2))) == [0.0, 1.0]


def test_to_blob_refuses_what_normalise_refuses() -> None:
    with pytest.raises(VectorError):
        vectors.to_blob([0.0, 0.0])


@given(VECTORS)
def test_the_cosine_with_the_opposite_is_minus_one(values: list[float]) -> None:
    assert vectors.cosine(values, [-v for v in values]) == pytest.approx(-1.0)


def test_right_angles_have_cosine_zero() -> None:
    assert vectors.cosine([1.0, 0.0], [0.0, 2.0]) == 0.0


def test_the_cosine_with_a_zero_vector_is_zero() -> None:
    assert vectors.cosine([0.0, 0.0], [1.0, 1.0]) == 0.0


def test_vectors_of_different_length_have_no_cosine() -> None:
    with pytest.raises(ValueError, match="zip"):
        vectors.cosine([1.0], [1.0, 0.0])
