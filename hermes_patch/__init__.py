"""Semantic recall for Hermes Agent.

``install()`` patches the Hermes of this process, ``uninstall()`` takes all of it back,
``status()`` tells what is in place. Importing this package imports neither httpx nor numpy
nor sqlite-vec, and touches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .host import Host

__all__ = ["__version__", "install", "status", "uninstall"]

_host: Host | None = None


def install() -> dict[str, Any]:
    """Patch the running Hermes, once, and return status().

    Raises:
        HermesPatchError: the configuration is wrong or this is no Hermes.
        ImportError: ``hermes_state`` cannot be imported.
    """
    global _host
    if _host is None:
        from .host import Host

        _host = Host()
    _host.install()
    return status()


def uninstall() -> dict[str, Any]:
    """Put every patched attribute back and stop our threads; returns status()."""
    if _host is not None:
        _host.uninstall()
    return status()


def note(seam: str, error: Exception) -> None:
    """Record that *seam* failed, one line in the log and one in ``hermes-patch status``."""
    if _host is not None:
        _host.guard.note(seam, error)


def patched_by() -> Host | None:
    """Return what has patched this process, None where nothing has."""
    return _host if _host is not None and _host.patches.active else None


def status() -> dict[str, Any]:
    """Return what is in place in this process.

    ``active``, ``capabilities``, ``refusals`` (capability: reason), ``buried`` (what stayed
    under foreign patches after ``uninstall``, and only passes through), ``failures``.
    """
    if _host is None:
        return {"active": False, "capabilities": [], "refusals": {}, "buried": [], "failures": []}
    return {
        "active": _host.patches.active,
        "capabilities": [*_host.patches.capabilities(), *_host.dashboard.capabilities()],
        "refusals": {r.capability: r.reason for r in _host.refusals},
        "buried": list(_host.buried),
        "takeover": _host.takeover,
        "failures": [vars(failure) for failure in _host.guard.failures()],
    }
