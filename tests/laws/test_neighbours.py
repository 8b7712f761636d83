"""Everything that runs of two neighbouring data sets leave behind, read file by file, key by key and byte by byte.

Of runs that record only what is released, of everything in whose folder somebody has said of what kind it is. What is
public must be the same whatever the data are, and who took part. What is released may differ as the noise makes it
differ, in its numbers and in nothing else; and measures of it must follow from it.
"""

from __future__ import annotations

import csv
import json
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
from ended import same_runs
from federations import common
from jobs_in_python import checked
from lengths import long_unless
from registry import table
from safetensors import safe_open
from whole_runs import run
from written_files import read_json

from mpifed.core.errors import UsageError
from mpifed.core.tables import dotted
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.privacy.disclosure import NOTE, RAW_FOLDERS, uncovered
from mpifed.run.setup import prepare
from mpifed.testing import Solo

AVG = {"name": "fedavg", "batch_size": 7, "client_optimizer": {"learning_rate": 0.3}}
NETWORK = {"simulated_network": {"name": "lte"}}
LEAVING = {"dropout_rate": 0.2, "max_dropouts": 2}
CENTRAL = {"level": "client", "trust": "central", "delta": 1e-3}
COINS = CENTRAL | {"sampling": "poisson"}
SIX = {"participation": LEAVING | {"clients_per_round": 6}}
JOBS: dict[str, dict[str, Any]] = {
    "gradients": {},
    "gradients, network": {**NETWORK, "participation": LEAVING},
    "distributed, masked": {
        "privacy": CENTRAL | {"trust": "distributed"}, "aggregation": {"security": "masked"}, **SIX, **NETWORK,
    },
    "drawn": {"privacy": CENTRAL, "participation": LEAVING, **NETWORK},
    "drawn, masked": {"privacy": CENTRAL, **SIX, "aggregation": {"security": "masked"}},
    "coins": {"privacy": COINS, "participation": {"clients_per_round": 2}, **NETWORK},
    "coins, masked": {"privacy": COINS, "aggregation": {"security": "masked", "min_clients": 1}, **NETWORK},
    "coins, encrypted": {"privacy": COINS, "aggregation": {"security": "encrypted", "min_clients": 1}},
}  # fmt: skip
SECRET = [name for name in JOBS if "coins" in name]  # who takes part


def private(folder: Path, /, **changes: Any) -> dict[str, Any]:
    """Four of eight clients in each round of a run that records only what is released."""
    privacy = {"delta": 1e-4, "clip": 1.0, "noise_multiplier": 5.0} | changes.pop("privacy", {})
    record = {"evaluate_every": 1, "checkpoint_every": 2, "released_only": True} | changes.pop("record", {})
    part = {"clients_per_round": 4} | changes.pop("participation", {})
    return table(folder, AVG, privacy=privacy, record=record, participation=part, rounds=5, **changes)


def items(run_dir: Path) -> Iterator[tuple[str, str, Any]]:
    """(file, key, value) of everything in a run's folder; of a file that is told as a whole the key is empty."""
    for path in sorted(path for path in run_dir.rglob("*") if path.is_file()):
        file = path.relative_to(run_dir).as_posix()
        if file.partition("/")[0] in RAW_FOLDERS or path.suffix in (".toml", ".txt"):
            yield file, "", path.read_bytes()
        elif path.suffix in (".json", ".jsonl"):
            for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
                yield from ((file, key, value) for key, value in leaves_of(json.loads(line)))
        elif path.suffix == ".csv":
            with open(path, newline="") as rows:
                yield from ((file, key, value) for row in csv.DictReader(rows) for key, value in row.items())
        elif path.suffix == ".safetensors":
            with safe_open(path, "np") as model:
                metadata = model.metadata()
                told = [*json.loads(metadata.pop("mpifed")).items(), *metadata.items()]
                yield from ((f"{file}@", key, value) for key, value in told)
                yield from ((file, name, model.get_tensor(name)) for name in model.keys())  # noqa: SIM118
        else:
            yield file, "?", None  # nobody has said how to read it


def leaves_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys; those of an empty table are the table's own."""
    yield from dotted(value)
    yield from ((key, None) for key, inner in value.items() if inner == {})


# --- of a known kind -------------------------------------------------------------------------------------------------


