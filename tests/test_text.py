from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_patch import text as texts


@pytest.mark.parametrize(
    "text", ["系统空间不够", "磁盘清理", "fix DNS", "重启", "Why did it fail?"]
)
def test_short_texts_with_a_meaning_are_embeddable(text: str) -> None:
    assert texts.is_embeddable(text)


@pytest.mark.parametrize(
    "text",
    ["", "   ", "\u200b", "👍👍", "...", "12345", "ok", "OK!", "继续", "好的。", "Thanks!", "a"],
)
def test_texts_without_a_meaning_are_not_embeddable(text: str) -> None:
    assert not texts.is_embeddable(text)


def test_only_the_text_parts_of_multimodal_content_count() -> None:
    parts = [
        {"type": "text", "text": "what is on this picture"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "of the rack?"},
    ]
    stored = texts.JSON_PREFIX + json.dumps(parts)
    assert texts.message_text(stored) == "what is on this picture\nof the rack?"


@pytest.mark.parametrize("content", [None, 7, texts.JSON_PREFIX + "{broken", b"\xff\xfe"])
def test_content_of_any_shape_gives_a_text(content: object) -> None:
    assert isinstance(texts.message_text(content), str)


def test_lone_surrogates_and_nul_do_not_survive() -> None:
    cleaned = texts.message_text("a\x00b\ud800c")
    assert cleaned.encode("utf-8").decode("utf-8").replace("\ufffd", "") == "abc"


def test_a_short_text_is_one_chunk() -> None:
    assert texts.chunks("disk full", 100) == [texts.Chunk(0, 9, "disk full")]


@given(
    st.text(alphabet="ab 。.\n磁盘清理x!?", max_size=600),
    st.integers(min_value=16, max_value=60),
)
def test_chunks_cover_every_character_that_is_not_blank(text: str, most: int) -> None:
    parts = texts.chunks(text, most)
    covered = set[int]()
    for part in parts:
        assert text[part.start : part.end] == part.text
        covered.update(range(part.start, part.end))
    assert all(text[i].isspace() for i in range(len(text)) if i not in covered)


@given(st.text(alphabet="word 磁盘。\n", max_size=500), st.integers(min_value=16, max_value=60))
def test_no_chunk_is_longer_than_allowed(text: str, most: int) -> None:
    assert all(texts.estimate_tokens(part.text) <= most for part in texts.chunks(text, most))


def test_a_run_of_letters_without_any_boundary_is_cut_too() -> None:
    parts = texts.chunks("x" * 50_000, 100)
    assert len(parts) > 100
    assert max(len(part.text) for part in parts) <= 400


def test_the_last_paragraph_of_a_long_text_has_a_chunk_of_its_own() -> None:
    text = "filler sentence number one. " * 2000 + "\n\nThe password hint is the blue heron."
    assert "blue heron" in texts.chunks(text, 200)[-1].text


def test_a_chunk_that_is_half_full_ends_with_its_paragraph() -> None:
    first, last = " ".join(["filler"] * 30), "the answer"
    parts = texts.chunks(f"{first}\n\n{first}\n\n{last}", 80)
    assert [part.text.strip() for part in parts] == [first, first, last]


def test_short_paragraphs_share_a_chunk() -> None:
    lines = "\n".join(f"item {n}" for n in range(60))
    assert len(texts.chunks(lines, 80)) < 8
