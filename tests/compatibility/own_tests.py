"""Hermes's own tests with the patch on and off, on trees of its history.

    python tests/compatibility/own_tests.py GIT_DIR [--tree NAME=COMMIT …] [--json FILE]

GIT_DIR is a clone of Hermes, or of a fork that carries its history. Of each tree the tests of
the session database, the session search and the plugins run unpatched, then patched while the
embedding server is fine, refuses, hangs and answers garbage. A difference is printed by name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stub_server import StubServer
from targets import cache_folder

ROOT = Path(__file__).resolve().parents[2]
TREES = {
    "0.10.0, schema 6": "1dd6b5d5f",
    "0.13.0, schema 11": "498bfc7bc",
    "0.19.0, schema 22": "3ef6bbd20",
    "0.20.3, schema 26": "7339f5f16",
}
TESTS = (
    "tests/test_hermes_state.py",
    "tests/hermes_state",
    "tests/tools/test_session_search.py",
    "tests/hermes_cli/test_plugins.py",
    "tests/hermes_cli/test_plugin_cli_registration.py",
    "tests/hermes_cli/test_web_server_session_search.py",
)
MODES = ("unpatched", "fine", "refusing", "hanging", "garbage")
_PACKAGES = (
    "pyyaml", "openai>=2.21,<3", "fire", "python-dotenv", "requests", "rich", "prompt_toolkit",
    "jinja2", "tenacity", "psutil", "ruamel.yaml", "fastapi", "uvicorn", "python-multipart",
    "pytest>=9.0.2,<10", "pytest-asyncio>=1.3,<2", "pytest-xdist>=3,<4", "pytest-timeout",
    "sqlite-vec==0.1.9", "httpx", "pydantic",
)  # fmt: skip


def environment() -> Path:
    """Return the Python with everything those tests import, made once."""
    folder = cache_folder() / "own-tests"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *_PACKAGES], check=True)
        (folder / "complete").touch()
    pip = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--force-reinstall", str(ROOT)], check=True)
    return python


def check_out(git_dir: Path, commit: str, folder: Path) -> None:
    """Put the files of *commit* into *folder*."""
    git = ["git", "--git-dir", str(git_dir)]
    index = {**os.environ, "GIT_INDEX_FILE": str(folder.parent / f"{folder.name}.index")}
    folder.mkdir()
    work = [*git, "--work-tree", str(folder)]
    subprocess.run([*work, "read-tree", commit], check=True, env=index)
    subprocess.run([*work, "checkout-index", "-a", "-q"], check=False, env=index)


@contextmanager
def server(mode: str) -> Iterator[str]:
    """Yield the address of a server that is as *mode* says."""
    if mode == "refusing":
        yield "http://127.0.0.1:9/v1"
        return
    with StubServer() as running:
        running.mode = {"hanging": "hang"}.get(mode, mode)
        yield running.url


def run(python: Path, tree: Path, mode: str) -> tuple[dict[str, str], dict[str, int]]:
    """Run the tests of *tree*; return the outcome of each by name, and what the patch did."""
    found = [name for name in TESTS if (tree / name).exists()]
    report = tree.parent / f"{tree.name}-{mode}.xml"
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        f"--junitxml={report}",
        "--timeout=120",
    ]
    home = tree.parent / f"{tree.name}-{mode}-home"
    (home / "hermes").mkdir(parents=True)
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "HERMES_", "PYTHON"))
    }
    env = {**kept, "HOME": str(home), "HERMES_HOME": str(home / "hermes")}
    if mode == "unpatched":
        subprocess.run([*command, *found], cwd=tree, env=env, capture_output=True)
        return outcomes(report), {}
    with server(mode) as url:
        block = {"provider": "openai", "model": "stub", "remote": {"baseUrl": url}}
        env |= {"HERMES_PATCH_TEST_SETTINGS": json.dumps(block | {"queryBudget": 0.5})}
        counts = tree.parent / f"{mode}.counts"
        env |= {"PYTHONPATH": str(Path(__file__).parent), "HERMES_PATCH_TEST_COUNTS": str(counts)}
        done = subprocess.run(
            [*command, "-p", "patched_run", *found], cwd=tree, env=env, capture_output=True
        )
    assert report.exists() and counts.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    did = Counter[str]()
    for line in counts.read_text("utf-8").splitlines():
        did.update(json.loads(line))
    return outcomes(report), dict(did)


def outcomes(report: Path) -> dict[str, str]:
    """Read a JUnit report."""
    result = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        result[f"{case.get('classname')}::{case.get('name')}"] = bad[0] if bad else "passed"
    return result


def compare(git_dir: Path, name: str, commit: str, python: Path) -> dict[str, Any]:
    """Return the counts of every mode on one tree, and the tests that differ."""
    with tempfile.TemporaryDirectory(prefix="own-tests-") as work:
        tree = Path(work) / "tree"
        check_out(git_dir, commit, tree)
        found, did = dict[str, dict[str, str]](), dict[str, dict[str, int]]()
        for mode in MODES:
            started = time.monotonic()
            found[mode], did[mode] = run(python, tree, mode)
            counts = dict(Counter(found[mode].values()))
            print(
                f"{name}: {mode}: {counts} {did[mode]}, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
            )
    plain = found.pop("unpatched")
    differs = {
        mode: sorted(t for t in {*plain, *told} if plain.get(t) != told.get(t))
        for mode, told in found.items()
    }
    return {
        "tree": name,
        "commit": commit,
        "did": did,
        "counts": {m: dict(Counter(o.values())) for m, o in {"unpatched": plain, **found}.items()},
        "differs": differs,
    }


def all_trees(git_dir: Path, trees: Mapping[str, str] = TREES) -> list[dict[str, Any]]:
    """Return what :func:`compare` does of every tree."""
    python = environment()
    return [compare(git_dir, name, commit, python) for name, commit in trees.items()]


def main() -> int:
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    top.add_argument("git_dir", type=Path)
    top.add_argument("--tree", action="append", metavar="NAME=COMMIT")
    top.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    args = top.parse_args()
    trees = dict(one.split("=", 1) for one in args.tree) if args.tree else TREES
    result = all_trees(args.git_dir, trees)
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2), encoding="utf-8")
    return int(any(tests for one in result for tests in one["differs"].values()))


if __name__ == "__main__":
    sys.exit(main())