def check(run_dir: Path) -> None:
    """Everything is of a known kind; nothing raw lies anywhere but in folders that say so."""
    for file, key, value in items(run_dir):
        kind, (folder, inside, _) = kind_of(file, key), file.partition("/")
        assert kind in (RELEASED, PUBLIC, RAW, TIMING), (file, key)
        if inside:
            assert kind == RAW and "No epsilon covers it" in (run_dir / folder / NOTE).read_text()
        else:
            assert kind != RAW or value in (None, ""), (file, key, value)


def not_covered(run_dir: Path, launch: Any) -> str:
    """What `show` says of it."""
    lines = launch(None, "show", run_dir).out.splitlines()
    (line,) = (line for line in lines if line.startswith("epsilon does not cover"))
    return str(line)


@pytest.mark.parametrize("name", JOBS)
def test_everything_is_of_a_known_kind(name: str, digits: Path, tmp_path: Path, launch: Any) -> None:
    job, out = checked(private(digits, **JOBS[name])), tmp_path / "run"
    for rounds in (3, 5):
        run(replace(job, rounds=rounds), Solo(), out, resume=rounds == 5)
        check(out)
    assert read_json(out / "run.json")["private"] is True
    line = not_covered(out, launch)
    assert "raw data in checkpoint/" in line and line.endswith("times") and "measured" not in line


@pytest.mark.parametrize("name", [name for name in JOBS if name not in SECRET])
def test_rounds_may_grow(name: str, digits: Path, tmp_path: Path) -> None:
    """To the bits of a run at once, where noise and times can be had again."""
    changes = {key: value for key, value in JOBS[name].items() if key != "simulated_network"}
    job = checked(private(digits, **changes | {"privacy": {"noise": "test"} | changes.get("privacy", {})}))
    run(replace(job, rounds=3), Solo(), tmp_path / "grown")
    run(job, Solo(), tmp_path / "grown", resume=True)
    run(job, Solo(), tmp_path / "whole")
    same_runs(tmp_path / "grown", tmp_path / "whole")


def test_what_is_measured_without_noise_is_said(digits: Path, tmp_path: Path, launch: Any) -> None:
    out = tmp_path / "run"
    run(checked(private(digits, record={"released_only": False})), Solo(), out)
    line = not_covered(out, launch)
    assert "measured without noise: train_loss" in line and "; test rows, of which test_accuracy" in line
    head, *rows = (out / "history.csv").read_text().splitlines()  # a method may name a column of its own as it likes
    (out / "history.csv").write_text("\n".join([f"{head},epsilon_of_rows", *(f"{row},1" for row in rows), ""]))
    (out / "run.json").unlink()  # which knows the file's digest
    assert "epsilon_of_rows" in "; ".join(uncovered(out))


