"""The folder of a run or sweep: one run at a time writes there, through no link, and takes the place of runs alone."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import as_in_a_file, job_table
from written_files import contents, points_of, read_json, write_json

import mpifed as mf
from mpifed.core.errors import UsageError
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.run import folder as run_folder
from mpifed.run.folder import HELD, LOCK, RUN_FILES, RUN_FOLDERS, locked

Launch = Callable[..., Any]
QUIET = ("--progress", "none")


@pytest.fixture
def job(digits: Path, tmp_path: Path, write_job: Callable[..., Path]) -> Callable[..., Path]:
    """job(**changes): writes the job file."""
    base = {"rounds": 1, "model": {"name": "softmax"}, "record": {"evaluate_every": 0, "checkpoint_every": 0}}

    def written(folder: Path = digits, **changes: Any) -> Path:
        return write_job(tmp_path / "job.toml", as_in_a_file(job_table(folder, **base | changes)))

    return written


@pytest.fixture
def out(job: Callable[..., Path], tmp_path: Path, launch: Launch) -> Path:
    """The folder of a run of one round, its job beside it."""
    ended = launch(None, "run", job(), "--out", tmp_path / "a run", *QUIET)
    assert ended.code == 0, ended.text
    return tmp_path / "a run"


# --- one run at a time -----------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from mpifed.run.folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def hold(folder: Path) -> None:
    with locked(folder):
        assert set(contents(folder)) <= {LOCK, HELD}


def test_a_folder_is_free_when_its_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "ENDING_S", 0.2)
    with holding(tmp_path / "run") as other:
        with pytest.raises(UsageError, match=r"run: in use by .*; let it end.*, or choose another --out"):
            hold(tmp_path / "run")
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        hold(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_flock(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Lustre that was mounted without: what a process of another machine has left is removed by hand."""

    def missing(*arguments: Any) -> None:
        raise OSError(number, "no flock")

    monkeypatch.setattr(run_folder, "ENDING_S", 0.2)
    monkeypatch.setattr(fcntl, "flock", missing)
    with locked(tmp_path / "run"), pytest.raises(UsageError):
        hold(tmp_path / "run")
    (held := tmp_path / HELD).write_text("7\nelsewhere\n")
    said = f"in use by process 7 on elsewhere; let it end or, where it was killed, remove {held}, or choose"
    with pytest.raises(UsageError, match=re.escape(said)):
        hold(tmp_path)


@pytest.mark.launch
def test_a_second_run_is_refused_on_all_ranks(
    job: Callable[..., Path], tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, path = tmp_path / "run", job()
    monkeypatch.setattr(run_folder, "ENDING_S", 0.2)
    with holding(out):
        write_json(out / "run.json", {"exit": None})
        (out / "history.csv").write_text("of the other")
        for ranks, words in ((2, ("--resume",)), (None, ())):
            ended = launch(ranks, "run", path, "--out", out, *words)
            assert ended.code == 2 and ended.text.count("in use by another process; ") == 1, ended.text
        assert read_json(out / "run.json") == {"exit": None}
        assert (out / "history.csv").read_text() == "of the other"
    (out / "run.json").unlink()
    ended = launch(None, "run", path, "--out", out, "--resume")
    assert ended.code == 0 and not (out / LOCK).exists(), ended.text


# --- links -----------------------------------------------------------------------------------------------------------

FOLDERS = (*RUN_FOLDERS, "checkpoint/round-00000000", "checkpoint/round-00000009")
WAYS_TO_BEGIN = {"fresh": (), "resume": ("--resume",), "overwrite": ("--overwrite",)}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "resume") for name in (*RUN_FILES, *FOLDERS)),
        *((name, way) for name in ("run.json", "lock", "checkpoint") for way in ("fresh", "overwrite")),
    ],
)
def test_a_link_at_a_name_that_a_run_writes_is_refused(
    name: str, way: str, out: Path, tmp_path: Path, launch: Launch
) -> None:
    assert {"job.toml", "model.safetensors", "ledger.jsonl", "failure.txt", "data.json"} < {*RUN_FILES}
    victim, path = tmp_path / "victim", out / name
    if way == "fresh":
        shutil.rmtree(out)
        out.mkdir()
    path.parent.mkdir(exist_ok=True)
    if name in FOLDERS:
        (victim / "round-00000009").mkdir(parents=True)
    else:
        shutil.copyfile(path if path.exists() else tmp_path / "job.toml", victim)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(victim)
    before = contents(tmp_path)
    again = ("run", tmp_path / "job.toml", "--out", out, "--set", "rounds=2", *WAYS_TO_BEGIN[way])
    ended = launch(None, *again)
    assert ended.code == 2 and f"{path}: is a link" in ended.err and contents(tmp_path) == before, ended.text
    path.unlink()
    if name in ("tensorboard", "model.safetensors"):  # the run is as good as it was
        ended = launch(None, *again)
        assert ended.code == 0 and read_json(out / "run.json")["rounds"] == 2, ended.text


