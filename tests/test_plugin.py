"""Hermes's door: every release loads the plugin folder, and no failure of ours reaches it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_patch import deploy
from hermes_patch.deploy import shim
from targets import Installed

SERVER = """\
agents:
  defaults:
    memorySearch: {provider: openai, model: m, remote: {baseUrl: "http://127.0.0.1:9/v1"}}
"""
# Loads plugins as Hermes does at its start, then as it does when told to look again.
LOADED = """
import inspect, json, sys
from hermes_cli import plugins
plugins.discover_plugins()
if "force" in inspect.signature(plugins.discover_plugins).parameters:
    plugins.discover_plugins(force=True)
found = [p for p in plugins.get_plugin_manager().list_plugins() if p["name"] == "hermes_patch"]
package = sys.modules.get("hermes_patch")
print(json.dumps({
    "plugins": [[p["enabled"], p["error"]] for p in found],
    "active": package is not None and package.status()["active"],
    "file": getattr(package, "__file__", None),
    "path": [folder for folder in sys.path if "hermes_patch" in folder],
}))
"""
# Loads a shim the way all releases do, without any site-packages.
SHIMMED = """
import importlib.util, json, logging, sys
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
file = sys.argv[1] + "/__init__.py"
def load():
    name = "hermes_plugins.hermes_patch"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[sys.argv[1]])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    module.register(object())
before = list(sys.path)
load()
first = sys.modules.get("hermes_patch")
load()
print(json.dumps({
    "same": first is sys.modules.get("hermes_patch"), "loaded": first is not None,
    "calls": getattr(first, "calls", 0), "path": sys.path == before,
}))
"""


def applied(home: Path, hermes: Installed) -> Path:
    (home / "config.yaml").write_text(SERVER)
    deploy.apply(home, hermes_python=hermes.python)
    return home / "plugins" / "hermes_patch"


def test_hermes_loads_the_folder_and_is_patched(hermes: Installed, home: Path) -> None:
    folder = applied(home, hermes)
    assert hermes.run_json(LOADED, home=home) == {
        "plugins": [[True, None]],
        "active": True,
        "file": str(folder / "hermes_patch" / "__init__.py"),
        "path": [],
    }


def test_after_revert_hermes_knows_nothing_of_us(hermes: Installed, home: Path) -> None:
    applied(home, hermes)
    deploy.revert(home)
    found = hermes.run_json(LOADED, home=home)
    assert (found["plugins"], found["file"]) == ([], None)


def test_a_broken_package_does_not_reach_hermes(hermes: Installed, home: Path) -> None:
    folder = applied(home, hermes)
    (folder / "hermes_patch" / "host.py").write_text("raise RuntimeError('private words')\n")
    done = hermes.run(LOADED, home=home)
    assert json.loads(done.stdout.strip().splitlines()[-1])["plugins"] == [[True, None]]
    assert "private words" not in done.stderr + done.stdout


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A plugin folder with our shim and a package that counts how often it is called."""
    root = tmp_path / "plugins" / "hermes_patch"
    (root / "hermes_patch").mkdir(parents=True)
    shutil.copy(str(shim.__file__), root / "__init__.py")
    (root / "hermes_patch" / "__init__.py").write_text("calls = 0\n")
    write(root, "import hermes_patch\ndef register(ctx):\n    hermes_patch.calls += 1\n")
    return root


def write(root: Path, text: str) -> None:
    (root / "hermes_patch" / "plugin.py").write_text(text)


def load(root: Path) -> tuple[dict[str, Any], str]:
    """Return what SHIMMED prints and what is logged."""
    line = [sys.executable, "-I", "-S", "-B", "-c", SHIMMED, str(root)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), done.stderr


def test_the_package_is_loaded_once_however_often_it_is_registered(plugin: Path) -> None:
    found, _ = load(plugin)
    assert (found["same"], found["calls"]) == (True, 2)


def test_the_search_path_of_hermes_stays_as_it_is(plugin: Path) -> None:
    assert load(plugin)[0]["path"] is True


def test_a_failure_is_one_line_without_its_text(plugin: Path) -> None:
    write(plugin, "def register(ctx):\n    raise ValueError('private words')\n")
    _, logged = load(plugin)
    assert set(logged.splitlines()) == {"hermes_patch WARNING semantic recall is off (ValueError)"}


def test_an_error_of_ours_is_logged_with_its_text(plugin: Path) -> None:
    (plugin / "hermes_patch" / "errors.py").write_text("class ConfigError(Exception): ...\n")
    write(
        plugin,
        "from hermes_patch.errors import ConfigError\n"
        "def register(ctx):\n    raise ConfigError('model: name one')\n",
    )
    _, logged = load(plugin)
    assert "(ConfigError: model: name one)" in logged


def test_a_package_that_fails_to_import_is_not_left_half_loaded(plugin: Path) -> None:
    (plugin / "hermes_patch" / "__init__.py").write_text("raise ImportError\n")
    assert load(plugin)[0]["loaded"] is False


def test_a_missing_package_does_not_reach_hermes(plugin: Path) -> None:
    shutil.rmtree(plugin / "hermes_patch")
    _, logged = load(plugin)
    assert "semantic recall is off" in logged
    assert "Traceback" not in logged