@pytest.mark.launch
@pytest.mark.parametrize(("ranks", "wrong"), [(2, False), (0, True), (2, True)])
def test_several_ranks_and_errors(
    ranks: int, wrong: bool, digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    """An error tells its class alone; its text, which names a client and a value, is on the standard error."""
    changes = {"aggregation": {"bounds": {"changes.value": 2.0**-30}}} if wrong else JOBS["coins"]
    path = write_job(tmp_path / "job.toml", private(digits, **changes))  # wrong of what has noise already
    ended = launch(ranks, "run", path, "--out", tmp_path / "run")
    assert ended.code == (68 if wrong else 0) and ("client" in ended.text or not wrong)
    if wrong:
        failure = (tmp_path / "run" / "failure.txt").read_text()
        assert "NumericalError (exit 68)" in failure and "client" not in failure
    check(tmp_path / "run")


# --- who took part ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SECRET)
def test_nothing_public_tells_who_took_part(name: str, digits: Path, tmp_path: Path) -> None:
    """Two runs of one job draw other clients, and write the same bytes, counts and times of the network."""
    job, own = (
        checked(private(digits, **JOBS[name] | {"participation": {}})),
        ("host", "process.", "commit", "job.toml"),
    )
    told = []
    for number in (1, 2):
        run(job, Solo(), tmp_path / str(number))
        told.append([
            (file, key, repr(value)) for file, key, value in items(tmp_path / str(number))
            if kind_of(file, key) == PUBLIC and not key.startswith((*own, "slurm_job"))
        ])  # fmt: skip
    assert told[0] == told[1]
    each = np.diff(read_history(tmp_path / "1")["up_bytes"])
    assert (each == each[0]).all() and each[0] > 0


@pytest.mark.parametrize(("changes", "said"), [
    ({"privacy": COINS, "participation": LEAVING}, "a round would be void depending on how many take part"),
    ({"privacy": COINS, "participation": {"max_dropouts": 1}}, "leave both out"),
    ({"privacy": COINS, "aggregation": {"security": "masked"}}, "set min_clients = 1"),
], ids=["leaving", "room for leaving", "small groups"])  # fmt: skip
def test_what_would_tell_how_many_take_part(changes: dict[str, Any], said: str, digits: Path) -> None:
    with pytest.raises(UsageError, match=said):
        prepare(checked(private(digits, **changes)), Solo())
    prepare(checked(private(digits, **changes | {"privacy": CENTRAL})), Solo())


# --- neighbours ------------------------------------------------------------------------------------------------------

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


def explained(name: Any, values: dict[str, list[Any]]) -> None:
    """Neighbours' numbers are as far apart as those of runs of the same data."""
    shapes = {(np.shape(one), np.asarray(one).dtype.str) for each in values.values() for one in each}
    assert len(shapes) == 1, (name, shapes)
    arrays = {who: np.array(each, np.float64).reshape(RUNS, -1) for who, each in values.items()}
    gaps = {np.isnan(one).tobytes() for each in arrays.values() for one in each}
    assert len(gaps) == 1, (name, "numbers are missing in some")
    arrays = {who: np.nan_to_num(each) for who, each in arrays.items()}
    within = np.mean([np.linalg.norm(a - b) for each in arrays.values() for a, b in combinations(each, 2)])
    across = np.mean([np.linalg.norm(a - b) for a, b in product(*arrays.values())])
    assert across <= (1.1 if arrays["present"].shape[1] > 100 else FAR) * within, (name, across, within)


@pytest.mark.parametrize("name", long_unless(lambda name: name in ("gradients", "coins, masked"), JOBS))
def test_all_that_differs_is_noise(name: str, neighbours: Callable[..., Path], tmp_path: Path) -> None:
    level = JOBS[name].get("privacy", {}).get("level", "sample")
    staying = {"participation": {}} if name in SECRET else {}  # how often too many leave is drawn anew in each run
    found: dict[str, list[Any]] = {who: [] for who in WHO}
    rest = set()  # of the models' files, the header: all that is in them besides their numbers
    for who, number in product(WHO, range(RUNS)):
        job, out = checked(private(neighbours(level, who), **JOBS[name] | staying)), tmp_path / f"{who}-{number}"
        run(replace(job, data=replace(job.data, verify=False)), Solo(), out)
        found[who].append([one for one in items(out) if one[0].partition("/")[0] not in RAW_FOLDERS])
        model = (out / "model.safetensors").read_bytes()
        rest.add(model[: 8 + int.from_bytes(model[:8], "little")])
    assert len(rest) == 1, "model.safetensors: something besides its numbers differs"
    (length,) = {len(each) for runs in found.values() for each in runs}
    for at in range(length):
        values = {who: [each[at][2] for each in runs] for who, runs in found.items()}
        ((file, key),) = {each[at][:2] for runs in found.values() for each in runs}
        kind = kind_of(file, key)
        if kind == PUBLIC:
            assert len({repr(one) for each in values.values() for one in each}) == 1, (file, key, values)
        elif kind == RELEASED and file.endswith((".safetensors", ".csv")):
            explained((file, key), {who: [*map(number_of, each)] for who, each in values.items()})
        else:
            assert kind in (RELEASED, RAW, TIMING), (file, key)


def number_of(value: Any) -> Any:
    """Of a column: "" where there is none."""
    return float(value or "nan") if isinstance(value, str) else value


@pytest.mark.parametrize("name", ["gradients", "coins"])
def test_measures_follow_from_the_model(name: str, digits: Path, tmp_path: Path) -> None:
    """The last line of the history, from the released model and public test rows alone."""
    run(checked(private(digits, **JOBS[name], model={"name": "softmax", "bias": False})), Solo(), tmp_path / "run")
    model, history = read_model(tmp_path / "run" / "model.safetensors"), read_history(tmp_path / "run")
    X, y = common(open_federation(digits))
    scores = X @ model["first"].astype("f8")
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]
    assert history["test_loss"][-1] == pytest.approx(losses.mean(), rel=1e-5)
    assert history["test_accuracy"][-1] == pytest.approx((scores.argmax(axis=1) == y).mean(), abs=1e-9)
