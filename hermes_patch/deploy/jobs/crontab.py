"""One marked line in the user's crontab; every other byte of it stays as it is."""

from __future__ import annotations

import shlex
import shutil
import subprocess

from ...errors import DeployError

SECONDS = 30


def is_usable() -> bool:
    """Tell whether there is a ``crontab`` to call."""
    return shutil.which("crontab") is not None


def read() -> bytes:
    """Return the user's crontab, b"" where there is none; raises DeployError."""
    done = _crontab("-l")
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode("utf-8", "replace").strip()
    if "no crontab" in said.lower() or not said:
        return b""
    raise DeployError(f"crontab -l: {said.splitlines()[0]}")


def line(command: list[str], every: str, job: str) -> bytes:
    """Return the line that runs *command*; *job* marks it.

    Raises:
        DeployError: a path has a line break in it, which no crontab can hold.
    """
    shell = " ".join(map(shlex.quote, command))
    if "\n" in shell or "\r" in shell:
        raise DeployError(f"{shell!r}: a path with a line break cannot stand in a crontab")
    number, unit, minute = int(every[:-1]), every[-1], int(job[-8:], 16) % 60
    hours = {"m": "*", "h": "*" if number == 1 else f"*/{number}", "d": "4"}[unit]
    when = f"*/{number}" if unit == "m" else str(minute)
    escaped = shell.replace("%", "\\%")  # a % would end the command there
    return f"{when} {hours} * * * {escaped} # {job}\n".encode("utf-8", "surrogateescape")


def find(job: str) -> bytes | None:
    """Return our line in the crontab, None where there is none."""
    if not is_usable():
        return None
    return next((one for one in _lines(read()) if _is_ours(one, job)), None)


def put(new: bytes, job: str) -> None:
    """Have *new* as the only line of *job* in the crontab."""
    before = read()
    rest = _without(before, job)
    if rest and not rest.endswith(b"\n"):
        rest += b"\n"
    _write(rest + new)


def remove(job: str) -> bool:
    """Take our line out; False where there was none."""
    if find(job) is None:
        return False
    rest = _without(read(), job)
    if rest:
        _write(rest)
    else:
        _checked(_crontab("-r"))
    return True


def _lines(content: bytes) -> list[bytes]:
    return content.split(b"\n")


def _is_ours(one: bytes, job: str) -> bool:
    return one.endswith(f" # {job}".encode()) and not one.lstrip().startswith(b"#")


def _without(content: bytes, job: str) -> bytes:
    return b"\n".join(one for one in _lines(content) if not _is_ours(one, job))


def _write(content: bytes) -> None:
    _checked(_crontab("-", content))


def _checked(done: subprocess.CompletedProcess[bytes]) -> None:
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise DeployError(f"crontab: {said.splitlines()[0]}; it was left as it is")


def _crontab(option: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["crontab", option], input=content, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"crontab cannot be run ({type(error).__name__})") from None
