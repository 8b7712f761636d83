"""A run goes on with the data, own sources and libraries that it began with, or is refused."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ended import run
from jobs_in_python import checked, fedavg, job_table
from written_files import read_json, write_json

from mpifed.cli import main
from mpifed.core.errors import DataError, Interrupted, UsageError
from mpifed.data.store import open_federation
from mpifed.files.run_folder import summary
from mpifed.run import environment
from mpifed.run.outcome import code_of
from mpifed.run.setup import prepare
from mpifed.testing import Job, Solo

MINE = """
from dataclasses import dataclass, replace

from own_package.helper import FACTOR
from mpifed.maths.regularizers import L1
from jobs_in_python import checked, fedavg, job_table

@dataclass(frozen=True)
class Mine(L1):
    def plot(self):
        import click, own_package.late
"""
FILES = {
    "own_mine.py": MINE,
    "own_package/__init__.py": "import numpy, json\nfrom . import sibling\n",
    "own_package/helper.py": "FACTOR = 2\n",
    "own_package/sibling.py": "from .helper import FACTOR\nimport scipy.sparse as sparse\n",
    "own_package/late.py": "from ..elsewhere import nothing\n",
    "own_package/unused.py": "",
}


def job(folder: Path, **changes: Any) -> Job:
    base = {"name": "same", "rounds": 4, "algorithm": fedavg(4, 0.2), "record": {"evaluate_every": 2}}
    return checked(job_table(folder, **base | changes))


def interrupted(task: Job, out: Path) -> None:
    """A run that has come to its first checkpoint."""
    with pytest.raises(Interrupted):
        run(task, Solo(), out, max_hours=0)


def command(task: Job, folder: Path) -> list[str]:
    """`mpifed run` of a job, into the folder's `run`."""
    (folder / "job.toml").write_text(task.text())
    return ["run", str(folder / "job.toml"), "--out", str(folder / "run")]


@pytest.fixture
def copy(digits: Path, tmp_path: Path) -> Path:
    """Data that may be changed."""
    return Path(shutil.copytree(digits, tmp_path / "data"))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of `sys.path` with a regularizer and what it imports."""
    folder = tmp_path / "own"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.startswith("own_mine") or name.startswith("own_package")]:
        del sys.modules[name]


def test_data_that_were_moved_are_the_same_data(digits: Path, copy: Path, tmp_path: Path) -> None:
    interrupted(job(digits), tmp_path / "run")
    run(job(copy), Solo(), tmp_path / "run", resume=True)
    run(job(digits), Solo(), tmp_path / "whole")
    assert summary(tmp_path / "run")["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]
    assert len(read_json(tmp_path / "run" / "run.json")["data_sha256"]) == 64
    with pytest.raises(UsageError, match=r"--resume with rounds = 1, and \d+ are done; give as many or more"):
        run(replace(job(copy), rounds=1), Solo(), tmp_path / "run", resume=True)


def test_other_data_are_refused_whatever_is_accepted(digits: Path, tmp_path: Path, make_data: Any) -> None:
    out = tmp_path / "run"
    interrupted(job(digits), out)
    options = read_json(digits / "federation.json")["provenance"]["options"]
    words = ("--split", "rows", "--clients", "8", "--partition", options["partition"], "--test-fraction", "0.2")
    copy = make_data(tmp_path / "scaled", "digits", *words, "--scale", "standard")
    before = read_json(out / "run.json") | {"exit": None}  # as after a kill
    write_json(out / "run.json", before)
    with pytest.raises(UsageError, match=r"with other data \(sha256: \w{12} before, \w{12} now; scaling: ") as caught:
        run(job(copy), Solo(), out, resume=True, accept_changed=True)
    assert code_of(caught.value) == 2 and "clients" not in str(caught.value)
    other = make_data(tmp_path / "other", "digits", "--split", "rows", "--clients", "3")
    with pytest.raises(UsageError, match=r"clients: 8 before, 3 now; .*options\.clients: 8 before, 3 now"):
        run(job(other), Solo(), out, resume=True)
    ended = CliRunner().invoke(main, [*command(job(other), tmp_path), "--resume"])
    assert ended.exit_code == 2 and "with other data" in ended.output
    assert read_json(out / "run.json") == before


NODE = """from mpifed.comm.mpi import launched_rank
import os, sys
os.chdir(f"node-{launched_rank()}")
sys.path.insert(0, os.getcwd())
from mpifed.cli import main
main()
"""
MODULE = """import dataclasses, mpifed as mf
@dataclasses.dataclass(frozen=True)
class Mine(mf.L1):
    "{}"
