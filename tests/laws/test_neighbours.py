"""Everything that runs of two neighbouring data sets leave behind, read file by file, key by key and byte by byte.

Of runs that record only what is released. What is public must be the same whatever the data are. What is released may
differ as the noise makes it differ, in its numbers and in nothing else; and measures of it must follow from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from disclosed import PUBLIC, RAW, RELEASED, TIMING, kind_of
from federations import common
from jobs_in_python import checked
from lengths import long_unless
from test_released_only import JOBS, SECRET, items, private
from whole_runs import run

from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.privacy.disclosure import RAW_FOLDERS
from mpifed.testing import Solo

RUNS = 4  # of each data set
WHO = ("present", "absent")
FAR = 8.0  # standard deviations, of which some come from four runs


@pytest.fixture(scope="module")
def neighbours(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """neighbours(level, who): one path for all, behind which are data with a record, or client, or with zeros."""
    root = tmp_path_factory.mktemp("neighbours")
    for level, who in product(("sample", "client"), WHO):
        folder = root / level / who
        shutil.copytree(digits, folder)
        with h5py.File(folder / "federation.h5", "r+") as file:
            rows = slice(0, int(file["rows/bounds"][1])) if level == "client" else slice(3, 4)  # of the first client
            file["X"][rows] = 0 if who == "absent" else file["X"][rows].max() * np.ones_like(file["X"][rows])

    def chosen(level: str, who: str) -> Path:
        link = root / "data"
        link.unlink(missing_ok=True)
        link.symlink_to(root / level / who)
        return link

    return chosen


def read(run_dir: Path) -> Iterator[tuple[str, str, Any]]:
    """(file, key, value) of everything outside of folders of raw data, whole files as their bytes."""
    for file, key, value in items(run_dir):
        if file.partition("/")[0] not in RAW_FOLDERS:
            yield file, key, (run_dir / file).read_bytes() if key == "" else value


def without_numbers(path: Path) -> bytes:
    """The header of a file of safetensors: all that is in it besides."""
    found = path.read_bytes()
    return found[: 8 + int.from_bytes(found[:8], "little")]


def explained(file: str, key: str, values: dict[str, list[Any]]) -> None:
    """Neighbours' numbers are as far apart as those of runs of the same data."""
    shapes = {(np.shape(one), np.asarray(one).dtype.str) for each in values.values() for one in each}
    assert len(shapes) == 1, (file, key, shapes)
    arrays = {who: np.array(each, np.float64).reshape(RUNS, -1) for who, each in values.items()}
    gaps = [np.isnan(one).tobytes() for each in arrays.values() for one in each]
    assert len(set(gaps)) == 1, (file, key, "numbers are missing in some")
    arrays = {who: np.nan_to_num(each) for who, each in arrays.items()}
    within = [np.linalg.norm(a - b) for each in arrays.values() for a, b in combinations(each, 2)]
    across = [np.linalg.norm(a - b) for a, b in product(*arrays.values())]
    most = 1.1 if arrays["present"].shape[1] > 100 else FAR
    assert np.mean(across) <= most * np.mean(within), (file, key, np.mean(across), np.mean(within))


SHORT = ("gradients", "coins, masked")


@pytest.mark.parametrize("name", long_unless(lambda name: name in SHORT, JOBS))
def test_all_that_differs_is_noise(name: str, neighbours: Callable[..., Path], tmp_path: Path) -> None:
    level = JOBS[name].get("privacy", {}).get("level", "sample")
    folders: dict[str, list[Path]] = {}
    staying = {"participation": {}} if name in SECRET else {}  # how often too many leave is drawn anew in each run
    for who in WHO:
        job = checked(private(neighbours(level, who), **JOBS[name] | staying))
        job = replace(job, data=replace(job.data, verify=False))
        folders[who] = [tmp_path / f"{who}-{number}" for number in range(RUNS)]
        for folder in folders[who]:
            run(job, Solo(), folder)
    everything = {who: [list(read(folder)) for folder in each] for who, each in folders.items()}
    reference = everything["absent"][0]
    for at, (file, key, value) in enumerate(reference):
        others = {who: [found[at] for found in each] for who, each in everything.items()}
        assert {one[:2] for each in others.values() for one in each} == {(file, key)}
        kind = kind_of(file, key)
        if kind == PUBLIC:
            found = [one[2] for each in others.values() for one in each]
            assert all(repr(one) == repr(value) for one in found), (file, key, found)
        elif kind == RELEASED and file.endswith((".safetensors", ".csv")):
            explained(file, key, {who: [_number(one[2]) for one in each] for who, each in others.items()})
        else:
            assert kind in (RELEASED, RAW, TIMING), (file, key)
    assert {len(found) for each in everything.values() for found in each} == {len(reference)}
    rest = {without_numbers(folder / "model.safetensors") for each in folders.values() for folder in each}
    assert len(rest) == 1, "model.safetensors: something besides its numbers differs"


def _number(value: Any) -> Any:
    """Of a column: "" where there is none."""
    if value is None or isinstance(value, str):
        return float(value) if value else np.nan
    return value


@pytest.mark.parametrize("name", ["gradients", "coins"])
def test_measures_follow_from_the_model(name: str, digits: Path, tmp_path: Path) -> None:
    """The last line of the history, from the released model and public test rows alone."""
    job = checked(private(digits, **JOBS[name], model={"name": "softmax", "bias": False}))
    run(job, Solo(), tmp_path / "run")
    model, history = read_model(tmp_path / "run" / "model.safetensors"), read_history(tmp_path / "run")
    X, y = common(open_federation(digits))
    scores = X @ model["first"].astype("f8")
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]
    assert history["test_loss"][-1] == pytest.approx(losses.mean(), rel=1e-5)
    assert history["test_accuracy"][-1] == pytest.approx((scores.argmax(axis=1) == y).mean(), abs=1e-9)
