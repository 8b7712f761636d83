"""The same model, bit for bit, on any number of ranks: every algorithm, and many ways to run it."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jobs_in_python import as_in_a_file
from methods import SIZES
from registry import CASES, FEW, NAMES, Case, table

from mpifed.files.history import read_history
from mpifed.files.run_folder import summary

# Everything, all cases with and without a dedicated server, is long, on 2 ranks. In the quick tests there is one case
# of every second algorithm on 3, where there are no tables besides [algorithm] with a dedicated server; of the others
# there are masked sums there, see `test_every_channel.py`.
ALL_POINTS = [False, pytest.param(True, marks=pytest.mark.long)]
RANKS = [(3, False), pytest.param(2, True, marks=pytest.mark.long)]
DUAL = ("hyfdca", "bundle", "cocoa")
ROUNDS = 3
PROGRAM = Path(__file__).with_name("sweeps.py")
BLOCKS = {"aggregation": {"arithmetic": "exact-blocks"}}
BIASED = {"model": {"name": "mlp", "bias": True, "hidden": 6}}
ALL = [  # and sums of blocks, which are rounded whole, and networks with biases
    *CASES,
    Case("ssca-horizontal", {**SIZES, "start": "paper"}, BLOCKS),
    Case(
        "fedavg",
        {"batch_size": 7, "client_optimizer": {"learning_rate": {"initial": 0.5, "exponent": 0.1}}, "local_steps": 1},
        BLOCKS,
    ),
    Case("scaffold", {"batch_size": 7, "client_optimizer": {"learning_rate": 0.3}, "local_steps": 3}, BIASED),
    Case("ssca-vertical", SIZES, BIASED),
]
SOME = [*(CASES[NAMES.index(name)] for name in FEW[::2]), *ALL[len(CASES) :]]
UNPROMISED = ("elapsed_s", "seconds_per_round", "rss_bytes", "peak_rss_bytes")


class Sweep(NamedTuple):
    """The points of one sweep."""

    tables: str  # the same of sweeps whose cases have the same tables
    rows: list[dict[str, str]]  # of sweep.csv
    histories: list[dict[str, list[float]]]


def servers(case: Case, everything: bool) -> list[bool]:
    """Whether they are dedicated."""
    return [False, *([] if case.tables else [True])] if everything else [not case.tables]


def jobs(folders: dict[str, Path], everything: bool) -> dict[str, dict[str, Any]]:
    """Sweeps that together are everything; cases whose jobs differ in [algorithm] alone are in one sweep."""
    alike: dict[str, list[Case]] = {}
    for case in ALL if everything else SOME:
        alike.setdefault(json.dumps([case.split, case.everybody, case.tables]), []).append(case)
    found = {}
    for number, cases in enumerate(alike.values()):
        data = {"path": str(folders[cases[0].split]), "block": 3}
        job = table(Path(), {}, rounds=ROUNDS, record={"evaluate_every": ROUNDS, "checkpoint_every": 0}, data=data)
        some = {} if cases[0].everybody else {"clients_per_round": 8 if cases[0].split == "rows" else 5}
        job |= {"participation": some, **cases[0].tables}
        methods = [as_in_a_file({"algorithm": case.algorithm}) for case in cases]
        axes = {"methods": methods, "server": [{"dedicated": one} for one in servers(cases[0], everything)]}
        found[f"sweep-{number}"] = job | {"sweep": axes}
    return found


@pytest.fixture(scope="module")
def sweeps(
    skewed: Path, scattered: Path, halves: Path, patchwork: Path, launch: Callable[..., Any], write_job: Any,
    tmp_path_factory: Any,
) -> Any:  # fmt: skip
    """sweeps(ranks, everything): all points, or some, run by so many ranks in one launch."""
    folder = tmp_path_factory.mktemp("bits")
    data = {"rows": skewed, "columns": scattered, "halves": halves, "cells": patchwork}

    def of(out: Path) -> Sweep:
        with open(out / "sweep.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        read = (read_history(out / row["point"]) for row in rows)
        histories = [{name: v.tolist() for name, v in one.items() if name not in UNPROMISED} for one in read]
        return Sweep(out.name.split("-")[1], rows, histories)

    def sweeps(ranks: int, everything: bool) -> list[Sweep]:
        out = folder / f"on-{ranks}-{everything}"
        paths = [write_job(folder / f"{name}.toml", job) for name, job in jobs(data, everything).items()]
        if not out.exists():
            ended = launch(ranks, out, *paths, program=(str(PROGRAM),))
            assert ended.code == 0, ended.text
        return [of(out / path.stem) for path in paths]

    return sweeps


def promised(row: dict[str, str]) -> dict[str, str]:
    """What must not depend on ranks, of one run."""
    return {name: value for name, value in row.items() if name not in UNPROMISED}


def certificate(row: dict[str, str]) -> str:
    """The column of what is certified of a run, or of the objective where nothing is."""
    of_cells = {"hybrid-fedavg": "objective", "hyfem": "objective"} | dict.fromkeys(DUAL, "duality_gap")
    return of_cells.get(ast.literal_eval(row["algorithm"])["name"], "kkt_residual")


@pytest.mark.launch
@pytest.mark.parametrize(("ranks", "everything"), RANKS)
def test_same_bits_on_any_number_of_ranks(sweeps: Any, ranks: int, everything: bool) -> None:
    alone, cases = sweeps(0, everything), ALL if everything else SOME
    assert sum(len(sweep.rows) for sweep in alone) == sum(len(servers(case, everything)) for case in cases)
    for here, there in zip(sweeps(ranks, everything), alone, strict=True):
        assert all(len(row["model_sha256"]) == 64 and row["exit"] in ("0", "69") for row in there.rows)
        assert all(float(row[certificate(row)]) > 0 for row in there.rows)
        assert [promised(row) for row in here.rows] == [promised(row) for row in there.rows]
        # whole histories, as text, because a NaN is not equal to itself
        assert list(map(repr, here.histories)) == list(map(repr, there.histories))


@pytest.mark.launch
@pytest.mark.parametrize("everything", ALL_POINTS)
def test_settings_that_matter_change_the_bits_and_others_do_not(sweeps: Any, everything: bool) -> None:
    found: dict[tuple[str, ...], set[str]] = {}
    for sweep in sweeps(0, everything):
        for row in sweep.rows:
            found.setdefault((sweep.tables, method(row)), set()).add(row["model_sha256"])
    assert all(len(hashes) == 1 for hashes in found.values())  # a dedicated server changes nothing
    # who has the labels may change a last bit, or none: what is told of them is rounded
    differ: dict[tuple[str, ...], set[str]] = {}
    for (number, algorithm), hashes in found.items():
        differ.setdefault((number, without(algorithm, "label_holder")), set()).update(hashes)
    assert len(set.union(*differ.values())) == sum(map(len, differ.values()))


def method(row: dict[str, str]) -> str:
    """The tables of a method, as sweep.csv writes them."""
    tables = [row[name] for name in ("algorithm", "client_optimizer", "server_optimizer") if row.get(name)]
    return str({key: value for table in tables for key, value in ast.literal_eval(table).items()})


def without(algorithm: str, *keys: str) -> str:
    """An [algorithm] as sweep.csv writes it, less some keys."""
    return str({key: value for key, value in ast.literal_eval(algorithm).items() if key not in keys})


@pytest.mark.long
@pytest.mark.launch
def test_32_ranks_on_the_cores_of_one_machine(launch: Any, write_job: Any, tmp_path: Path) -> None:
    """The same bits; a segment of clients' states a rank, and little memory that is a rank's own."""
    made = launch(None, "data", "synthetic", "--split", "rows", "--clients", "40", "--out", tmp_path / "data")
    assert made.code == 0, made.text
    job = write_job(tmp_path / "job.toml", {
        "name": "many", "rounds": 2, "data": {"path": str(tmp_path / "data"), "block": 1},
        "model": {"name": "least-squares"},
        "algorithm": {"name": "scaffold", "batch_size": 2}, "client_optimizer": {"learning_rate": 0.1},
    })  # fmt: skip
    for ranks in (0, 32):
        ended = launch(ranks, "run", job, "--out", tmp_path / f"{ranks}", program=("-m", "mpifed"))
        assert ended.code == 0, ended.text
    alone, many = (summary(tmp_path / name) for name in ("0", "32"))
    assert many["model_sha256"] == alone["model_sha256"]
    files = [path.name for path in (tmp_path / "32").rglob("*") if path.is_file()]
    others = {"manifest.json", "server.states", *(path.name for path in (tmp_path / "0").iterdir())} - {"checkpoint"}
    assert set(files) - others == {f"clients-00000002-{rank:05d}.states" for rank in range(32)}
    assert json.loads((tmp_path / "32" / "run.json").read_text())["peak_rss_bytes"] < 160 * 2**20
