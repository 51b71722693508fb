"""What a query is understood to ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_patch import query


@pytest.mark.parametrize(
    ("asked", "plain"),
    [
        ("docker OR kubernetes", "docker kubernetes"),
        ("docker AND kubernetes", "docker kubernetes"),
        ('"exact phrase" here', "exact phrase here"),
        ("deploy*", "deploy"),
        ("python NOT java", "python"),
        ('python NOT "java beans" web', "python web"),
        ("python NOT (java OR kotlin) web", "python web"),
        ("NEAR(disk full, 5)", "disk full"),
        ("tea or coffee, not juice?", "tea or coffee, not juice?"),
        ('an unmatched " quote', "an unmatched quote"),
        ("磁盘 OR 内存 NOT 网络", "磁盘 内存"),
        ("NOT java", ""),
    ],
)
def test_embedder_gets_plain_words(asked: str, plain: str) -> None:
    assert query.plain_text(asked) == plain


def test_long_paste_keeps_its_beginning_and_its_end() -> None:
    pasted = "first words " + "middle " * 5000 + "the question at the end"
    plain = query.plain_text(pasted)
    assert len(plain) <= query.MAX_CHARS
    assert plain.startswith("first words") and plain.endswith("the question at the end")


@pytest.mark.parametrize("asked", ['"exact phrase"', '"one" "two"', '"one" OR "two"', ' "a b" '])
def test_entirely_quoted_query_is_the_hosts_alone(asked: str) -> None:
    assert query.parse(asked).is_exact and query.parse(asked).is_host_alone


@pytest.mark.parametrize("asked", ['"exact phrase" more', '""', "plain words", 'half " quoted'])
def test_partly_quoted_query_is_not_exact(asked: str) -> None:
    assert not query.parse(asked).is_exact


@pytest.mark.parametrize("asked", ["a1 OR b1", "python NOT java", "NEAR(a1 b1)", "deploy*"])
def test_operators_and_prefixes_put_the_host_first(asked: str) -> None:
    assert query.parse(asked).host_first


@pytest.mark.parametrize("asked", ["tea or coffee", "docker AND nginx", "2 * 3", "Not now"])
def test_ordinary_words_are_no_operators(asked: str) -> None:
    assert not query.parse(asked).has_operators


@pytest.mark.parametrize(
    "asked",
    [
        "502",
        "2024-05-01",
        "192.168.1.1",
        "v1.2.3",
        "0x80070005",
        "ENOENT",
        "SIGKILL",
        "ERR_CONNECTION_REFUSED",
        "CVE-2024-12345",
        "TS2304",
        "TypeError",
        "/etc/nginx/nginx.conf",
        r"C:\Users\me",
        "src/app/main.py",
        "main.py",
        "https://example.org/a?b=1",
        "9f8e7d6c5b",
        "123e4567-e89b-12d3-a456-426614174000",
        "502, 504",
    ],
)
def test_codes_paths_hashes_and_numbers_stay_a_keyword_matter(asked: str) -> None:
    assert query.parse(asked).keyword_only


@pytest.mark.parametrize(
    "asked",
    ["nginx 502", "磁盘", "EVERY", "client/server", "上海/北京/广州", "GPT-4", "deadbeef cafe", ""],
)
def test_words_are_more_than_a_keyword_matter(asked: str) -> None:
    assert not query.parse(asked).keyword_only


def test_terms_after_not_are_excluded_and_not_searched_for() -> None:
    parsed = query.parse('python NOT (java OR "Go lang")')
    assert parsed.excluded == ("java", "go lang")
    assert parsed.terms == ("python",) and parsed.words == ("python",)


def test_stop_words_of_both_languages_are_left_out_and_numbers_kept() -> None:
    parsed = query.parse("What did we say about the 3 servers? 我们之前聊过的磁盘清理是怎么做的")
    assert parsed.words == ("3", "servers")
    assert "磁盘清理" in "".join(parsed.runs)
    assert not any("我们" in run or "怎么" in run or "的" in run for run in parsed.runs)


def test_query_of_stop_words_alone_still_has_terms() -> None:
    assert query.parse("what is this").terms == ("what", "is", "this")


@given(st.text())
def test_any_text_can_be_parsed_and_folding_keeps_offsets(asked: str) -> None:
    query.parse(asked)
    query.plain_text(asked)
    assert len(query.fold(asked)) == len(asked)


def test_accents_and_case_do_not_matter() -> None:
    assert query.fold("Café ÜBER Ｆｕｌｌ") == "cafe uber full"