@pytest.mark.parametrize("name", ["sweep.csv", "point"])
def test_so_it_is_in_the_folder_of_a_sweep(
    name: str, job: Callable[..., Path], tmp_path: Path, launch: Launch, digits: Path
) -> None:
    (folder := tmp_path / "sweep").mkdir()
    path = job(sweep={"seeds": 2})
    link = points(read_table(path), "job")[1].name if name == "point" else name
    (folder / link).symlink_to(tmp_path / "victim")
    before = contents(tmp_path)
    ended = launch(None, "run", path, "--out", folder)
    assert ended.code == 2 and f"{link}: is a link" in ended.err, ended.text
    if name == "sweep.csv":
        with pytest.raises(mf.UsageError, match=f"{link}: is a link"):
            mf.sweep({"a": mf.SSCA(batch_size=4)}, digits, mf.Softmax(), rounds=1, out=folder)
    assert contents(tmp_path) == before


def test_an_audit_writes_through_none_and_nothing_is_read(out: Path, tmp_path: Path, launch: Launch) -> None:
    (victim := tmp_path / "victim").mkdir()
    (out / "audit").symlink_to(victim)
    ended = launch(None, "audit", out)
    assert ended.code == 2 and f"{out / 'audit'}: is a link" in ended.err and not contents(victim), ended.text
    (out / "audit").unlink()
    assert launch(None, "audit", out).code == 71
    assert {"report.json", "report.txt", "RAW-DATA.txt"} <= contents(out / "audit").keys() and not contents(victim)
    (out / "data.json").rename(victim / "data.json")
    (out / "data.json").symlink_to(victim / "data.json")
    with pytest.raises(mf.DataError, match=r"data\.json: is a link"):
        mf.load(out).predict(np.zeros((1, 64), "f4"))


# --- a run takes the place of another, and of nothing else -----------------------------------------------------------


def overwrite(folder: Path, launch: Launch) -> Any:
    """How a run ends that is to take the place of what is in a folder; its job lies beside the folder."""
    return launch(None, "run", folder.parent / "job.toml", "--out", folder, "--overwrite", *QUIET)


def test_a_run_takes_the_place_of_another(job: Callable[..., Path], out: Path, launch: Launch) -> None:
    """With what a process has left that was killed while it removed a run; what is not of runs stays beside it."""
    path = job(rounds=2)
    left, mine = (out.parent / f".a run.overwritten-{name}" for name in ("left", "mine"))
    shutil.copytree(out, left)
    mine.mkdir()
    (mine / "mine").write_text("mine")
    (out / "checkpoint" / "other").mkdir(parents=True)
    (half := out / f".model.safetensors.{'0a' * 8}.new").write_text("of a run that was killed")
    refused = launch(None, "run", path, "--out", out)
    assert refused.code == 2 and "or replace it with --overwrite" in refused.err
    ended = overwrite(out, launch)
    assert ended.code == 0 and read_json(out / "run.json")["rounds"] == 2, ended.text
    assert not (out / "checkpoint" / "other").exists() and not half.exists() and not left.exists()
    assert contents(mine) == {"mine": b"mine"}
    both = launch(None, "run", path, "--out", out, "--overwrite", "--resume")
    assert both.code == 2 and "--resume with --overwrite" in both.err


BROKEN = {"no data": 3, "damaged data": 3, "other data": 2}


@pytest.mark.launch
@pytest.mark.parametrize(
    ("how", "before", "ranks"),
    [("other data", "finished", None), ("no data", "interrupted", None), ("damaged data", "a sweep", None),
     ("damaged data", "finished", 2)],
)  # fmt: skip
def test_the_old_run_stands_where_the_new_one_fails(
    how: str, before: str, ranks: int | None, job: Callable[..., Path], digits: Path, tmp_path: Path, launch: Launch
) -> None:
    """As it was, to the last byte, whatever it was, and for any command that reads it."""
    sweep = {"sweep": {"seeds": 2}} if before == "a sweep" else {}
    words = ("--max-hours", 0) if before == "interrupted" else ()
    ended = launch(None, "run", job(**sweep), "--out", tmp_path / "out", *QUIET, *words)
    assert ended.code == (75 if words else 0), ended.text
    files, data = contents(tmp_path / "out"), {"no data": tmp_path / "none", "other data": digits}.get(how)
    if data is None:
        data = shutil.copytree(digits, tmp_path / "damaged")
        (data / "federation.h5").write_bytes((data / "federation.h5").read_bytes()[:500])
    model, more = mf.LeastSquares() if how == "other data" else mf.Softmax(), ("--out", tmp_path / "out", "--overwrite")
    failing = job(data, **sweep, **({"model": {"name": "least-squares"}} if how == "other data" else {}))
    ended = launch(ranks, "run", failing, *more)
    assert ended.code == BROKEN[how] and ended.err.count("mpifed: error") <= 2, ended.text
    assert contents(tmp_path / "out") == files
    with pytest.raises(mf.MpifedError):
        method, how_ = mf.SSCA(batch_size=4), {"rounds": 1, "out": tmp_path / "out", "overwrite": True}
        mf.sweep({"a": method}, data, model, **how_) if sweep else mf.run(method, data, model, **how_)
    assert contents(tmp_path / "out") == files
    ended = launch(ranks, "run", job(rounds=2), *more)
    assert ended.code == 0 and read_json(tmp_path / "out" / "run.json")["rounds"] == 2, ended.text


