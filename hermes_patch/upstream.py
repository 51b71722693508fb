"""What is asked of Hermes's own code beside its database: the home, and its redactor."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path


def home() -> Path:
    """Return the home of the current profile, which a thread or task may have of its own."""
    return Path(importlib.import_module("hermes_constants").get_hermes_home())


def redact(text: str) -> str:
    """Return *text* without what Hermes's own redactor calls a secret; *text* without one."""
    try:
        redactor = importlib.import_module("agent.redact").redact_sensitive_text
    except (ImportError, AttributeError):
        return text
    known = inspect.signature(redactor).parameters
    wanted = {"force": True, "redact_url_credentials": True}
    return str(redactor(text, **{name: on for name, on in wanted.items() if name in known}))
