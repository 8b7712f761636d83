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
from jobs_in_python import job_table
from written_files import contents, points_of, read_json, write_json

import mpifed as mf
from mpifed.core.errors import UsageError
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.run import folder as run_folder
from mpifed.run.folder import HELD, LOCK, RUN_FILES, RUN_FOLDERS, locked

Run = Callable[..., Any]
METHOD = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1))


@pytest.fixture
def job(digits: Path, tmp_path: Path, write_job: Callable[..., Path]) -> Callable[..., Path]:
    """job(**changes): writes the job file."""
    base = {"rounds": 1, "model": {"name": "softmax"}, "record": {"evaluate_every": 0, "checkpoint_every": 0}}
    return lambda folder=digits, **more: write_job(tmp_path / "job.toml", job_table(folder, **base | more))


@pytest.fixture
def run(tmp_path: Path, launch: Callable[..., Any]) -> Run:
    """run(out, *options): how `mpifed run` of that job file ends."""
    words = ("run", tmp_path / "job.toml", "--progress", "none", "--out")
    return lambda out, *options, ranks=None: launch(ranks, *words, out, *options)


@pytest.fixture
def out(job: Callable[..., Path], tmp_path: Path, run: Run) -> Path:
    """The folder of a run of one round, its job beside it."""
    job()
    ended = run(tmp_path / "a run")
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


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends is not waited for."""
    monkeypatch.setattr(run_folder, "ENDING_S", 0.2)


@pytest.mark.launch
@pytest.mark.usefixtures("soon")
def test_a_second_run_is_refused_on_all_ranks_until_the_first_is_killed(
    job: Callable[..., Path], tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "run"
    job()
    with holding(out) as other:
        write_json(out / "run.json", {"exit": None})
        (out / "history.csv").write_text("of the other")
        for ranks, words in ((2, ("--resume",)), (None, ()), (None, ("--overwrite",))):
            ended = run(out, *words, ranks=ranks)
            assert ended.code == 2 and ended.text.count("in use by another process; ") == 1, ended.text
        assert read_json(out / "run.json") == {"exit": None} and (out / "history.csv").read_text() == "of the other"
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        (out / "run.json").unlink()
        ended = run(out, "--resume")
        assert ended.code == 0 and not (out / LOCK).exists(), ended.text


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_flock(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Lustre that was mounted without: what a process of another machine has left is removed by hand."""

    def missing(*arguments: Any) -> None:
        raise OSError(number, "no flock")

    monkeypatch.setattr(fcntl, "flock", missing)
    with locked(tmp_path / "run"), pytest.raises(UsageError):
        hold(tmp_path / "run")
    (held := tmp_path / HELD).write_text("7\nelsewhere\n")
    said = f"in use by process 7 on elsewhere; let it end or, where it was killed, remove {held}, or choose"
    with pytest.raises(UsageError, match=re.escape(said)):
        hold(tmp_path)


# --- links -----------------------------------------------------------------------------------------------------------

FOLDERS = (*RUN_FOLDERS, "checkpoint/round-00000000", "checkpoint/round-00000009")
LINKED = [
    *((name, ("--resume",)) for name in (*RUN_FILES, *FOLDERS)),
    *((name, way) for name in ("run.json", "lock", "checkpoint") for way in ((), ("--overwrite",))),
]


@pytest.mark.parametrize(("name", "way"), LINKED)
def test_a_link_at_a_name_that_a_run_writes_is_refused(
    name: str, way: tuple[str, ...], out: Path, tmp_path: Path, run: Run
) -> None:
    assert {"job.toml", "model.safetensors", "ledger.jsonl", "failure.txt", "data.json"} < {*RUN_FILES}
    victim, path = tmp_path / "victim", out / name
    if not way:
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
    ended = run(out, "--set", "rounds=2", *way)
    assert ended.code == 2 and f"{path}: is a link" in ended.err and contents(tmp_path) == before, ended.text
    path.unlink()
    if name in ("tensorboard", "model.safetensors"):  # the run is as good as it was
        ended = run(out, "--set", "rounds=2", *way)
        assert ended.code == 0 and read_json(out / "run.json")["rounds"] == 2, ended.text


def test_so_it_is_in_a_sweep_in_an_audit_and_where_runs_are_read(
    out: Path, job: Callable[..., Path], tmp_path: Path, run: Run, launch: Callable[..., Any], digits: Path
) -> None:
    (victim := tmp_path / "victim").mkdir()
    (out / "audit").symlink_to(victim)
    ended = launch(None, "audit", out)
    assert ended.code == 2 and f"{out / 'audit'}: is a link" in ended.err and not contents(victim), ended.text
    (out / "data.json").rename(victim / "data.json")
    (out / "data.json").symlink_to(victim / "data.json")
    with pytest.raises(mf.DataError, match=r"data\.json: is a link"):
        mf.load(out).predict(np.zeros((1, 64), "f4"))
    path = job(sweep={"seeds": 2})
    for name in ("sweep.csv", points(read_table(path), "job")[1].name):
        (folder := tmp_path / f"sweep {name}").mkdir()
        (folder / name).symlink_to(tmp_path / "nowhere")
        ended = run(folder)
        assert ended.code == 2 and f"{name}: is a link" in ended.err and {*contents(folder)} == {name}, ended.text
    folder = tmp_path / "sweep sweep.csv"
    with pytest.raises(mf.UsageError, match=r"sweep\.csv: is a link"):
        mf.sweep({"a": mf.SSCA(batch_size=4)}, digits, mf.Softmax(), rounds=1, out=folder)
    assert {*contents(folder)} == {"sweep.csv"}


# --- a run takes the place of another, and of nothing else -----------------------------------------------------------


