"""Our entry in config.yaml: exact edits, proven by the parsed result, taken back exactly."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hermes_patch.deploy import config_edit
from hermes_patch.errors import DeployError

BLOCK = "plugins:\n  enabled:\n    - hermes_patch\n"

EDITS = {
    "empty": ("", BLOCK),
    "only a comment": ("# mine\n", "# mine\n" + BLOCK),
    "document start": ("---\n", "---\n" + BLOCK),
    "no plugins": ("a: 1 # one\n\n# end\n", "a: 1 # one\n\n# end\n" + BLOCK),
    "no final line end": ("a: 1", "a: 1\n" + BLOCK.rstrip("\n")),
    "crlf": ("a: 1\r\n# x\r\n", "a: 1\r\n# x\r\n" + BLOCK.replace("\n", "\r\n")),
    "document end": ("a: 1\n...\n", "a: 1\n" + BLOCK + "...\n"),
    "indented root": ("  a: 1\n", "  a: 1\n  plugins:\n    enabled:\n      - hermes_patch\n"),
    "text block at the end": ("p: |\n  text", BLOCK + "p: |\n  text"),
    "kept text block": ("p: |+\n  text\n\n", "p: |+\n  text\n\n" + BLOCK),
    "plugins empty": (
        "plugins:\n  # none yet\nb: 2\n",
        "plugins:\n  enabled:\n    - hermes_patch\n  # none yet\nb: 2\n",
    ),
    "plugins null": ("plugins: null # n\n", "plugins: {enabled: [hermes_patch]} # n\n"),
    "plugins tilde": ("plugins: ~\nb: 1\n", "plugins: {enabled: [hermes_patch]}\nb: 1\n"),
    "plugins braces": ("plugins: {}\n", "plugins: {enabled: [hermes_patch]}\n"),
    "flow with list": (
        "plugins: {enabled: [a, b], x: 1}\n",
        "plugins: {enabled: [a, b, hermes_patch], x: 1}\n",
    ),
    "flow without list": (
        "plugins: {x: 1, } # c\n",
        "plugins: {x: 1, enabled: [hermes_patch], } # c\n",
    ),
    "flow root": ("{a: 1}\n", "{a: 1, plugins: {enabled: [hermes_patch]}}\n"),
    "json": (
        '{"plugins": {"enabled": ["a"]}}\n',
        '{"plugins": {"enabled": ["a", hermes_patch]}}\n',
    ),
    "plugins without list": (
        "plugins: # c\n    # off:\n    disabled: [x]\n",
        "plugins: # c\n    enabled:\n      - hermes_patch\n    # off:\n    disabled: [x]\n",
    ),
    "enabled empty": (
        "plugins:\n  enabled: # none\n  x: 1\n",
        "plugins:\n  enabled: # none\n    - hermes_patch\n  x: 1\n",
    ),
    "enabled null": (
        "plugins:\n  enabled: null\n",
        "plugins:\n  enabled: [hermes_patch]\n",
    ),
    "enabled brackets": (
        "plugins:\n  enabled: [] # none\n",
        "plugins:\n  enabled: [hermes_patch] # none\n",
    ),
    "flow list over lines": (
        "plugins:\n  enabled: [\n    a, # one\n    'b',\n  ]\n",
        "plugins:\n  enabled: [\n    a, # one\n    'b', hermes_patch,\n  ]\n",
    ),
    "block list": (
        "plugins:\n  enabled:\n    - a\n    - 'b' # b\n    # - c\n  x: 1\n",
        "plugins:\n  enabled:\n    - a\n    - 'b' # b\n    - hermes_patch\n    # - c\n  x: 1\n",
    ),
    "list at the column of its key": (
        "plugins:\n  enabled:\n  - a\nz: 1\n",
        "plugins:\n  enabled:\n  - a\n  - hermes_patch\nz: 1\n",
    ),
    "list without final line end": (
        "plugins:\n  enabled:\n    - a",
        "plugins:\n  enabled:\n    - a\n    - hermes_patch",
    ),
    "list ends in a text block": (
        "plugins:\n  enabled:\n  - |\n    a\nz: 1\n",
        "plugins:\n  enabled:\n  - hermes_patch\n  - |\n    a\nz: 1\n",
    ),
    "anchor on the list": (
        "plugins:\n  enabled: &l\n    - a\n",
        "plugins:\n  enabled: &l\n    - a\n    - hermes_patch\n",
    ),
    "item is an alias": (
        "x: &n a\nplugins:\n  enabled: [*n]\n",
        "x: &n a\nplugins:\n  enabled: [hermes_patch, *n]\n",
    ),
    "quoted keys": (
        "'plugins':\n  \"enabled\": ['a']\n",
        "'plugins':\n  \"enabled\": ['a', hermes_patch]\n",
    ),
    "twice the same key": (
        "plugins: {enabled: [a]}\nplugins: {enabled: [b]}\n",
        "plugins: {enabled: [a]}\nplugins: {enabled: [b, hermes_patch]}\n",
    ),
    "the same words elsewhere": (
        "a: {plugins: {enabled: [b]}}\nenabled: [c]\n",
        "a: {plugins: {enabled: [b]}}\nenabled: [c]\n" + BLOCK,
    ),
    "disabled": (
        "plugins:\n  enabled: [a]\n  disabled: [hermes_patch, b]\n",
        "plugins:\n  enabled: [a, hermes_patch]\n  disabled: [b]\n",
    ),
    "disabled alone in a block": (
        "plugins:\n  disabled: # no\n    - hermes_patch # ?\n  enabled: [a]\n",
        "plugins:\n  disabled: [] # no\n  enabled: [a, hermes_patch]\n",
    ),
}


def write(home: Path, text: str) -> Path:
    path = home / "config.yaml"
    path.write_bytes(text.encode("utf-8"))
    return path


def enable(home: Path) -> dict[str, Any]:
    edit = config_edit.plan_enable(home)
    config_edit.write(edit)
    return edit.record()


def disable(home: Path, record: dict[str, Any] | None) -> None:
    config_edit.write(config_edit.plan_disable(home, record))


@pytest.mark.parametrize(("before", "after"), EDITS.values(), ids=EDITS)
def test_the_edit_is_as_small_as_it_can_be(home: Path, before: str, after: str) -> None:
    path = write(home, before)
    enable(home)
    assert path.read_bytes().decode("utf-8") == after


@pytest.mark.parametrize("before", [before for before, _ in EDITS.values()], ids=EDITS)
def test_revert_gives_back_the_very_bytes(home: Path, before: str) -> None:
    path = write(home, before)
    disable(home, enable(home))
    assert path.read_bytes().decode("utf-8") == before


# Those that a line can be put in front of.
LATER = {
    name: before
    for name, (before, _) in EDITS.items()
    if (yaml.safe_load(before) or {}) and "..." not in before and before[0] != "{"
}


@pytest.mark.parametrize("before", LATER.values(), ids=LATER)
def test_revert_after_a_later_change_takes_our_entry_alone(home: Path, before: str) -> None:
    path = write(home, before)
    wanted = yaml.safe_load(before)
    wanted["zz"] = 1
    if "hermes_patch" in before:
        wanted["plugins"]["disabled"].remove("hermes_patch")
    record = enable(home)
    pad = " " * (len(before) - len(before.lstrip(" ")))
    path.write_bytes(f"{pad}zz: 1\n".encode() + path.read_bytes())
    disable(home, record)
    found = yaml.safe_load(path.read_text("utf-8"))
    for data in (found, wanted):
        data["plugins"] = {k: v for k, v in (data.get("plugins") or {}).items() if v}
    assert found == wanted


def test_revert_of_our_section_after_a_later_change_leaves_no_trace(home: Path) -> None:
    path = write(home, "a: 1\n")
    record = enable(home)
    path.write_text("b: 2\n" + path.read_text())
    disable(home, record)
    assert path.read_text() == "b: 2\na: 1\n"


def test_revert_keeps_a_comment_put_into_our_section(home: Path) -> None:
    path = write(home, "a: 1\n")
    record = enable(home)
    path.write_text(path.read_text().replace("enabled:\n", "enabled:\n    # why\n"))
    disable(home, record)
    assert path.read_text() == "a: 1\nplugins:\n  enabled: []\n    # why\n"


def test_revert_after_hermes_wrote_the_file_anew_takes_our_entry_alone(home: Path) -> None:
    path = write(home, "# lost\nplugins: {enabled: [a]}\n")
    record = enable(home)
    path.write_text(yaml.safe_dump({"model": "x", "plugins": {"enabled": ["a", "hermes_patch"]}}))
    disable(home, record)
    assert path.read_text() == "model: x\nplugins:\n  enabled:\n  - a\n"


def test_a_file_that_apply_made_goes_with_revert(home: Path) -> None:
    record = enable(home)
    assert (home / "config.yaml").read_text() == BLOCK
    disable(home, record)
    assert not (home / "config.yaml").exists()


def test_a_file_that_apply_made_and_somebody_filled_stays(home: Path) -> None:
    record = enable(home)
    (home / "config.yaml").write_text("model: x\n" + BLOCK)
    disable(home, record)
    assert (home / "config.yaml").read_text() == "model: x\n"


def test_an_entry_that_was_there_before_apply_stays(home: Path) -> None:
    path = write(home, BLOCK)
    record = enable(home)
    path.write_text(BLOCK + "b: 1\n")
    disable(home, record)
    assert path.read_text() == BLOCK + "b: 1\n"


def test_without_a_record_our_entry_is_still_taken_out(home: Path) -> None:
    path = write(home, "plugins:\n  enabled: [hermes_patch, a]\n")
    disable(home, None)
    assert path.read_text() == "plugins:\n  enabled: [a]\n"


def test_byte_order_mark_is_kept(home: Path) -> None:
    path = home / "config.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    enable(home)
    assert path.read_bytes() == b"\xef\xbb\xbfa: 1\n" + BLOCK.encode()


def test_text_beyond_ascii_does_not_shift_the_edit(home: Path) -> None:
    path = write(home, "名: 中文 😀 # 注\nplugins:\n  enabled: [é] # ü\n")
    enable(home)
    assert path.read_text("utf-8").endswith("  enabled: [é, hermes_patch] # ü\n")


def test_an_enabled_home_is_left_alone(home: Path) -> None:
    write(home, "plugins: {enabled: [hermes_patch]}\n")
    assert not config_edit.plan_enable(home).changed


REFUSED = {
    "a: [1\n": "line 2",
    "a: 1\nb: c: d\n": "line 2",
    "a: \x07\n": "line 1",
    "a:\n\t- b\n": "line 2",
    "a: 1\n---\nb: 2\n": "not valid YAML",
    "- a\n": "expected a mapping, found list",
    "just text\n": "expected a mapping, found str",
    "plugins: all\n": "plugins: expected a mapping, found str",
    "plugins: false\n": "plugins: expected a mapping, found bool",
    "plugins: {enabled: all}\n": "plugins.enabled: expected a list of names, found str",
    "x: &l [a]\nplugins: {enabled: *l}\n": "by hand",
    "x: &p {enabled: [a]}\nplugins: *p\n": "by hand",
    "x: &p {enabled: [a]}\nplugins:\n  <<: *p\n": "by hand",
    "plugins:\n  enabled: &l [a]\nx: *l\n": "by hand",
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_what_cannot_be_edited_alone_is_refused_with_the_place(
    home: Path, text: str, reason: str
) -> None:
    path = write(home, text)
    with pytest.raises(DeployError) as caught:
        config_edit.plan_enable(home)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_utf8_is_refused_with_the_line(home: Path) -> None:
    (home / "config.yaml").write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(DeployError, match="not UTF-8 at line 2"):
        config_edit.plan_enable(home)


def test_a_folder_in_the_place_of_the_file_is_refused(home: Path) -> None:
    (home / "config.yaml").mkdir()
    with pytest.raises(DeployError, match="cannot be read"):
        config_edit.plan_enable(home)


def test_mode_is_kept_and_nothing_is_left_beside(home: Path) -> None:
    path = write(home, "a: 1\n")
    path.chmod(0o640)
    enable(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(home) == ["config.yaml"]


def test_a_linked_file_is_changed_where_it_really_is(home: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.yaml"
    real.write_text("a: 1\n")
    (home / "config.yaml").symlink_to(real)
    enable(home)
    assert (home / "config.yaml").is_symlink()
    assert real.read_text() == "a: 1\n" + BLOCK


def test_a_change_in_between_is_not_overwritten(home: Path) -> None:
    path = write(home, "a: 1\n")
    edit = config_edit.plan_enable(home)
    path.write_text("a: 2\n")
    with pytest.raises(DeployError, match="changed while this ran"):
        config_edit.write(edit)
    assert path.read_text() == "a: 2\n"


def test_the_record_holds_nothing_of_the_rest_of_the_file(home: Path) -> None:
    write(home, "key: sk-secret\nplugins: {enabled: [a]}\nother: sk-secret\n")
    record = config_edit.plan_enable(home).record()
    assert record["removed"] == ""
    assert len(record["inserted"]) < 40


names = st.sampled_from(["a", "'b'", '"c"', "d-e", "f/g"])
blank = st.sampled_from(["", "# note\n", "\n", "   # deep\n"])


@st.composite
def sections(draw: st.DrawFn) -> str:
    items = draw(st.lists(names, max_size=3))
    column = draw(st.sampled_from([2, 4]))
    pad = " " * column
    if draw(st.booleans()):
        listed = f"{pad}enabled: [{', '.join(items)}]{draw(st.sampled_from(['', ' # c']))}\n"
    else:
        inner = pad + " " * draw(st.sampled_from([0, 2]))
        listed = f"{pad}enabled:\n" + "".join(f"{draw(blank)}{inner}- {item}\n" for item in items)
    other = f"{pad}load_timeout_seconds: 10\n"
    parts = draw(st.sampled_from([[listed], [other], [other, listed], [listed, other], []]))
    return "plugins:\n" + draw(blank) + "".join(parts)


@st.composite
def configs(draw: st.DrawFn) -> str:
    before = draw(st.sampled_from(["", "model: x\n", "a:\n  - 1\n", "t: |\n  one\n\n  two\n"]))
    after = draw(st.sampled_from(["", "z: {b: [1, 2]}\n", "# end", "y: ~", "y: 'q'"]))
    text = before + draw(blank) + draw(st.one_of(st.just(""), sections())) + draw(blank) + after
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@given(text=configs())
def test_any_file_gains_exactly_the_entry_and_gives_it_back(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    home = tmp_path_factory.mktemp("home")
    path = write(home, text)
    old = yaml.safe_load(text) or {}
    record = enable(home)
    section = old.get("plugins") or {}
    listed = [*(section.get("enabled") or []), "hermes_patch"]
    wanted = {**old, "plugins": {**section, "enabled": listed}}
    assert yaml.safe_load(path.read_bytes()) == wanted
    disable(home, record)
    assert path.read_bytes().decode() == text
