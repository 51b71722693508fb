"""What is asked of Hermes's own code beside its searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes_patch import upstream
from targets import Installed

ROOT = Path(__file__).parents[1]


def test_our_writes_move_none_of_the_hosts_own_upkeep(hermes: Installed, home: Path) -> None:
    env = {"PYTHONPATH": str(ROOT)}
    told = hermes.run_json(Path(__file__).parent / "scripts" / "counted.py", home=home, env=env)
    assert told == {"ours": 0, "merged": 0, "theirs": 1, "written": ["ours", "theirs"]}


class _Base:
    def helped(self) -> str:
        return type(self).__name__


class _Handle(_Base):
    def __init__(self) -> None:
        self._write_count, self.reopened = 7, False

    def _execute_write(self, change: Any) -> Any:
        self.reopened = True
        self._write_count += 1
        return change((super().helped(), isinstance(self, _Handle)))


def test_to_the_helper_the_handle_is_still_the_handle() -> None:
    handle = _Handle()
    assert upstream.write(handle, lambda given: given)[1] is True  # type: ignore[arg-type, index]
    assert (handle._write_count, handle.reopened) == (7, True)


def test_a_handle_that_counts_nothing_is_called_as_it_is() -> None:
    class Plain:
        def _execute_write(self, change: Any) -> Any:
            return change(self)

    plain = Plain()
    assert upstream.write(plain, lambda given: given) is plain  # type: ignore[comparison-overlap]
