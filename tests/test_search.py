"""The whole answer: what callers of the host's ``search_messages`` get."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databases import DIMS, SPACE, HostDatabase
from hermes_patch import fusion, layout, nearest, query, rows, search, units
from hermes_patch.layout import Filters
from hermes_patch.relaxed import unweighted
from hermes_patch.search import Found, Outcome, Request, VectorQuery

EAST, NEAR_EAST, UP = (1.0, 0.0, 0.0), (0.9, 0.435, 0.0), (0.0, 0.0, 1.0)
KEYS = ["id", "session_id", "role", "snippet", "timestamp"]
KEYS += ["tool_name", "source", "model", "session_started", "context"]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[HostDatabase]:
    database = HostDatabase(tmp_path / "state.db", "external")
    yield database
    database.conn.close()


def host_rows(db: HostDatabase, *ids: int) -> list[dict[str, Any]]:
    """Return rows as the host would, in the order of *ids*, marked by their snippet."""
    reader = db.reader()
    messages = {m.id: m for m in rows.load(reader, ids, layout.read(reader))}
    listed = [rows.host_row(reader, messages[i], f"host {i}") for i in ids]
    reader.close()
    return listed


def fuse(
    db: HostDatabase,
    asked: str,
    host: list[dict[str, Any]] | None = None,
    vector: tuple[float, ...] | None = None,
    relaxed: bool = True,
    reader: sqlite3.Connection | None = None,
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
    **more: Any,
) -> Outcome:
    wanted = VectorQuery(SPACE, DIMS, vector, 0.3) if vector else None
    conn = reader or db.reader()
    outcome = search.fuse(
        conn,
        host if host is not None else [],
        Request(asked, **{"limit": 50, **more}),
        wanted,
        relaxed=relaxed,
        weights=weights,
        rrf_k=60,
    )
    conn.close()
    return outcome


def ids(outcome: Outcome) -> list[int]:
    return [row["id"] for row in outcome.rows]


def noise(db: HostDatabase, count: int = 20) -> None:
    for number in range(count):
        db.say("noise", f"filler about weather report {number} 今天天气晴朗")


# Only the host


def test_without_our_legs_the_hosts_list_itself_comes_back(db: HostDatabase) -> None:
    host = host_rows(db, db.say("a", "docker"), db.say("b", "docker"))
    outcome = fuse(db, "docker", host, relaxed=False)
    assert outcome.rows is host
    assert outcome.legs == {"exact": "ok", "relaxed": "off", "vector": "off"}


@pytest.mark.parametrize("asked", ['"port conflict"', "502", "/etc/hosts", "ENOENT"])
def test_exact_questions_are_answered_by_the_host_alone(db: HostDatabase, asked: str) -> None:
    db.say("a", f"something near {asked}", vector=EAST)
    host = host_rows(db, db.say("b", "the row of the host"))
    outcome = fuse(db, asked, host, EAST)
    assert outcome.rows is host and outcome.legs["vector"] == "off"


def test_offset_limit_and_fields_hold_for_the_host_alone(db: HostDatabase) -> None:
    host = host_rows(db, *[db.say("a", f"docker {n}") for n in range(5)])
    outcome = fuse(db, '"docker"', host, offset=1, limit=2, fields=["snippet", "id"])
    assert outcome.rows == [{"id": r["id"], "snippet": r["snippet"]} for r in host[1:3]]


# Fusion


def test_message_found_by_meaning_alone_is_added_in_the_hosts_shape(db: HostDatabase) -> None:
    db.say("a", "before it")
    wanted = db.say("a", "C盘满了，做一次磁盘清理", role="assistant", vector=EAST)
    db.say("a", "after it")
    row = fuse(db, "系统空间不够", vector=EAST).rows[0]
    assert list(row) == KEYS
    assert row["id"] == wanted and row["snippet"] == "C盘满了，做一次磁盘清理"
    assert (row["session_id"], row["role"], row["source"], row["model"]) == (
        ("a", "assistant", "cli", "m")
    )
    assert row["context"] == [
        {"role": "user", "content": "before it"},
        {"role": "assistant", "content": "C盘满了，做一次磁盘清理"},
        {"role": "user", "content": "after it"},
    ]


def test_host_rows_come_back_as_the_same_objects(db: HostDatabase) -> None:
    host = host_rows(db, db.say("a", "docker networking"))
    before = dict(host[0])
    db.say("b", "containers", vector=EAST)
    outcome = fuse(db, "docker networking", host, EAST)
    assert outcome.rows[0] is host[0] and host[0] == before


def test_how_a_message_was_found_is_told(db: HostDatabase) -> None:
    both = db.say("a", "docker networking", vector=EAST)
    keyword = db.say("b", "docker networking")
    vector = db.say("c", "containers", vector=NEAR_EAST)
    outcome = fuse(db, "docker networking", host_rows(db, both, keyword), EAST)
    assert outcome.found[both] == Found("both", pytest.approx(1.0))
    assert outcome.found[keyword] == Found("keyword", None)
    assert outcome.found[vector] == Found("vector", pytest.approx(0.9, abs=0.01))


def test_session_found_by_words_and_meaning_comes_first(db: HostDatabase) -> None:
    first = db.say("a", "docker networking")
    words = db.say("b", "docker networking again")
    db.say("b", "bridge and veth pairs", vector=NEAR_EAST)
    meaning = db.say("c", "containers", vector=EAST)
    order = ids(fuse(db, "docker networking", host_rows(db, first, words), EAST))
    assert order[0] == words and set(order[1:3]) == {first, meaning}


def test_one_anchor_of_every_lineage_comes_before_second_messages(db: HostDatabase) -> None:
    db.session("root")
    db.session("child", parent="root")
    one = db.say("root", "docker networking one")
    two = db.say("child", "docker networking two")
    other = db.say("other", "docker networking three")
    assert ids(fuse(db, "docker networking", host_rows(db, one, two, other), UP)) == [
        one,
        other,
        two,
    ]


def test_circle_of_parents_ends(db: HostDatabase) -> None:
    db.session("x")
    db.session("y", parent="x")
    db.conn.execute("UPDATE sessions SET parent_session_id = 'y' WHERE id = 'x'")
    hit = db.say("x", "docker networking")
    assert ids(fuse(db, "docker networking", host_rows(db, hit), UP)) == [hit]


def test_incomplete_host_rows_stand_behind_complete_ones_and_are_kept(db: HostDatabase) -> None:
    half = db.say("a", "docker volumes")
    whole = db.say("b", "docker networking")
    useless = db.say("c", "weather")
    noise(db)
    outcome = fuse(db, "docker networking", host_rows(db, useless, half, whole), UP)
    assert ids(outcome)[0] == whole
    assert set(ids(outcome)) >= {half, useless}


def test_relaxed_hits_rank_behind_the_exact_ones(db: HostDatabase) -> None:
    near = [db.say(f"v{n}", f"meaning {n}", vector=(1.0, n / 10, 0.0)) for n in range(3)]
    exact = [db.say(f"e{n}", f"docker networking {n}") for n in range(3)]
    loose = db.say("r", "docker network bridge")
    noise(db)
    order = ids(fuse(db, "docker networking", host_rows(db, *exact), EAST))
    assert order.index(loose) > max(order.index(i) for i in [*near, *exact])


def test_a_conversation_the_host_found_lists_no_relaxed_message_more(db: HostDatabase) -> None:
    exact = db.say("a", "docker networking")
    db.say("a", "docker network bridge")
    meant = db.say("a", "containers", vector=EAST)
    other = db.say("b", "docker network bridge")
    noise(db)
    outcome = fuse(db, "docker networking", host_rows(db, exact), EAST)
    assert sorted(ids(outcome)) == [exact, meant, other]


@pytest.mark.parametrize("asked", ["100%完成", "key=value", "src/api"])
def test_a_word_with_a_symbol_inside_means_itself_where_it_is_found(
    db: HostDatabase, asked: str
) -> None:
    literal = db.say("a", f"达成 {asked} 目标")
    spread = db.say("b", "达成 100 完成率 key value src api 目标")
    noise(db)
    assert ids(fuse(db, asked, host_rows(db, literal))) == [literal]
    assert spread in ids(fuse(db, asked))
    assert spread in ids(fuse(db, f"{asked} 目标", host_rows(db, literal)))


def test_where_the_host_has_no_full_text_index_only_meaning_is_searched(tmp_path: Path) -> None:
    db = HostDatabase(tmp_path / "state.db", "bare")
    db.say("a", "docker networking")
    near = db.say("b", "containers", vector=EAST)
    outcome = fuse(db, "docker networking", vector=EAST)
    assert ids(outcome) == [near] and outcome.legs["relaxed"] == search.OFF
    db.conn.close()


def test_host_rows_below_the_gate_come_after_what_the_vectors_found(db: HostDatabase) -> None:
    useless = db.say("a", "the weather report of Monday")
    noise(db)
    meant = db.say("b", "C盘满了", vector=EAST)
    asked = "weather aboard the orbital platform beyond Neptune"
    assert ids(fuse(db, asked, host_rows(db, useless), EAST)) == [meant, useless]


def test_relaxed_rows_show_the_matching_passage(db: HostDatabase) -> None:
    padding = "This sentence has nothing to do with it. " * 30
    db.say("a", f"{padding}The Nginx certificate was renewed. {padding}")
    noise(db)
    snippet = fuse(db, "how was the nginx certificate renewed?").rows[0]["snippet"]
    assert ">>>Nginx<<< >>>certificate<<< was >>>renewed<<<" in snippet
    assert len(snippet) < 400 and snippet.startswith("...") and snippet.endswith("...")


def test_vector_rows_show_the_matching_chunk(db: HostDatabase) -> None:
    text = "Opening words. " * 100 + "The answer is in the last paragraph."
    msg_id = db.say("a", text)
    db.embed(msg_id, EAST, start=text.index("The answer"), end=len(text))
    assert fuse(db, "q", vector=EAST).rows[0]["snippet"] == (
        "...The answer is in the last paragraph."
    )


def test_multimodal_messages_show_their_words(db: HostDatabase) -> None:
    parts = [{"type": "text", "text": "a red bicycle"}, {"type": "image_url", "url": "data:x"}]
    db.say("a", parts, vector=EAST)
    row = fuse(db, "two wheels", vector=EAST).rows[0]
    assert row["snippet"] == "a red bicycle"
    assert row["context"] == [{"role": "user", "content": "a red bicycle"}]


# Operators


@pytest.mark.parametrize("asked", ["docker OR podman", "docker NOT swarm", "docker*"])
def test_with_operators_the_hosts_rows_come_first_in_its_order(
    db: HostDatabase, asked: str
) -> None:
    near = db.say("a", "containers in general", vector=EAST)
    host = [db.say(name, f"docker {name}") for name in "bcd"]
    assert ids(fuse(db, asked, host_rows(db, *host), EAST))[:3] == host
    assert near in ids(fuse(db, asked, host_rows(db, *host), EAST))


def test_excluded_terms_are_in_none_of_our_hits(db: HostDatabase) -> None:
    db.say("a", "python packaging on java", vector=EAST)
    kept = db.say("b", "python packaging", vector=NEAR_EAST)
    noise(db)
    assert ids(fuse(db, "python packaging NOT java", vector=EAST)) == [kept]


# Sort, pages, fields


@pytest.mark.parametrize(("sort", "sign"), [("newest", -1), (" Oldest ", 1)])
def test_sort_orders_everything_found_by_time(db: HostDatabase, sort: str, sign: int) -> None:
    found = [
        db.say("a", "docker networking"),
        db.say("b", "containers", vector=EAST),
        db.say("c", "docker networking"),
    ]
    outcome = fuse(db, "docker networking", host_rows(db, found[2], found[0]), EAST, sort=sort)
    assert ids(outcome) == found[::sign]


def test_sorted_vector_hits_need_a_stricter_floor(db: HostDatabase) -> None:
    weak = db.say("a", "just above the floor", vector=(0.33, 0.944, 0.0))
    assert ids(fuse(db, "q", vector=EAST)) == [weak]
    assert ids(fuse(db, "q", vector=EAST, sort="newest")) == []


def test_sorted_relaxed_hits_need_more_of_the_query(db: HostDatabase) -> None:
    weak = db.say("a", "the nginx certificate")
    noise(db)
    asked = "nginx certificate renewal cronjob"
    assert ids(fuse(db, asked, vector=UP)) == [weak]
    assert ids(fuse(db, asked, vector=UP, sort="newest")) == []


def test_pages_neither_repeat_nor_lose_a_row(db: HostDatabase) -> None:
    host = host_rows(db, *[db.say(f"h{n}", "docker networking") for n in range(5)])
    for number in range(6):
        db.say(f"v{number}", f"containers {number}", vector=(1.0, number / 10, 0.0))
    whole = ids(fuse(db, "docker networking", host, EAST))
    pages = [ids(fuse(db, "docker networking", host, EAST, offset=at, limit=4)) for at in (0, 4, 8)]
    assert len(whole) == 11 and sum(pages, []) == whole  # noqa: RUF017


@pytest.mark.parametrize("asked", ["docker networking", "docker OR containers", '"docker"'])
def test_a_negative_limit_is_none_from_any_offset(db: HostDatabase, asked: str) -> None:
    host = host_rows(db, *[db.say(f"h{n}", "docker networking") for n in range(5)])
    db.say("v", "containers", vector=EAST)
    whole = ids(fuse(db, asked, host, EAST))
    for offset in (-1, 0, 1, 5, 9):
        page = ids(fuse(db, asked, host, EAST, limit=-1, offset=offset))
        assert page == whole[max(0, offset) :]


def test_a_message_nobody_knows_takes_no_place_on_a_page(
    db: HostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = fusion.fuse
    host = host_rows(db, *[db.say(f"h{n}", "docker networking") for n in range(4)])
    near = db.say("v", "containers", vector=EAST)
    whole = ids(fuse(db, "docker networking", host, EAST))
    monkeypatch.setattr(fusion, "fuse", lambda *args: [901, *fused(*args)[:1], 902, *fused(*args)])
    pages = [ids(fuse(db, "docker networking", host, EAST, offset=at, limit=2)) for at in (0, 2, 4)]
    assert near in whole and sum(pages, []) == whole  # noqa: RUF017


def test_fields_are_projected_last_in_the_hosts_order(db: HostDatabase) -> None:
    db.say("a", "containers", vector=EAST)
    row = fuse(db, "docker", vector=EAST, fields=["snippet", "id", "context"]).rows[0]
    assert list(row) == ["id", "snippet", "context"]


def test_filters_hold_for_our_rows(db: HostDatabase) -> None:
    db.session("hidden", source="tool")
    db.say("hidden", "containers", vector=EAST)
    kept = db.say("a", "containers too", vector=EAST)
    outcome = fuse(db, "docker", vector=EAST, filters=Filters(exclude_sources=["tool"]))
    assert ids(outcome) == [kept]


# Failing


def test_with_the_embedder_down_the_hosts_rows_come_first_then_the_relaxed_ones(
    db: HostDatabase,
) -> None:
    relaxed = db.say("a", "docker networking networking explained")
    host = [db.say("b", "docker networking and more words about it")]
    noise(db)
    outcome = fuse(db, "docker networking explained", host_rows(db, *host))
    assert ids(outcome) == [*host, relaxed]
    assert outcome.legs == {"exact": "ok", "relaxed": "ok", "vector": "off"}


def test_out_of_time_the_hosts_rows_stand_and_the_legs_say_so(db: HostDatabase) -> None:
    hit = db.say("a", "docker networking", vector=EAST)
    noise(db)
    host = host_rows(db, hit)
    reader = db.reader()
    reader.set_progress_handler(lambda: 1, 1)
    outcome = fuse(db, "docker networking", host, EAST, reader=reader)
    assert outcome.rows is host
    assert "over budget" in outcome.legs.values()


def test_a_failing_vector_leg_leaves_the_relaxed_one(
    db: HostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise sqlite3.OperationalError("interrupted")

    wanted = db.say("a", "the nginx certificate")
    noise(db)
    monkeypatch.setattr(nearest, "nearest", interrupted)
    outcome = fuse(db, "nginx certificate", vector=EAST)
    assert ids(outcome) == [wanted]
    assert outcome.legs == {"exact": "ok", "relaxed": "ok", "vector": "over budget"}


def test_a_query_vector_of_another_length_costs_only_its_leg(db: HostDatabase) -> None:
    wanted = db.say("a", "the nginx certificate")
    noise(db)
    outcome = fuse(db, "nginx certificate", vector=(1.0, 0.0))
    assert ids(outcome) == [wanted] and outcome.legs["vector"] == "failed (VectorError)"


def test_a_broken_word_table_costs_only_its_leg(db: HostDatabase) -> None:
    near = db.say("a", "containers", vector=EAST)
    db.conn.execute("DELETE FROM messages_fts_data")
    outcome = fuse(db, "docker networking", vector=EAST)
    assert ids(outcome) == [near] and outcome.legs["relaxed"].startswith("failed")


def test_without_our_tables_the_relaxed_leg_still_works(db: HostDatabase) -> None:
    wanted = db.say("a", "the nginx certificate")
    noise(db)
    db.conn.execute("DROP TABLE message_embeddings")
    assert ids(fuse(db, "nginx certificate", vector=EAST)) == [wanted]


# Snippets


def test_highlighting_keeps_the_text_around_the_matches() -> None:
    scorer = unweighted(query.parse("磁盘清理"))
    assert rows.highlighted("先做磁盘清理再说", scorer) == "先做>>>磁盘清理<<<再说"


def test_long_passages_are_cut_at_a_boundary() -> None:
    text = "一句话。" * 200
    cut = rows.passage(text, 0, len(text))
    assert cut.endswith("。...") and len(cut) <= rows.PASSAGE_CHARS + 3


def test_units_are_bounded_for_a_long_paste() -> None:
    parsed = query.parse(" ".join(f"word{n}x" for n in range(400)) + "长" * 20 + "短" * 20)
    assert len(units.of(parsed)) <= units.MAX_WORDS + units.MAX_BIGRAMS