"""


@pytest.mark.launch
@pytest.mark.parametrize("what", ["sources", "labels"])
def test_ranks_that_see_others_than_rank_0(
    what: str, own: Path, digits: Path, tmp_path: Path, make_data: Callable[..., Path], launch: Any
) -> None:
    """On a node's disk, say; data of the same shapes, whole and undamaged."""
    for rank in range(2):
        shutil.copytree(digits, tmp_path / f"node-{rank}" / "data")
        (tmp_path / f"node-{rank}" / "own_node.py").write_text(MODULE.format(rank if what == "sources" else 0))
    other = tmp_path / "node-1" / "data"
    if what == "labels":
        shutil.rmtree(other)
        words = ("--split", "rows", "--clients", "8", "--seed", "5", "--test-fraction", "0.2")
        make_data(other, "digits", *words)
    task = job(Path("data"), rounds=1, regularizer={"name": "own_mine:Mine", "weight": 0.1})
    (tmp_path / "job.toml").write_text(task.text().replace("own_mine", "own_node"))
    ended = launch(2, "run", "../job.toml", cwd=tmp_path, program=("-c", NODE))
    said = "own classes must be of the same files on all nodes" if what == "sources" else "rank 1 sees other data than"
    assert ended.code == (2 if what == "sources" else 3) and ended.text.count(said) == 1, ended.text


def test_other_test_rows_on_a_node(digits: Path, copy: Path) -> None:
    class Second(Solo):
        """Rank 1, alone on its node."""

        rank, size = 1, 2

        def bcast(self, value: Any, root: int = 0) -> Any:
            return open_federation(digits).about

    with open(copy / "federation.h5", "r+b") as file:
        file.seek(read_json(copy / "federation.json")["arrays"]["test/X"]["offset"])
        file.write(b"\0\0\1\0")
    with pytest.raises(DataError, match=r"rank 1 sees other data than rank 0: .*test/X was changed or damaged"):
        prepare(job(copy), Second())


@pytest.mark.parametrize("changed", ["own_mine.py", "own_package/late.py"])
def test_changed_sources_are_refused_unless_accepted(own: Path, digits: Path, tmp_path: Path, changed: str) -> None:
    task, out = job(digits, regularizer={"name": "own_mine:Mine", "weight": 0.1}), tmp_path / "run"
    interrupted(task, out)
    (own / changed).write_text(FILES[changed] + "# edited\n")
    said = rf"other sources or libraries.*\({changed}: \w{{12}} before, .*--accept-changed"
    with pytest.raises(UsageError, match=said):
        run(task, Solo(), out, resume=True)
    run(replace(task, rounds=2), Solo(), out, resume=True, accept_changed=True)
    run(task, Solo(), out, resume=True)
    told = read_json(out / "run.json")
    (change,) = told["accepted_changes"]
    assert change.startswith(f"after round 0: {changed}: ")
    assert told["sources"].keys() == FILES.keys() - {"own_package/unused.py"}
    assert told["distributions"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("name", "now", "said"),
    [
        ("versions", {"numpy": "0.1", "python": "2"}, rf"numpy: {np.__version__} before, 0.1 now"),
        ("blas", ["other 1"], "BLAS: .* before, other 1 now"),
        ("blas", [], "BLAS: .* before, none known now"),
    ],
)
def test_other_libraries_are_refused(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, now: Any, said: str
) -> None:
    interrupted(job(digits), tmp_path / "run")
    monkeypatch.setattr(environment, name, lambda: now)
    with pytest.raises(UsageError, match=said) as caught:
        run(job(digits), Solo(), tmp_path / "run", resume=True)
    assert "python" not in str(caught.value)


def test_private_runs_do_not_tell_the_checksum_of_their_data(digits: Path, tmp_path: Path) -> None:
    privacy = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 1.0, "noise": "test"}
    task = job(digits, privacy=privacy, regularizer=None)
    run(task, Solo(), tmp_path / "run")
    text = "".join((tmp_path / "run" / name).read_text("latin-1") for name in ("run.json", "model.safetensors"))
    assert "data_sha256" not in text
    (manifest,) = (tmp_path / "run" / "checkpoint").glob("*4/manifest.json")
    assert read_json(manifest)["run"]["identity"]["data"]["sha256"] not in text
