"""The exact, the relaxed and the vector leg, each alone, on every shape of state.db."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from databases import DIMS, SHAPES, SPACE, HostDatabase
from hermes_patch import layout, legs, postings, query, rows, units
from hermes_patch import relaxed as leg
from hermes_patch.layout import Filters
from hermes_patch.legs import VectorQuery

EAST, NORTH, UP = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
NEAR_EAST = (0.9, 0.435, 0.0)


@pytest.fixture(params=SHAPES)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostDatabase]:
    database = HostDatabase(tmp_path / "state.db", request.param)
    yield database
    database.conn.close()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[HostDatabase]:
    """A database where the shape does not matter."""
    database = HostDatabase(tmp_path / "state.db")
    yield database
    database.conn.close()


def relaxed(
    db: HostDatabase,
    asked: str,
    filters: Filters = Filters(),  # noqa: B008
    gate: float = leg.GATE,
    conn: sqlite3.Connection | None = None,
) -> list[int]:
    reader = conn or db.reader()
    try:
        shape, parsed = layout.read(reader), query.parse(asked)
        scorer, found = leg.scorer_of(reader, shape, parsed)
        wanted = leg.Gate(gate, gate)
        hits = leg.search(reader, shape, parsed, filters, scorer, found, wanted)
        return [hit.msg_id for hit in hits]
    finally:
        if conn is None:
            reader.close()


def nearest(
    db: HostDatabase,
    vector: tuple[float, ...],
    floor: float = 0.3,
    asked: str = "",
    opening: float | None = None,
    filters: Filters = Filters(),  # noqa: B008
    gap: float = 0.0,
) -> list[legs.VectorHit]:
    reader = db.reader()
    try:
        wanted = VectorQuery(SPACE, DIMS, vector, floor, opening, gap)
        shape = layout.read(reader)
        return legs.vector(reader, shape, query.parse(asked), filters, wanted, floor)
    finally:
        reader.close()


def noise(db: HostDatabase, count: int = 20) -> None:
    for number in range(count):
        db.say("noise", f"filler about weather report {number} and 今天天气晴朗适合出门散步")


# The relaxed leg


def test_question_finds_a_message_with_some_of_its_rare_words(db: HostDatabase) -> None:
    wanted = db.say("a", "The nginx certificate was renewed by certbot")
    noise(db)
    assert relaxed(db, "how did we renew the nginx certificate?") == [wanted]


def test_chinese_question_finds_a_message_with_its_words_inside_a_longer_run(
    db: HostDatabase,
) -> None:
    wanted = db.say("a", "昨天把服务器磁盘清理干净并且重启")
    noise(db)
    assert relaxed(db, "磁盘清理是怎么做的？") == [wanted]


def test_two_characters_of_chinese_are_enough(db: HostDatabase) -> None:
    wanted = db.say("a", "后来我们去桂林玩，路上很开心")
    noise(db)
    assert relaxed(db, "桂林") == [wanted]


def test_ranking_is_by_rare_words_not_by_time(db: HostDatabase) -> None:
    best = db.say("a", "磁盘清理：删除旧日志，磁盘清理完成")
    noise(db)
    weaker = db.say("b", "磁盘快要满了，要不要清理一下缓存，再看看网络设置和其他配置")
    assert relaxed(db, "磁盘清理日志")[0] == best
    assert weaker not in relaxed(db, "磁盘清理日志")[:1]


def test_inflected_forms_match(db: HostDatabase) -> None:
    painted = db.say("a", "She painted a sunrise")
    noise(db)
    assert relaxed(db, "painting of sunrises") == [painted]


def test_part_of_another_word_does_not_match(db: HostDatabase) -> None:
    db.say("a", "concatenate the catalogue")
    noise(db)
    assert relaxed(db, "cat") == []


def test_one_common_word_is_not_enough(db: HostDatabase) -> None:
    noise(db)
    assert relaxed(db, "weather on the planet Neptune during storms") == []


def test_word_that_no_message_has_counts_against_coverage(db: HostDatabase) -> None:
    wanted = db.say("a", "kubernetes upgrade")
    noise(db)
    assert relaxed(db, "kubernetes xylophone", gate=0.4) == [wanted]
    assert relaxed(db, "kubernetes xylophone bassoon piccolo", gate=0.4) == []


def together(db: HostDatabase, asked: str) -> list[int]:
    """Search with the gate that the product has beside vectors."""
    reader = db.reader()
    try:
        shape, parsed = layout.read(reader), query.parse(asked)
        scorer, found = leg.scorer_of(reader, shape, parsed)
        hits = leg.search(reader, shape, parsed, Filters(), scorer, found, leg.Gate(0.9, leg.LEAST))
        return [hit.msg_id for hit in hits]
    finally:
        reader.close()


def test_the_words_of_a_question_may_be_spread_over_two_turns(db: HostDatabase) -> None:
    asked = db.say("a", "where shall we spend the holiday")
    answered = db.say("a", "Lisbon, we fly there in June", role="assistant")
    noise(db)
    assert set(together(db, "the holiday in Lisbon")) == {asked, answered}


def test_tool_output_between_two_turns_does_not_part_them(db: HostDatabase) -> None:
    asked = db.say("a", "where shall we spend the holiday")
    db.say("a", "", role="assistant")
    db.say("a", "42 flights", role="tool")
    db.say("b", "another conversation at the same time")
    answered = db.say("a", "Lisbon, we fly there in June", role="assistant")
    noise(db)
    assert set(together(db, "the holiday in Lisbon")) == {asked, answered}


def test_turns_with_words_between_them_do_not_count_together(db: HostDatabase) -> None:
    db.say("a", "where shall we spend the holiday")
    db.say("a", "I do not know yet", role="assistant")
    db.say("a", "then let us think about it")
    db.say("a", "Lisbon, we fly there in June", role="assistant")
    noise(db)
    assert together(db, "the holiday in Lisbon") == []


def test_turns_of_two_conversations_do_not_count_together(db: HostDatabase) -> None:
    db.say("a", "where shall we spend the holiday")
    db.say("b", "Lisbon, we fly there in June", role="assistant")
    noise(db)
    assert together(db, "the holiday in Lisbon") == []


def test_messages_with_an_excluded_term_are_left_out(db: HostDatabase) -> None:
    kept = db.say("a", "python packaging with wheels")
    db.say("b", "python packaging compared with Java packaging")
    noise(db)
    assert relaxed(db, "python packaging NOT java") == [kept]


def test_filters_hold(db: HostDatabase) -> None:
    db.session("cron", source="cron")
    db.say("cron", "backup of the postgres database")
    db.say("a", "backup of the postgres database", role="tool")
    wanted = db.say("b", "backup of the postgres database")
    noise(db)
    filters = Filters(exclude_sources=["cron"], role_filter=["user", "assistant"])
    assert relaxed(db, "postgres backup", filters) == [wanted]


def test_rewound_messages_stay_hidden(tmp_path: Path) -> None:
    db = HostDatabase(tmp_path / "state.db", "external")
    db.say("a", "postgres backup taken back", active=0, compacted=0)
    db.say("b", "postgres backup scaffolding", display_kind="hidden")
    archived = db.say("c", "postgres backup archived", active=0, compacted=1)
    noise(db)
    assert relaxed(db, "postgres backup") == [archived]


def test_query_without_content_words_finds_nothing(db: HostDatabase) -> None:
    noise(db)
    assert relaxed(db, "what was it?") == []
    assert relaxed(db, "是什么的呢") == []


def test_word_written_against_chinese_is_found_through_the_trigrams(one: HostDatabase) -> None:
    wanted = one.say("a", "修改youer服务端")
    noise(one)
    assert one.shape == "inline" and wanted in relaxed(one, "youer")


def test_chinese_is_found_where_the_vocabulary_cannot_be_read(
    one: HostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = one.say("a", "昨天把服务器磁盘清理干净并且重启")
    noise(one)
    monkeypatch.setattr(postings, "_open_vocabulary", lambda conn, table: False)
    assert relaxed(one, "磁盘清理是怎么做的？") == [wanted]


def test_nothing_is_written_to_the_database_and_it_stays_guarded(one: HostDatabase) -> None:
    one.say("a", "磁盘清理")
    before = one.conn.execute("SELECT name FROM sqlite_master").fetchall()
    reader = one.reader()
    relaxed(one, "磁盘清理", conn=reader)
    assert reader.execute("PRAGMA query_only").fetchone() == (1,)
    reader.close()
    assert one.conn.execute("SELECT name FROM sqlite_master").fetchall() == before


def test_interrupted_leg_says_so(db: HostDatabase) -> None:
    noise(db)
    reader = db.reader()
    reader.set_progress_handler(lambda: 1, 1)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        relaxed(db, "天气 weather", conn=reader)
    reader.close()


def test_postings_of_one_unit_are_bounded(
    one: HostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise(one, 30)
    monkeypatch.setattr(postings, "CAP", 10)
    reader = one.reader()
    wanted = units.of(query.parse("weather"))
    found = postings.find(reader, layout.read(reader), wanted, [])
    reader.close()
    assert [len(ids) for ids in found.values()] == [10]


# The exact leg


def host(
    db: HostDatabase, ids: list[int]
) -> tuple[list[dict[str, object]], dict[int, rows.Message]]:
    reader = db.reader()
    messages = {m.id: m for m in rows.load(reader, ids, layout.read(reader))}
    reader.close()
    return [{"id": i, "timestamp": messages[i].timestamp} for i in ids], messages


def test_host_rows_that_lack_a_term_are_not_exact(one: HostDatabase) -> None:
    both = one.say("a", "docker networking")
    half = one.say("b", "docker volumes")
    listed, messages = host(one, [half, both])
    parsed = query.parse("docker networking")
    split = legs.exact(listed, messages, parsed, leg.unweighted(parsed))
    assert (split.exact, split.partial) == ([both], [half])


def test_terms_found_in_a_tool_call_count(one: HostDatabase) -> None:
    called = one.say("a", "", role="assistant", tool_calls='[{"name": "docker_ps"}]')
    listed, messages = host(one, [called])
    parsed = query.parse("docker")
    assert legs.exact(listed, messages, parsed, leg.unweighted(parsed)).exact == [called]


def test_chinese_rows_listed_by_time_are_put_in_order_of_relevance(one: HostDatabase) -> None:
    dense = one.say("a", "桂林，桂林，还是桂林")
    passing = [one.say("b", "路过桂林" + "，说了很多别的事情" * n) for n in (3, 5)]
    newest_first = [*reversed(passing), dense]
    listed, messages = host(one, newest_first)
    parsed = query.parse("桂林")
    assert legs.exact(listed, messages, parsed, leg.unweighted(parsed)).exact[0] == dense


def test_rows_ranked_by_the_host_keep_its_order(one: HostDatabase) -> None:
    first = one.say("a", "桂林游记，写得很长很长很长")
    second = one.say("a", "桂林，桂林")
    third = one.say("a", "桂林")
    listed, messages = host(one, [second, first, third])
    parsed = query.parse("桂林")
    exact = legs.exact(listed, messages, parsed, leg.unweighted(parsed)).exact
    assert exact == [second, first, third]


# The vector leg


def test_nearest_come_first_and_the_floor_holds(one: HostDatabase) -> None:
    near = one.say("a", "close", vector=NEAR_EAST)
    nearer = one.say("b", "closer", vector=EAST)
    one.say("c", "elsewhere", vector=UP)
    assert [hit.message.id for hit in nearest(one, EAST)] == [nearer, near]


def test_leg_stays_silent_when_even_the_best_is_below_the_opening(one: HostDatabase) -> None:
    one.say("a", "close", vector=NEAR_EAST)
    assert nearest(one, EAST, opening=0.95) == []
    assert len(nearest(one, EAST, opening=0.85)) == 1


def test_one_hit_for_every_text(one: HostDatabase) -> None:
    for session in "abc":
        one.say(session, "the same words", vector=EAST)
    other = one.say("d", "other words", vector=NEAR_EAST)
    hits = nearest(one, EAST)
    assert len(hits) == 2 and hits[1].message.id == other


def test_a_crowd_of_copies_does_not_drown_another_text(one: HostDatabase) -> None:
    one.conn.execute("BEGIN")
    for number in range(3 * legs.DEPTH):
        one.say(f"cron{number}", "nightly report prompt", vector=EAST)
    one.conn.execute("COMMIT")
    lonely = one.say("user", "what the user said", vector=NEAR_EAST)
    assert lonely in [hit.message.id for hit in nearest(one, EAST)]


def test_vector_of_an_edited_message_is_not_served(one: HostDatabase) -> None:
    msg_id = one.say("a", "before", vector=EAST)
    one.conn.execute("UPDATE messages SET content = 'after' WHERE id = ?", (msg_id,))
    assert nearest(one, EAST) == []


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_an_edited_copy_does_not_hide_the_same_text_elsewhere(
    one: HostDatabase, changed: int
) -> None:
    copies = [one.say(session, "the same words", vector=EAST) for session in "abc"]
    edit = "UPDATE messages SET content = 'quite another text' WHERE id = ?"
    one.conn.execute(edit, (copies[changed],))
    kept = [msg_id for msg_id in copies if msg_id != copies[changed]]
    assert [hit.message.id for hit in nearest(one, EAST)] == kept[-1:]


def test_an_excluded_copy_does_not_hide_the_same_text_elsewhere(one: HostDatabase) -> None:
    kept = one.say("a", "coffee beans", vector=EAST)
    one.say("b", "coffee beans", vector=EAST, tool_name="java")
    assert [hit.message.id for hit in nearest(one, EAST, asked="beans NOT java")] == [kept]


def test_vector_of_a_deleted_message_is_not_served(one: HostDatabase) -> None:
    msg_id = one.say("a", "gone", vector=EAST)
    one.conn.execute("PRAGMA foreign_keys = OFF")
    one.conn.execute("DELETE FROM messages WHERE id = ?", (msg_id,))
    assert nearest(one, EAST) == []


def test_vector_hits_with_an_excluded_term_are_left_out(one: HostDatabase) -> None:
    one.say("a", "java beans", vector=EAST)
    kept = one.say("b", "coffee beans", vector=NEAR_EAST)
    assert [h.message.id for h in nearest(one, EAST, asked="beans NOT java")] == [kept]


def test_vector_leg_honours_filters(one: HostDatabase) -> None:
    one.say("a", "by a tool", role="tool", vector=EAST)
    kept = one.say("a", "by the user", vector=NEAR_EAST)
    hits = nearest(one, EAST, filters=Filters(role_filter=["user"]))
    assert [hit.message.id for hit in hits] == [kept]


AT_06, AT_05 = (0.6, 0.8, 0.0), (0.5, 0.866, 0.0)


def test_a_hit_in_the_other_language_is_nearer_than_its_cosine(db: HostDatabase) -> None:
    same = db.say("a", "磁盘满了", vector=AT_06)
    other = db.say("b", "the disk is full", vector=AT_05)
    found = nearest(db, EAST, asked="空间不够", gap=0.2)
    assert [hit.message.id for hit in found] == [other, same]
    assert [round(hit.similarity, 2) for hit in found] == [0.5, 0.6]
    found = nearest(db, EAST, asked="no room left", gap=0.2)
    assert [hit.message.id for hit in found] == [same, other]


def test_the_gap_counts_for_floor_and_opening_of_the_other_language_only(db: HostDatabase) -> None:
    db.say("a", "磁盘满了", vector=AT_05)
    assert nearest(db, EAST, floor=0.55, asked="空间不够", gap=0.1) == []
    assert len(nearest(db, EAST, floor=0.55, asked="no room left", gap=0.1)) == 1
    assert nearest(db, EAST, floor=0.3, opening=0.55, asked="空间不够", gap=0.1) == []
    assert len(nearest(db, EAST, floor=0.3, opening=0.55, asked="no room left", gap=0.1)) == 1


def test_the_language_is_that_of_the_passage_not_of_the_whole_message(db: HostDatabase) -> None:
    text = "the disk is full. 磁盘满了"
    msg_id = db.say("a", text)
    db.embed(msg_id, AT_05, start=0, end=17)
    assert len(nearest(db, EAST, floor=0.55, asked="空间不够", gap=0.1)) == 1
    assert nearest(db, EAST, floor=0.55, asked="no room left", gap=0.1) == []
