"""Our one entry in the user's config.yaml: put in, taken back, and nothing else touched."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config_keys import BLOCK
from ..errors import DeployError
from . import yaml_edit, yaml_value
from .yaml_edit import NoEdit, Unparsable

NAME = "hermes_patch"
_BOM = b"\xef\xbb\xbf"
_LISTED_SINCE = 21  # the _config_version in which Hermes began to ask for plugins.enabled


@dataclass(frozen=True)
class Edit:
    """A change of config.yaml: its bytes before and after, None where there is no file.

    ``made`` says what the entry needed: ``file``, ``plugins``, ``enabled``, ``item``, or ""
    when it was there. ``was_disabled`` is True when it also had to leave plugins.disabled.
    """

    path: Path
    before: bytes | None
    after: bytes | None
    made: str = ""
    was_disabled: bool = False

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def action(self) -> str:
        """The word for the report."""
        if not self.changed:
            return "unchanged"
        return "created" if self.before is None else "removed" if self.after is None else "updated"

    def record(self) -> dict[str, Any]:
        """Return what :func:`plan_disable` needs to give back the very bytes.

        Only the changed span is kept, never the file, which may hold keys.
        """
        old, new = self.before or b"", self.after or b""
        head = len(os.path.commonprefix([old, new]))
        tail = len(os.path.commonprefix([old[head:][::-1], new[head:][::-1]]))
        return {
            "made": self.made,
            "at": head,
            "removed": _b64(old[head : len(old) - tail]),
            "inserted": _b64(new[head : len(new) - tail]),
            "before": _digest(self.before),
            "after": _digest(self.after),
        }


@dataclass(frozen=True)
class State:
    """What config.yaml says about plugins."""

    enabled: bool
    disabled: bool
    has_list: bool
    asks_for_list: bool
    isolated: bool


def read(home: Path) -> tuple[Path, bytes | None]:
    """Return the real path of config.yaml and its bytes, None when there is none."""
    path = Path(os.path.realpath(home / "config.yaml"))
    try:
        return path, path.read_bytes()
    except FileNotFoundError:
        return path, None
    except OSError as error:
        raise DeployError(f"{path}: cannot be read ({error.strerror})") from None


def state(home: Path) -> State:
    """Return what config.yaml says now; raises DeployError when it cannot be understood."""
    path, raw = read(home)
    data = _data(path, raw)
    section = data.get("plugins") or {}
    version, disabled = data.get("_config_version"), section.get("disabled")
    return State(
        enabled=NAME in (section.get("enabled") or []),
        disabled=isinstance(disabled, list) and NAME in disabled,
        has_list=section.get("enabled") is not None,
        asks_for_list=isinstance(version, int) and version >= _LISTED_SINCE,
        isolated=section.get("isolation") == "host",
    )


def plan_enable(home: Path) -> Edit:
    """Return the edit that enables us; raises DeployError when no small edit would do."""
    path, raw = read(home)
    now, text, bom = state(home), _text(path, raw), (raw or b"")[:3] == _BOM
    if now.enabled and not now.disabled:
        return Edit(path, raw, raw)
    made = ""
    try:
        if now.disabled:
            text = yaml_edit.remove(text, "disabled", NAME)
        if not now.enabled:
            text, made = yaml_edit.add(text, "enabled", NAME)
    except NoEdit:
        raise DeployError(
            f"{path}: plugins.enabled cannot be edited without touching the rest (anchors, "
            f"aliases or merges); add {NAME} to plugins.enabled by hand and run this again"
        ) from None
    after = (_BOM if bom else b"") + text.encode("utf-8")
    return Edit(path, raw, after, "file" if raw is None else made, now.disabled)


def plan_disable(home: Path, record: dict[str, Any] | None) -> Edit:
    """Return the edit that takes our entry back; *record* is what :meth:`Edit.record` gave."""
    path, raw = read(home)
    record = record or {"made": "item"}
    if raw is None:
        return Edit(path, None, None)
    if _digest(raw) == record.get("after"):
        before = _inverted(raw, record)
        if before is not None:
            return Edit(path, raw, None if record["made"] == "file" else before)
    if not state(home).enabled or not record["made"]:
        return Edit(path, raw, raw)
    made = {"file": "plugins"}.get(record["made"], record["made"])
    try:
        text = yaml_edit.remove(_text(path, raw), "enabled", NAME, made)
    except NoEdit:
        raise DeployError(
            f"{path}: {NAME} cannot be taken out of plugins.enabled without touching the rest; "
            "take it out by hand and run this again"
        ) from None
    return Edit(path, raw, (_BOM if raw[:3] == _BOM else b"") + text.encode("utf-8"))


def set_value(home: Path, key: str, value: float) -> Path:
    """Put *value* under *key* of our block; return the file's real path; raises DeployError."""
    path, raw = read(home)
    _data(path, raw)
    try:
        text = yaml_value.put(_text(path, raw), [*BLOCK.split("."), key], value)
    except NoEdit:
        raise DeployError(
            f"{path}: {BLOCK} cannot be edited without touching the rest (anchors, aliases or "
            f"merges); write {key}: {value!r} there by hand"
        ) from None
    bom = _BOM if (raw or b"")[:3] == _BOM else b""
    put(path, raw, bom + text.encode("utf-8"))
    return path


def write(edit: Edit) -> None:
    """Carry the edit out in one rename; raises DeployError with the file as it was."""
    put(edit.path, edit.before, edit.after)


def put(path: Path, expected: bytes | None, wanted: bytes | None) -> None:
    """Replace *expected* by *wanted* (None: no file), with mode and owner kept."""
    try:
        current = path.read_bytes() if path.exists() else None
        if current != expected:
            raise DeployError(f"{path}: changed while this ran; run it again")
        if wanted is None:
            path.unlink(missing_ok=True)
        else:
            replace(path, wanted)
    except OSError as error:
        raise DeployError(f"{path}: cannot be written ({error.strerror})") from None


def replace(path: Path, content: bytes) -> None:
    """Write *content* beside *path* and rename it there, keeping mode, owner and attributes."""
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(13, "it is read-only")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.{NAME}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copystat(path, name)
            os.utime(name)
            found = path.stat()
            with contextlib.suppress(OSError, AttributeError):
                os.chown(name, found.st_uid, found.st_gid)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _text(path: Path, raw: bytes | None) -> str:
    try:
        return (raw or b"").removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = (raw or b"")[: error.start].count(b"\n") + 1
        raise DeployError(f"{path}: not UTF-8 at line {line}; nothing was changed") from None


def _data(path: Path, raw: bytes | None) -> dict[Any, Any]:
    try:
        data = yaml_edit.load(_text(path, raw))
    except Unparsable as error:
        raise DeployError(f"{path}: not valid YAML{error}; nothing was changed") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise DeployError(f"{path}: expected a mapping, found {type(data).__name__}")
    section = data.get("plugins")
    if section is not None and not isinstance(section, dict):
        kind = type(section).__name__
        raise DeployError(f"{path}: plugins: expected a mapping, found {kind}")
    listed = (section or {}).get("enabled")
    if listed is not None and not isinstance(listed, list):
        kind = type(listed).__name__
        raise DeployError(f"{path}: plugins.enabled: expected a list of names, found {kind}")
    return data


def _inverted(raw: bytes, record: dict[str, Any]) -> bytes | None:
    at, inserted = int(record["at"]), base64.b64decode(record["inserted"])
    before = raw[:at] + base64.b64decode(record["removed"]) + raw[at + len(inserted) :]
    wanted = record["before"] if record["made"] != "file" else _digest(b"")
    return before if _digest(before) == wanted else None


def _digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