def test_a_run_takes_the_place_of_another(job: Callable[..., Path], out: Path, run: Run) -> None:
    """With what a process has left that was killed while it removed a run; what is not of runs stays beside it."""
    job(rounds=2)
    left, mine = (out.parent / f".a run.overwritten-{name}" for name in ("left", "mine"))
    shutil.copytree(out, left)
    mine.mkdir()
    (mine / "mine").write_text("mine")
    (half := out / f".model.safetensors.{'0a' * 8}.new").write_text("of a run that was killed")
    for words, said in (((), "or replace it with --overwrite"), (("--overwrite", "--resume"), "--resume with --overw")):
        refused = run(out, *words)
        assert refused.code == 2 and said in refused.err
    ended = run(out, "--overwrite")
    assert ended.code == 0 and read_json(out / "run.json")["rounds"] == 2, ended.text
    assert not half.exists() and not left.exists() and contents(mine) == {"mine": b"mine"}


BROKEN = {"no data": 3, "damaged data": 3, "other data": 2}


@pytest.mark.launch
@pytest.mark.parametrize(
    ("how", "before", "ranks"),
    [("other data", "finished", None), ("no data", "interrupted", None), ("damaged data", "a sweep", None),
     ("damaged data", "finished", 2)],
)  # fmt: skip
def test_the_old_run_stands_where_the_new_one_fails(
    how: str, before: str, ranks: int | None, job: Callable[..., Path], digits: Path, tmp_path: Path, run: Run
) -> None:
    """As it was, to the last byte, whatever it was, and for any command that reads it."""
    sweep = {"sweep": {"seeds": 2}} if before == "a sweep" else {}
    words = ("--max-hours", 0) if before == "interrupted" else ()
    job(**sweep)
    out = tmp_path / "out"
    assert run(out, *words).code == (75 if words else 0)
    files, data = contents(out), {"no data": tmp_path / "none", "other data": digits}.get(how)
    if data is None:
        data = shutil.copytree(digits, tmp_path / "damaged")
        (data / "federation.h5").write_bytes((data / "federation.h5").read_bytes()[:500])
    job(data, **sweep, **({"model": {"name": "least-squares"}} if how == "other data" else {}))
    ended = run(out, "--overwrite", ranks=ranks)
    assert ended.code == BROKEN[how] and ended.err.count("mpifed: error") <= 2, ended.text
    assert contents(out) == files
    with pytest.raises(mf.MpifedError):
        model = mf.LeastSquares() if how == "other data" else mf.Softmax()
        mf.run(METHOD, data, model, rounds=1, out=out, overwrite=True)
    assert contents(out) == files
    job(rounds=2)
    ended = run(out, "--overwrite", ranks=ranks)
    assert ended.code == 0 and read_json(out / "run.json")["rounds"] == 2, ended.text


OTHERS: list[tuple[bool, dict[str, str]]] = [  # beside a run, or alone
    *((True, {name: "mine"}) for name in ("thesis.tex", ".git/mine", "figure.png", "point-0000/mine", "job.toml.orig")),
    (False, {"job.toml": 'tool = "another"'}), (False, {"job.toml": "[[[", "run.json": "{}"}),
    (False, {"sweep.csv": "a,b\n1,2\n"}), (False, {"history.csv": "date,price\n"}),
    (False, {"checkpoint/mine": "years of it"}),
]  # fmt: skip


def test_what_is_not_of_a_run_is_kept(out: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a link followed, and no folder taken in which somebody is."""
    for number, (beside, files) in enumerate(OTHERS):
        folder = out.parent / str(number)
        if beside:
            shutil.copytree(out, folder)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        before = contents(folder)
        ended = run(folder, "--overwrite")
        assert ended.code == 2 and contents(folder) == before
        assert re.search("something else than a run.*--overwrite removes runs alone", ended.err)
    for to in ("a run", "nowhere"):
        (link := out.parent / f"link to {to}").symlink_to(to)
        ended = run(link, "--overwrite")
        assert ended.code == 2 and "is no folder of a run" in ended.err
    monkeypatch.chdir(out)
    for folder in (Path(), Path("../a run")):
        ended = run(folder, "--overwrite")
        assert ended.code == 2 and "in which you are" in ended.err


def test_neither_run_nor_sweep_in_the_place_of_the_other(
    digits: Path, job: Callable[..., Path], out: Path, tmp_path: Path, run: Run
) -> None:
    """Nor a sweep in the folder of a point, begun or not; the command that goes on with the sweep is said."""
    sweep = tmp_path / "sweep"
    job(sweep={"seeds": 2})
    assert run(sweep, "--max-hours", 0).code == 75
    before = contents(sweep)
    for options in (("--overwrite",), ("--resume", "--point", "1")):
        for point in points_of(sweep):
            ended = run(point, *options)
            assert ended.code == 2 and contents(sweep) == before, ended.text
            assert f"{point}: is a point of a sweep; go on with --resume --out {sweep}\n" in ended.err
    for words in ((), ("--resume", "--point", "1")):
        ended = run(out, *words)
        assert ended.code == 2 and "run: holds a run, and a sweep needs a folder of its own" in ended.err, ended.text
    with pytest.raises(mf.UsageError, match=rf"is a point of a sweep; go on with resume=True, out='{sweep}'$"):
        mf.sweep({"a": METHOD}, digits, mf.Softmax(), rounds=1, out=point, resume=True)
    job()
    ended = run(sweep, "--resume")
    assert ended.code == 2 and "sweep: holds a sweep; choose another --out" in ended.err, ended.text
    with pytest.raises(mf.UsageError, match=r"sweep: holds a sweep; choose another out"):
        mf.run(METHOD, digits, mf.Softmax(), rounds=1, out=sweep, resume=True)
