"""Where Hermes is: its Python, what that Python can load, and what its sources say.

Nothing of Hermes is imported. A candidate Python is asked in a subprocess whether it would
find ``hermes_state``; the sources beside that module are read as text.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DeployError

_PROBE = """
import importlib.util, json, platform, struct, sys, sysconfig
spec = importlib.util.find_spec("hermes_state")
print("\\n" + json.dumps({
    "state": spec is not None, "origin": spec.origin if spec else None,
    "target": {
        "python": "%d.%d" % sys.version_info[:2], "implementation": sys.implementation.name,
        "platform": sys.platform, "machine": platform.machine(),
        "bits": 8 * struct.calcsize("P"), "libc": platform.libc_ver()[0],
        "suffix": sysconfig.get_config_var("EXT_SUFFIX") or "",
    },
}))
"""
_LOAD = """
import sqlite3, sys
conn = sqlite3.connect(":memory:")
conn.enable_load_extension(True)
conn.load_extension(sys.argv[1])
"""
_PROBE_SECONDS = 30
APPLIED = Path("plugins") / "hermes_patch" / "applied.json"
_EXEC = re.compile(r"""exec'?\s+(?:"([^"`]+)"|'([^']+)'|([/$~][^\s"'`]+))""")
_SCHEMA = re.compile(r"^SCHEMA_VERSION\b[^=\n]*=\s*(\d+)", re.MULTILINE)
_FUNCTION = re.compile(r"^(?=def |async def |class )", re.MULTILINE)
_METHODS = re.compile(r"^\s+def (?:store_embedding|search_by_vector)\b", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """What decides which compiled packages a Python can load."""

    python: str
    implementation: str
    platform: str
    machine: str
    bits: int
    libc: str
    suffix: str

    def same_machine(self, other: Target) -> bool:
        """True when libraries that no Python loads itself (tag py3-none) serve both."""
        mine = (self.platform, self.machine.lower(), self.bits, self.libc)
        return mine == (other.platform, other.machine.lower(), other.bits, other.libc)

    def same_python(self, other: Target) -> bool:
        """True when extension modules serve both as well."""
        mine = (self.implementation, self.python, self.suffix)
        theirs = (other.implementation, other.python, other.suffix)
        return bool(self.suffix) and self.same_machine(other) and mine == theirs


@dataclass(frozen=True)
class Found:
    """A Python that has Hermes; ``source_dir`` holds hermes_state.py, ``how`` says whence."""

    python: Path
    source_dir: Path | None
    how: str
    target: Target


def find_hermes_python(home: Path, explicit: Path | None = None) -> Found:
    """Return the Python that runs Hermes.

    Raises:
        DeployError: none was found, or *explicit* has no Hermes; the text says where we looked.
    """
    tried: dict[str, str] = {}
    for python, how in _candidates(home, explicit):
        python = Path(os.path.abspath(python.expanduser()))
        if str(python) in tried:
            continue
        answer = _ask(python, home)
        if isinstance(answer, str):
            tried[str(python)] = answer
        elif not answer[0]:
            tried[str(python)] = "has no hermes_state"
        else:
            source = Path(answer[1]).parent if answer[1] else None
            return Found(python, source, how, answer[2])
    if explicit is not None:
        raise DeployError(
            f"--hermes-python {explicit}: {next(iter(tried.values()))}; "
            "name the Python that runs Hermes, such as ~/.hermes/hermes-agent/venv/bin/python"
        )
    looked = "; ".join(f"{python} ({reason})" for python, reason in tried.items()) or "no other"
    raise DeployError(
        f"Hermes was not found. Looked at this Python, `hermes` on PATH, {home}/hermes-agent and "
        f"~/.hermes/hermes-agent; tried {looked}. "
        "Pass --hermes-python with the Python that runs Hermes."
    )


def running() -> Target:
    """Return the target of the interpreter that runs us."""
    answer = _ask(Path(sys.executable), Path.cwd())
    if isinstance(answer, str):
        raise DeployError(f"{sys.executable}: {answer}")
    return answer[2]


def _candidates(home: Path, explicit: Path | None) -> Iterator[tuple[Path, str]]:
    if explicit is not None:
        yield explicit, "--hermes-python"
        return
    recorded = _recorded(home)
    if recorded is not None:
        yield recorded, "the last apply"
    if importlib.util.find_spec("hermes_state") is not None:
        yield Path(sys.executable), "the running Python"
    script = shutil.which("hermes")
    if script:
        for python in _pythons_of(Path(script), depth=4):
            yield python, f"`hermes` on PATH ({script})"
    roots = [home, Path(os.path.expanduser("~/.hermes"))]
    if home.parent.name == "profiles":
        roots.insert(1, home.parent.parent)
    for root in roots:
        for venv in ("venv", ".venv"):
            for name in ("bin/python", "Scripts/python.exe"):
                path = root / "hermes-agent" / venv / name
                if path.exists():
                    yield path, f"{root}/hermes-agent"


def _recorded(home: Path) -> Path | None:
    """Return the Python of the last apply, where it still is."""
    try:
        record = json.loads((home / APPLIED).read_text(encoding="utf-8"))
        python = Path(record["hermes"]["python"])
        return python if python.is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def loads_extension(python: Path, library: str) -> bool:
    """Tell whether *python* can load a SQLite extension from a file."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _LOAD, library],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _pythons_of(script: Path, depth: int) -> Iterator[Path]:
    """Yield what may run *script*: its ``#!`` line, what it ``exec``s, the Python beside it."""
    real = Path(os.path.realpath(script))
    try:
        with real.open("rb") as file:
            text = file.read(8192).decode("utf-8", "replace")
    except OSError:
        return
    if text.startswith("#!"):
        for word in text.partition("\n")[0][2:].split():
            if Path(word).name.startswith("python"):
                found = word if "/" in word else shutil.which(word)
                if found:
                    yield Path(found)
        for groups in _EXEC.findall(text):
            called = Path(os.path.expanduser(os.path.expandvars("".join(groups))))
            if called.name.startswith("python"):
                yield called
            elif depth > 0 and called.is_file() and called != real:
                yield from _pythons_of(called, depth - 1)
    for folder in dict.fromkeys((real.parent, script.parent)):
        for name in ("python", "python3", "python.exe"):
            if (folder / name).is_file():
                yield folder / name


def _ask(python: Path, home: Path) -> tuple[bool, str | None, Target] | str:
    """Return (has Hermes, origin of hermes_state, target), or why there is no answer."""
    if not python.is_file():
        return "is no file"
    hidden = ("PYTHONHOME", "__PYVENV_LAUNCHER__")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"HERMES_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}
    try:
        done = subprocess.run(
            [str(python), "-P", "-c", _PROBE],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
        return bool(answer["state"]), answer["origin"], Target(**answer["target"])
    except subprocess.TimeoutExpired:
        return f"gave no answer in {_PROBE_SECONDS} s"
    except OSError as error:
        return f"cannot be run ({error.strerror})"
    except (ValueError, KeyError, TypeError):
        return "is no Python 3.11 or later"


def _sources(source_dir: Path | None, pattern: str) -> str:
    """Return the text of all sources that match, "" when there are none."""
    if source_dir is None:
        return ""
    texts = []
    for path in sorted(source_dir.glob(pattern)):
        try:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def takeover(source_dir: Path | None) -> str | None:
    """Return a sentence when this Hermes was edited by hand after the guide, else None."""
    methods = _METHODS.search(_sources(source_dir, "hermes_state*.py")) is not None
    tool = "_vector_recall" in _sources(source_dir, "tools/session_search_tool.py")
    if not methods and not tool:
        return None
    parts = [
        *(["SessionDB has vector methods"] if methods else []),
        *(["session_search calls _vector_recall"] if tool else []),
    ]
    return (
        f"This Hermes was edited by hand ({' and '.join(parts)}): its methods and its table are "
        "taken over, and only one recall runs. The edits themselves were left as they are."
    )


def host_schema_version(source_dir: Path | None) -> int | None:
    """Return Hermes's own SCHEMA_VERSION, or None when its sources do not say."""
    found = _SCHEMA.search(_sources(source_dir, "hermes_state*.py"))
    return int(found.group(1)) if found else None


def has_allow_list(source_dir: Path | None) -> bool:
    """False for a Hermes that loads every folder in plugins/ without being asked."""
    text = _sources(source_dir, "hermes_cli/plugins*.py")
    return not text or "plugins.enabled" in text or "_get_enabled_plugins" in text


def without_plugins(source_dir: Path | None) -> list[str]:
    """Return the processes of this Hermes that run without plugins, and so without us."""
    text = _sources(source_dir, "hermes_cli/main*.py")
    found = []
    if text and _sources(source_dir, "hermes_cli/web_server.py"):
        functions = [part for part in _FUNCTION.split(text) if not part.startswith("def main(")]
        loads = ("discover_plugins(" in part and "dashboard" in part for part in functions)
        found += [] if any(loads) else ["dashboard"]
    return found
