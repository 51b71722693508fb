"""What the documents refer to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links(document: Path) -> list[tuple[str, str]]:
    found = LINK.findall(document.read_text(encoding="utf-8"))
    return [(text, target) for text, target in found if "://" not in target]


def anchors(document: Path) -> set[str]:
    headings = HEADING.findall(document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for _, target in links(document):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_failure_names_tests_that_exist() -> None:
    document = ROOT / "docs" / "failure-modes.md"
    named = [(t, target) for t, target in links(document) if t.startswith("test_") and "." not in t]
    rows = [r for r in document.read_text().splitlines() if r.startswith("|") and "---" not in r]
    for name, target in named:
        source = (document.parent / target).read_text(encoding="utf-8")
        assert f"def {name}(" in source, f"{name} is not in {target}"
    without = [row for row in rows if "](../tests/" not in row and "what happens" not in row]
    assert len(named) >= 60 and without == []
