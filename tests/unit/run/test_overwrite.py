"""`mpifed run --overwrite`: a run takes the place of another, and of nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from jobs_in_python import as_in_a_file, in_text, job_table
from written_files import contents, read_json

import mpifed as mf
from mpifed.run import folder as run_folder
from mpifed.run.folder import locked

Launch = Callable[..., Any]
QUIET = ("--progress", "none")


def job(folder: Path, path: Path, **changes: Any) -> Path:
    base = {"rounds": 1, "model": {"name": "softmax"}, "record": {"evaluate_every": 0, "checkpoint_every": 0}}
    path.write_text(tomli_w.dumps(as_in_a_file(job_table(folder, **base | changes))))
    return path


@pytest.fixture
def out(digits: Path, tmp_path: Path, launch: Launch) -> Path:
    """The folder of a run of one round, its job beside it."""
    ended = launch(None, "run", job(digits, tmp_path / "job.toml"), "--out", tmp_path / "a run", *QUIET)
    assert ended.code == 0, ended.text
    return tmp_path / "a run"


def overwrite(folder: Path, launch: Launch) -> Any:
    """How a run ends that is to take the place of what is in a folder; its job lies beside the folder."""
    return launch(None, "run", folder.parent / "job.toml", "--out", folder, "--overwrite", *QUIET)


def test_a_run_takes_the_place_of_another(digits: Path, out: Path, launch: Launch) -> None:
    """With what a process has left that was killed while it removed a run; what is not of runs stays beside it."""
    job(digits, out.parent / "job.toml", rounds=2)
    left, mine = (out.parent / f".a run.overwritten-{name}" for name in ("left", "mine"))
    shutil.copytree(out, left)
    mine.mkdir()
    (mine / "mine").write_text("mine")
    (out / "checkpoint" / "other").mkdir(parents=True)
    half = out / f".model.safetensors.{'0a' * 8}.new"
    half.write_text("of a run that was killed")
    refused = launch(None, "run", out.parent / "job.toml", "--out", out)
    assert refused.code == 2 and "or replace it with --overwrite" in refused.err
    ended = overwrite(out, launch)
    assert ended.code == 0 and read_json(out / "run.json")["rounds"] == 2, ended.text
    assert not (out / "checkpoint" / "other").exists() and not half.exists() and not left.exists()
    assert contents(mine) == {"mine": b"mine"}
    both = launch(None, "run", out.parent / "job.toml", "--out", out, "--overwrite", "--resume")
    assert both.code == 2 and "--resume with --overwrite" in both.err


def broken(digits: Path, path: Path, how: str, **changes: Any) -> Path:
    """A job that fails before its first round."""
    if how == "no data":
        return job(path.parent / "none", path, **changes)
    if how == "damaged data":
        shutil.copytree(digits, path.parent / "damaged")
        arrays = path.parent / "damaged" / "federation.h5"
        arrays.write_bytes(arrays.read_bytes()[:500])
        return job(path.parent / "damaged", path, **changes)
    return job(digits, path, model={"name": "least-squares"}, **changes)  # of classes


BROKEN = {"no data": 3, "damaged data": 3, "other data": 2}


@pytest.mark.parametrize(
    ("how", "before"), [*((how, "finished") for how in BROKEN), ("no data", "interrupted"), ("damaged data", "a sweep")]
)
def test_the_old_run_stands_where_the_new_one_fails(
    how: str, before: str, digits: Path, tmp_path: Path, launch: Launch
) -> None:
    """As it was, to the last byte, whatever it was, and for any command that reads it."""
    sweep = {"sweep": {"seeds": 2}} if before == "a sweep" else {}
    words = ("--max-hours", 0) if before == "interrupted" else ()
    out = ("--out", tmp_path / "out", *QUIET)
    ended = launch(None, "run", job(digits, tmp_path / "job.toml", **sweep), *out, *words)
    assert ended.code == (75 if words else 0), ended.text
    files = contents(tmp_path / "out")
    failing = broken(digits, tmp_path / "job.toml", how, **sweep)
    ended = launch(None, "run", failing, *out, "--overwrite")
    assert ended.code == BROKEN[how] and contents(tmp_path / "out") == files, ended.text
    with pytest.raises(mf.MpifedError):
        model = mf.LeastSquares() if how == "other data" else mf.Softmax()
        data, method = in_text(failing.read_text())["data"]["path"], mf.SSCA(batch_size=4)
        if before == "a sweep":
            mf.sweep({"a": method}, data, model, rounds=1, out=tmp_path / "out", overwrite=True)
        else:
            mf.run(method, data, model, rounds=1, out=tmp_path / "out", overwrite=True)
    assert contents(tmp_path / "out") == files
    ended = launch(None, "run", job(digits, tmp_path / "job.toml", rounds=2), *out, "--overwrite")
    assert ended.code == 0 and read_json(tmp_path / "out" / "run.json")["rounds"] == 2, ended.text


def test_a_sweep_takes_the_place_of_another(digits: Path, tmp_path: Path, launch: Launch) -> None:
    out = ("--out", tmp_path / "s")
    for seeds in (2, 1):
        path = job(digits, tmp_path / "job.toml", sweep={"seeds": seeds})
        ended = launch(None, "run", path, *out, "--overwrite", *QUIET)
        assert ended.code == 0, ended.text
    (run,) = (path / "run.json" for path in (tmp_path / "s").iterdir() if path.is_dir())
    before = run.stat().st_mtime_ns
    refused = launch(None, "run", path, *out, "--point", "0")
    assert refused.code == 2 and "--overwrite" in refused.err
    ended = launch(None, "run", path, *out, "--point", "0", "--overwrite", *QUIET)
    assert ended.code == 0 and run.stat().st_mtime_ns > before


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
        link = out.parent / f"link to {to}"
        link.symlink_to(to)
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


@pytest.mark.launch
def test_all_ranks_agree(digits: Path, tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    path = job(digits, tmp_path / "job.toml")
    ended = launch(2, "run", path, "--out", tmp_path / "mine", "--overwrite")
    assert ended.code == 2 and ended.err.count("--overwrite removes runs alone") == 1
    out = ("--out", tmp_path / "run", "--overwrite", *QUIET)
    for _ in range(2):
        ended = launch(2, "run", path, *out)
        assert ended.code == 0, ended.text
    before = contents(tmp_path / "run")
    ended = launch(2, "run", broken(digits, path, "damaged data"), *out)
    assert ended.code == 3 and ended.err.count("mpifed: error") == 1 and contents(tmp_path / "run") == before
