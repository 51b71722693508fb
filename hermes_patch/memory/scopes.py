"""Scopes: ``global`` notes are seen everywhere, those of a project inside it only."""

from __future__ import annotations

import hashlib
from pathlib import Path

GLOBAL = "global"
PREFIX = "project:"


def project_of(folder: str | Path | None) -> str | None:
    """Return the scope of the git repository around *folder*, None outside of any.

    The id is the name of the root and a fingerprint of its real path, so that two projects
    of the same name stay apart. A worktree is a project of its own.
    """
    if not folder:
        return None
    try:
        place = Path(folder).expanduser().resolve()
        root = next((one for one in (place, *place.parents) if (one / ".git").exists()), None)
    except (OSError, RuntimeError, ValueError):
        return None
    if root is None:
        return None
    mark = hashlib.sha256(str(root).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{PREFIX}{root.name.encode('utf-8', 'replace').decode()}-{mark}"


def is_scope(text: str) -> bool:
    """Tell whether *text* names a scope."""
    return text == GLOBAL or (text.startswith(PREFIX) and len(text) > len(PREFIX))


def visible(project: str | None) -> list[str]:
    """Return the scopes that are seen from *project*: its own first, then the global one."""
    return [GLOBAL] if project is None else [project, GLOBAL]
