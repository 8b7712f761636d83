"""What the folder of a private run tells that records only what is released: of everything in it somebody has said."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disclosed import PUBLIC, RAW, RELEASED, TIMING, kind_of
from jobs_in_python import checked
from registry import table
from safetensors import safe_open
from whole_runs import run
from written_files import read_json

from mpifed.core.errors import UsageError
from mpifed.files.history import read_history
from mpifed.job.reading import dotted
from mpifed.privacy.disclosure import NOTE, RAW_FOLDERS, uncovered
from mpifed.run.setup import prepare
from mpifed.testing import Solo

CLIENTS = 8
AVG = {"name": "fedavg", "batch_size": 7, "client_optimizer": {"learning_rate": 0.3}}
NETWORK = {"simulated_network": {"name": "lte"}}
LEAVING = {"dropout_rate": 0.2, "max_dropouts": 2}


def private(folder: Path, /, **changes: Any) -> dict[str, Any]:
    """Four of eight clients in each round of a run that records only what is released."""
    privacy = {"delta": 1e-4, "clip": 1.0, "noise_multiplier": 5.0} | changes.pop("privacy", {})
    record = {"evaluate_every": 1, "checkpoint_every": 2, "released_only": True} | changes.pop("record", {})
    part = {"clients_per_round": 4} | changes.pop("participation", {})
    return table(folder, AVG, privacy=privacy, record=record, participation=part, rounds=5, **changes)


CENTRAL = {"level": "client", "trust": "central", "delta": 1e-3}
COINS = CENTRAL | {"sampling": "poisson"}
JOBS: dict[str, dict[str, Any]] = {
    "gradients": {},
    "gradients, network": {**NETWORK, "participation": LEAVING},
    "distributed, masked": {
        "privacy": {"trust": "distributed", "level": "client", "delta": 1e-3}, "aggregation": {"security": "masked"},
        "participation": LEAVING | {"clients_per_round": 6}, **NETWORK,
    },
    "drawn": {"privacy": CENTRAL, "participation": LEAVING, **NETWORK},
    "drawn, masked": {
        "privacy": CENTRAL, "participation": LEAVING | {"clients_per_round": 6}, "aggregation": {"security": "masked"},
    },
    "coins": {"privacy": COINS, "participation": {"clients_per_round": 2}, **NETWORK},
    "coins, masked": {"privacy": COINS, "aggregation": {"security": "masked", "min_clients": 1}, **NETWORK},
    "coins, encrypted": {"privacy": COINS, "aggregation": {"security": "encrypted", "min_clients": 1}},
}  # fmt: skip
SECRET = ("coins", "coins, masked", "coins, encrypted")


def items(run_dir: Path) -> Iterator[tuple[str, str, Any]]:
    """(file, key, value) of everything in a run's folder; of a file that is told as a whole the key is empty."""
    for path in sorted(path for path in run_dir.rglob("*") if path.is_file()):
        file = path.relative_to(run_dir).as_posix()
        if file.partition("/")[0] in RAW_FOLDERS or path.suffix in (".toml", ".txt"):
            yield file, "", None
        elif path.suffix == ".json":
            yield from ((file, key, value) for key, value in leaves_of(read_json(path)))
        elif path.suffix == ".jsonl":
            for line in path.read_text().splitlines():
                yield from ((file, key, value) for key, value in leaves_of(json.loads(line)))
        elif path.suffix == ".csv":
            with open(path, newline="") as rows:
                yield from ((file, key, value) for row in csv.DictReader(rows) for key, value in row.items())
        elif path.suffix == ".safetensors":
            with safe_open(path, "np") as model:
                metadata = model.metadata()
                yield from ((f"{file}@", key, value) for key, value in json.loads(metadata.pop("mpifed")).items())
                yield from ((f"{file}@", key, value) for key, value in metadata.items())
                yield from ((file, name, model.get_tensor(name)) for name in model.keys())  # noqa: SIM118
        else:
            yield file, "?", None  # nobody has said how to read it


def leaves_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys; those of an empty table are the table's own."""
    yield from dotted(value)
    yield from ((key, None) for key, inner in value.items() if inner == {})


def check(run_dir: Path) -> None:
    """Everything is of a known kind; nothing raw lies anywhere but in folders that say so."""
    found = list(items(run_dir))
    kinds = {(file, key): kind_of(file, key) for file, key, _ in found}
    assert not [name for name, kind in kinds.items() if kind is None]
    assert set(kinds.values()) <= {RELEASED, PUBLIC, RAW, TIMING}
    for file, key, value in found:
        folder, inside, _ = file.partition("/")
        if inside:
            assert kinds[file, key] == RAW and (run_dir / folder / NOTE).exists()
        elif kinds[file, key] == RAW:
            assert value in (None, ""), (file, key, value)
    for name in RAW_FOLDERS:
        assert not (run_dir / name).exists() or "No epsilon covers it" in (run_dir / name / NOTE).read_text()


