"""The answer in the last paragraph of a message of 200 KB is found, and its snippet shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_patch import deploy
from hermes_patch.embedders import profiles
from targets import Installed
from test_on_hermes import ask, backfill

SIZE = 200_000
WRITE = """
import os, sys
from pathlib import Path
from hermes_state import SessionDB

db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
db.create_session("long", source="cli")
db.append_message("long", "user", Path(sys.argv[1]).read_text("utf-8"))
db.close()
"""
ENGLISH = (
    "Row {n} of the inventory lists {n} boxes of screws, which were counted twice.",
    "The printer on floor {n} was repaired, the invoice has number {n}.",
    "Ticket {n} is about a button that is too small on older screens.",
    "In week {n} the sales of garden chairs went up a little.",
)
CHINESE = (
    "库存第{n}行是{n}箱螺丝，已经清点过两遍。",
    "{n}楼的打印机修好了，发票号是{n}。",
    "第{n}号工单说旧屏幕上的按钮太小。",
    "第{n}周花园椅子的销量略有上升。",
)
ANSWERS = {
    "en": (
        ENGLISH,
        "In the end we decided to take the ferry at dawn to reach the island.",
        "which boat did we choose for the early crossing?",
        "ferry at dawn",
    ),
    "zh": (
        CHINESE,
        "最后我们决定把旧照片全部搬到阁楼的那台存储服务器上。",
        "老相片存到哪里去了？",
        "搬到阁楼",
    ),
}


def long_text(sentences: tuple[str, ...], last: str) -> str:
    """Return paragraphs of *sentences*, at least SIZE bytes in UTF-8, and *last*."""
    paragraphs, size, number = [], 0, 0
    while size < SIZE:
        number += 1
        paragraphs.append(" ".join(sentence.format(n=number) for sentence in sentences))
        size += len(paragraphs[-1].encode()) + 2
    return "\n\n".join([*paragraphs, last])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", ANSWERS)
def test_the_end_of_a_long_message_is_found_and_shown(
    hermes_019: Installed, home: Path, tmp_path: Path, language: str
) -> None:
    sentences, last, question, shown = ANSWERS[language]
    (home / "config.yaml").write_text(
        # The quicker of the local models; what is tried here is the same for all.
        f"agents: {{defaults: {{memorySearch: {{model: {profiles.LOCAL_USE}}}}}}}\n"
    )
    text = tmp_path / "text"
    text.write_text(long_text(sentences, last), "utf-8")
    hermes_019.run(WRITE, str(text), home=home)
    deploy.apply(home, hermes_python=hermes_019.python)
    filled = backfill(hermes_019, home)
    assert filled["stored"] == 1 and filled["texts_sent"] > 100, filled
    result = json.loads(ask(hermes_019, home, [question])["answers"][0])["results"][0]
    assert (result["session_id"], result["search_type"]) == ("long", "vector")
    assert shown in result["snippet"]
