"""Methods for data split by columns: whose labels count, and data of one client or of many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ended import run
from jobs_in_python import checked
from methods import SIZES
from registry import CASES, Case, table

from mpifed.cli import main
from mpifed.comm.rounds import play
from mpifed.core.record import leaves
from mpifed.core.round import Round
from mpifed.run.evaluation import measure
from mpifed.run.setup import prepare
from mpifed.testing import Solo


@pytest.mark.parametrize("case", [case for case in CASES if "label_holder" in case.hyper], ids=str)
def test_only_the_holders_labels_matter(case: Case, scattered: Path) -> None:
    """Nor who holds them, nor who sends the head's gradient: in rounds, the set-up and all that is measured."""

    def played(algorithm: dict[str, Any], wrong: bool) -> tuple[Any, dict[str, Any]]:
        job = checked(table(scattered, algorithm, compute={"dtype": "float64"}, **case.tables))
        at = prepare(job, Solo())  # its labels are changed
        shards = [shard for block in at.ranks.blocks for shard in block.shards]
        for shard in shards:
            if wrong and shard.client != case.hyper["label_holder"]:
                shard.y = (shard.y + 1 + shard.client) % 10
        now = Round(-1, job.seed, np.ones(len(shards), dtype=bool))
        server, clients = play(at.algorithm.setup, at.server, at.clients, now, at.ranks)
        for t in range(3):
            now = now._replace(index=t)
            server, clients = play(at.algorithm.exchanges, server, clients, now, at.ranks)
        where = at.ranks.blocks, clients, now, at.ranks
        columns, _ = measure(at.algorithm.measures, at.algorithm, server, *where)
        return at.algorithm.model(server), columns

    expected, columns = played(case.algorithm, wrong=False)
    found, again = played(case.algorithm, wrong=True)
    assert again == columns
    for (_, one), (_, other) in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    everybody = {key: value for key, value in case.algorithm.items() if key != "label_holder"}
    found, again = played(everybody, wrong=False)
    for (_, one), (_, other) in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)  # what the holder tells is rounded
    assert again.keys() == columns.keys()
    for name, value in columns.items():
        assert again[name] == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-8)), name
    assert not np.array_equal(played(everybody, wrong=True)[0].first, expected.first)  # there they do matter


@pytest.mark.parametrize("name", ["ssca", "sgd"])
def test_data_split_by_columns_and_data_of_one_client_give_the_same(name: str, scattered: Path, tmp_path: Path) -> None:
    """Rounds are those of somebody who has all columns."""
    whole = tmp_path / "whole"
    made = CliRunner().invoke(main, ["data", "digits", "--split", "columns", "--clients", "1", "--out", str(whole)])
    assert made.exit_code == 0, made.output
    algorithm = {
        "ssca": {"name": "ssca", **SIZES, "slack_cost": 20.0},
        "sgd": {"name": "vertical-sgd", "batch_size": 7, "server_optimizer": {"learning_rate": 0.5}},
    }[name]
    tables = {"constraint": [{"name": "loss", "classes": [1, 2], "limit": 1.0}]} if name == "ssca" else {}
    found = []
    for number, folder in enumerate((whole, scattered)):
        job = table(folder, algorithm, compute={"dtype": "float64"}, **tables)
        found.append(run(checked(job), Solo(), tmp_path / str(number)))
    for (_, one), (_, other) in zip(leaves(found[0].model), leaves(found[1].model), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)  # sums are rounded to multiples of 2^-40
    for column in ("objective", "train_loss", "kkt_residual"):
        assert found[0].columns[column] == pytest.approx(found[1].columns[column], rel=1e-7)