def test_a_sweep_takes_the_place_of_another(job: Callable[..., Path], tmp_path: Path, launch: Launch) -> None:
    out = ("--out", tmp_path / "s")
    for seeds in (2, 1):
        ended = launch(None, "run", job(sweep={"seeds": seeds}), *out, "--overwrite", *QUIET)
        assert ended.code == 0, ended.text
    (run,) = (path / "run.json" for path in (tmp_path / "s").iterdir() if path.is_dir())
    before, one = run.stat().st_mtime_ns, ("run", tmp_path / "job.toml", *out, "--point", "0", *QUIET)
    refused = launch(None, *one)
    assert refused.code == 2 and "--overwrite" in refused.err
    assert launch(None, *one, "--overwrite").code == 0 and run.stat().st_mtime_ns > before


OTHERS: list[tuple[bool, dict[str, str]]] = [  # beside a run, or alone
    *((True, {name: "mine"}) for name in ("thesis.tex", ".git/mine", "figure.png", "point-0000/mine", "job.toml.orig")),
    (False, {"job.toml": 'tool = "another"'}), (False, {"job.toml": "[[[", "run.json": "{}"}),
    (False, {"sweep.csv": "a,b\n1,2\n"}), (False, {"history.csv": "date,price\n"}),
    (False, {"checkpoint/mine": "years of it"}),
]  # fmt: skip


@pytest.mark.parametrize(("beside", "files"), OTHERS)
def test_what_is_not_of_a_run_is_kept(beside: bool, files: dict[str, str], out: Path, launch: Launch) -> None:
    folder = out if beside else out.parent / "alone"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = contents(folder)
    ended = overwrite(folder, launch)
    assert ended.code == 2 and re.search("something else than a run.*--overwrite removes runs alone", ended.err)
    assert contents(folder) == before


def test_no_link_none_that_goes_on_and_not_where_one_is(
    out: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for to in ("a run", "nowhere"):
        (link := out.parent / f"link to {to}").symlink_to(to)
        ended = overwrite(link, launch)
        assert ended.code == 2 and "is no folder of a run" in ended.err
    monkeypatch.setattr(run_folder, "ENDING_S", 0.0)
    with locked(out):
        before = contents(out)
        ended = overwrite(out, launch)
        assert ended.code == 2 and "in use by another process" in ended.err and contents(out) == before
    monkeypatch.chdir(out)
    for folder in (Path(), Path("../a run")):
        ended = launch(None, "run", out.parent / "job.toml", "--out", folder, "--overwrite")
        assert ended.code == 2 and "in which you are" in ended.err


@pytest.mark.parametrize("options", [("--overwrite",), ("--resume", "--point", "1")])
def test_neither_run_nor_sweep_in_the_place_of_the_other(
    options: tuple[str, ...], digits: Path, job: Callable[..., Path], out: Path, tmp_path: Path, launch: Launch
) -> None:
    """Nor a sweep in the folder of a point, begun or not; the command that goes on with the sweep is said."""
    sweep, method, more = tmp_path / "sweep", mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1)), {"rounds": 1}
    assert launch(None, "run", job(sweep={"seeds": 2}), "--out", sweep, "--max-hours", 0).code == 75
    before = contents(tmp_path)
    for point in points_of(sweep):
        ended = launch(None, "run", tmp_path / "job.toml", "--out", point, *options)
        assert ended.code == 2 and contents(tmp_path) == before, ended.text
        assert f"{point}: is a point of a sweep; go on with --resume --out {sweep}\n" in ended.err
    with pytest.raises(mf.UsageError, match=rf"is a point of a sweep; go on with resume=True, out='{sweep}'$"):
        mf.sweep({"a": method}, digits, mf.Softmax(), **more, out=point, **{options[0][2:]: True})
    if options == ("--overwrite",):
        options = ()
    ended = launch(None, "run", tmp_path / "job.toml", "--out", out, *options)
    assert ended.code == 2 and "run: holds a run, and a sweep needs a folder of its own" in ended.err, ended.text
    ended = launch(None, "run", job(), "--out", sweep, *options[:1])
    assert ended.code == 2 and "sweep: holds a sweep; choose another --out" in ended.err, ended.text
    for again in (False, True):
        with pytest.raises(mf.UsageError, match=r"run: holds a run, .*; choose another out"):
            mf.sweep({"a": method}, str(digits), mf.Softmax(), **more, out=out, resume=again)
        with pytest.raises(mf.UsageError, match=r"sweep: holds a sweep; choose another out"):
            mf.run(method, str(digits), mf.Softmax(), **more, out=sweep, resume=again)
