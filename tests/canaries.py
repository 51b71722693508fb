"""A key and a sentence that nobody else writes, and the watch that none of ours shows them.

Tests use KEY as the key of a server and TEXT in messages, queries and titles. Whatever our
loggers, the processes of a real Hermes and its log files say in the whole run is looked at.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from pathlib import Path

KEY = "sk-proj-CANARY0nlyInATest7hQ2vXkY9mZr4TbW6cLd8"
USER, PASSWORD = "canary-user-5f1c", "canary-password-8d3e"
TEXT = "the quokka ledger opens with marmalade-7141"
TEXT_CJK = "袋鼠账本的暗号是橘子酱七一四一"

SECRETS = (
    KEY,
    KEY.removeprefix("sk-proj-"),
    PASSWORD,
    USER,
    base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
)
TEXTS = ("marmalade", "quokka", "橘子酱七一四一")
_OURS = ("hermes_patch", "hermes-patch", "Hermes is not affected", "semantic recall")


class Watch(logging.Handler):
    """Remembers where a canary was seen. Hears every record of the package's loggers."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.found: list[str] = []
        self._homes: set[Path] = set()
        self._format = logging.Formatter("%(name)s %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a record with its traceback and its arguments."""
        self.note(f"logger {record.name}", f"{self._format.format(record)} {record.args!r}")

    def note(self, where: str, text: str) -> None:
        """Remember *where* if there is any canary in *text*."""
        found = shown(text)
        if found:
            self.found.append(f"{where}: {found} in {text[:300]!r}")

    def expect(self, home: Path) -> None:
        """Look at the logs of a Hermes home when the run ends."""
        self._homes.add(home)

    def process(self, where: str, output: str) -> None:
        """Look at what a process of Hermes wrote to its errors or to a log.

        A key may be nowhere. A text may be in what Hermes itself logs, never in a line of ours
        or in a traceback that goes through our code.
        """
        for block in _blocks(output):
            ours = any(mark in block for mark in _OURS)
            found = [mark for mark in SECRETS if mark in block]
            found += [mark for mark in TEXTS if ours and mark in block]
            if found:
                self.found.append(f"{where}: {found} in {block[:300]!r}")

    def homes(self) -> None:
        """Look at the logs of every home that a process of Hermes had."""
        for home in sorted(self._homes):
            for log in sorted(home.glob("logs/*.log*")):
                self.process(str(log), log.read_text(encoding="utf-8", errors="replace"))

    def start(self) -> None:
        """Begin to listen, down to what is only of use in debugging."""
        logger = logging.getLogger("hermes_patch")
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)

    def stop(self) -> None:
        """Stop listening and look at what is left to look at."""
        logging.getLogger("hermes_patch").removeHandler(self)
        self.homes()


def shown(text: str) -> list[str]:
    """Return the canaries in *text*."""
    return [mark for mark in (*SECRETS, *TEXTS) if mark in text]


def _blocks(output: str) -> Iterator[str]:
    """Yield the lines of *output*, the lines of one traceback together."""
    block: list[str] = []
    for line in output.splitlines():
        block.append(line)
        inside = any(part.startswith("Traceback ") for part in block)
        if not inside or not line.startswith((" ", "Traceback ")):
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)


watch = Watch()