@pytest.mark.parametrize("name", JOBS)
def test_everything_is_of_a_known_kind(name: str, digits: Path, tmp_path: Path, launch: Any) -> None:
    job = checked(private(digits, **JOBS[name]))
    run(replace(job, rounds=3), Solo(), tmp_path / "run")
    check(tmp_path / "run")
    run(job, Solo(), tmp_path / "run", resume=True)
    check(tmp_path / "run")
    assert read_json(tmp_path / "run" / "run.json")["private"] is True
    text = launch(None, "show", tmp_path / "run").out
    (line,) = (line for line in text.splitlines() if line.startswith("epsilon does not cover"))
    assert "raw data in checkpoint/" in line and line.endswith("times") and "measured" not in line


def test_what_is_measured_without_noise_is_said(digits: Path, tmp_path: Path, launch: Any) -> None:
    run(checked(private(digits, record={"released_only": False})), Solo(), tmp_path / "run")
    text = launch(None, "show", tmp_path / "run").out
    (line,) = (line for line in text.splitlines() if line.startswith("epsilon does not cover"))
    assert "measured without noise: train_loss" in line and "; test rows, of which test_accuracy" in line
    history = tmp_path / "run" / "history.csv"  # a method may name a column of its own as it likes
    head, *rows = history.read_text().splitlines()
    history.write_text("\n".join([f"{head},epsilon_of_rows", *(f"{row},1" for row in rows), ""]))
    (tmp_path / "run" / "run.json").unlink()  # which knows the file's digest
    assert "epsilon_of_rows" in "; ".join(uncovered(tmp_path / "run"))


@pytest.mark.launch
def test_everything_is_of_a_known_kind_on_several_ranks(
    digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    path = write_job(tmp_path / "job.toml", private(digits, **JOBS["coins"]))
    assert launch(2, "run", path, "--out", tmp_path / "run").code == 0
    check(tmp_path / "run")


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [0, 2])
def test_an_error_tells_its_class_alone(
    ranks: int, digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    """Its text names a client and a value; it is on the standard error."""
    given = private(digits, aggregation={"bounds": {"changes.value": 2.0**-30}})  # of what has noise already
    ended = launch(ranks, "run", write_job(tmp_path / "job.toml", given), "--out", tmp_path / "run")
    assert ended.code == 68 and "client" in ended.text
    failure = (tmp_path / "run" / "failure.txt").read_text()
    assert "NumericalError (exit 68)" in failure and "client" not in failure
    check(tmp_path / "run")


# --- who took part -----------------------------------------------------------------------------------------------


def told(run_dir: Path) -> Any:
    """All that is neither a release nor a time, of a run of any draws."""
    own = ("host", "process.", "commit", "job.toml", "slurm_job")
    return [
        (file, key, repr(value))
        for file, key, value in items(run_dir)
        if kind_of(file, key) == PUBLIC and not key.startswith(own)
    ]


@pytest.mark.parametrize("name", SECRET)
def test_nothing_public_tells_who_took_part(name: str, digits: Path, tmp_path: Path) -> None:
    """Two runs of one job draw other clients, and write the same bytes, counts and times of the network."""
    job = checked(private(digits, **JOBS[name] | {"participation": {}}))
    for number in (1, 2):
        run(job, Solo(), tmp_path / str(number))
    first, second = (told(tmp_path / number) for number in ("1", "2"))
    assert first == second
    history = read_history(tmp_path / "1")
    each = np.diff(history["up_bytes"])
    assert (each == each[0]).all() and each[0] > 0


# --- what is refused ---------------------------------------------------------------------------------------------

REFUSED = [
    ({"privacy": COINS, "participation": LEAVING}, "a round would be void depending on how many take part"),
    ({"privacy": COINS, "participation": {"max_dropouts": 1}}, "leave both out"),
    ({"privacy": COINS, "aggregation": {"security": "masked"}}, "set min_clients = 1"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=["leaving", "room for leaving", "small groups"])
def test_what_would_tell_how_many_take_part(changes: dict[str, Any], said: str, digits: Path) -> None:
    with pytest.raises(UsageError, match=said):
        prepare(checked(private(digits, **changes)), Solo())
    fixed = changes | {"privacy": CENTRAL}
    if "sum" in changes:
        fixed |= {"participation": {"clients_per_round": 6}}
    prepare(checked(private(digits, **fixed)), Solo())
