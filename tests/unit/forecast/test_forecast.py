"""`mpifed check JOB.toml` against what runs then do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ended import run
from forecasts import forecast
from jobs_in_python import fedavg, job_table
from lengths import long_unless
from written_files import read_json

from mpifed.comm.placement import place
from mpifed.core.errors import DataError, UsageError
from mpifed.forecast.job import forecast_text
from mpifed.shards import store
from mpifed.testing import Alone, Job

SEALED = ["masked", "encrypted"]
OWN = '''
from dataclasses import replace

from mpifed.algorithms.fedavg import FedAvg
from mpifed.core.exchange import ToClients


class Telling(FedAvg):
    """FedAvg whose clients receive the sum, after a set-up whose sum the server receives."""

    @property
    def setup(self):
        return (replace(super().exchanges[0], name="start"),)

    @property
    def exchanges(self):
        one = super().exchanges[0]
        return (ToClients(one.name, one.fields, one.ask, one.answer, lambda clients, total, block, now: clients),)
'''


@pytest.fixture
def job(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> Path:
    tables = {"model": {"name": "mlp", "bias": False, "hidden": 5}, "record": {"evaluate_every": 3}}
    return write_job(tmp_path / "job.toml", job_table(digits, name="t", rounds=7, algorithm=fedavg(20), **tables))


def ran(job: Path, changes: tuple[str, ...], out: Path) -> dict[str, Any]:
    result = run(Job.read(job, changes), Alone(), out)
    assert result is not None
    return result.columns


def check_bytes(found: dict[str, Any], out: Path) -> None:
    """Those that a run has counted: in all, and by exchange."""
    counted = read_json(out / "run.json")
    assert (found["up_bytes"], found["down_bytes"]) == (counted["up_bytes"], counted["down_bytes"])
    exchanges = {one["name"]: one for one in found["exchanges"]}
    times = {name: found["rounds"] for name in exchanges}
    for one in [*found["setup"], {"name": "keys", **found["keys"]}]:
        exchanges[one["name"]], times[one["name"]] = one, one.get("times", 1)
    assert exchanges.keys() == counted["exchanges"].keys()
    for name, cost in counted["exchanges"].items():
        for key in ("up_bytes", "down_bytes"):
            assert exchanges[name][key] * times[name] == cost[key], (name, key)


@pytest.mark.parametrize(
    ("rule", "channel"),
    long_unless(
        lambda *one: one != ("damped", "encrypted"), itertools.product(["damped", "line-search"], ["plain", *SEALED])
    ),
)
def test_bytes_of_cells(rule: str, channel: str, patchwork: Path, write_job: Any, tmp_path: Path) -> None:
    """Set-up exchanges that are played again and again, rows that several clients hold, X'alpha in the clear."""
    job = {
        "name": "cells", "rounds": 3, "data": {"path": str(patchwork), "block": 2},
        "model": {"name": "hinge", "bias": False, "l2": 5e-3},
        "algorithm": {"name": "hyfdca", "rule": rule, "primal": "clear"},
        "aggregation": {"security": channel}, "record": {"evaluate_every": 0},
    }  # fmt: skip
    path = write_job(tmp_path / "job.toml", job)
    found = forecast(path, (), ranks=1)
    ran(path, (), tmp_path / "run")
    check_bytes(found, tmp_path / "run")
    assert [one["times"] for one in found["setup"]] == ([20, 20] if rule == "damped" else [1])
    assert [one["security"] for one in found["exchanges"]] == [channel, channel, "plain"]
    assert forecast_text(found).count("Once, before round 0, 20 times") == (2 if rule == "damped" else 0)


@pytest.mark.parametrize("numbers", ["exact", "exact-blocks"])
@pytest.mark.parametrize(
    "change", ["rounds=7", "participation.clients_per_round=3", "algorithm.local_epochs=2", "compute.dtype=float64"]
)
def test_the_bytes_are_those_of_the_run(job: Path, tmp_path: Path, numbers: str, change: str) -> None:
    changes = (f"aggregation.arithmetic={numbers}", change)
    found, columns = forecast(job, changes, ranks=3), ran(job, changes, tmp_path / "run")
    assert (found["up_bytes"], found["down_bytes"]) == (columns["up_bytes"], columns["down_bytes"])
    (exchange,), present = found["exchanges"], found["clients_per_round"]
    assert found["up_bytes_per_round"] == present * exchange["upload_bytes"]
    assert found["down_bytes_per_round"] == present * exchange["broadcast_bytes"]


@pytest.mark.parametrize(
    ("channel", "change"),
    long_unless(
        lambda channel, change: channel != "encrypted" or "max_dropouts" in change,
        itertools.product(
            ["plain", *SEALED],
            ["server.dedicated=false", "participation.clients_per_round=4", "participation.max_dropouts=2"],
        ),
    ),
)
def test_the_bytes_of_every_channel(job: Path, tmp_path: Path, channel: str, change: str) -> None:
    changes = (f"aggregation.security={channel}", change)
    found = forecast(job, changes, ranks=3)
    ran(job, changes, tmp_path / "run")
    check_bytes(found, tmp_path / "run")
    sealed = channel != "plain"
    assert (found["keys"]["up_bytes"] > 0) == sealed


def test_rounds_that_are_void(job: Path) -> None:
    found = forecast(job, ("participation.max_dropouts=1", "participation.dropout_rate=0.1"), ranks=1)
    assert found["void_chance"] == pytest.approx(1 - 0.9**8 - 8 * 0.1 * 0.9**7)
    assert "if no client drops out; with a dropout_rate of 0.1, 18.69% of rounds are void" in forecast_text(found)
    assert "nobody leaves" not in forecast_text(forecast(job, (), ranks=1))


@pytest.mark.parametrize(
    ("channel", "most"),
    long_unless(lambda *one: one != ("encrypted", 0), itertools.product(["plain", *SEALED], [0, 2])),
)
def test_a_set_up_and_clients_that_hear(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str, most: int
) -> None:
    (tmp_path / "telling.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    changes = ("algorithm.name=telling:Telling", "record.evaluate_every=7", f"aggregation.security={channel}")
    changes += (f"participation.max_dropouts={most}",)
    found = forecast(job, changes, ranks=2)
    ran(job, changes, tmp_path / "run")
    assert [one["name"] for one in found["setup"]] == ["start"]
    assert [one["receives"] for part in ("setup", "exchanges") for one in found[part]] == ["server", "clients"]
    check_bytes(found, tmp_path / "run")
    text = forecast_text(found)
    assert 'Once, before round 0: "start", the server receives' in text
    assert 'Every round: "changes", the participating clients receive' in text


SSCA = '{name = "ssca", batch_size = 20, rho = [0.9, 0.3], gamma = [0.9, 0.35], slack_cost = 10.0, EXTRA}'
NO_STEPS = "client_optimizer={}"  # of SSCA
GROUP = 'constraint=[{name = "loss", classes = [0, 7], limit = 2.0}]'


ALLOW = (
    'aggregation.allow=["slopes", "shares", "gradients", "all-losses", "certificate-slopes", "certificate-gradients"]'
)


HEARS = {
    "label_holder = 1": [["server"], ["client 1", "clients", "server"]],
    'variance_reduction = "recursive"': [["server"], ["clients", "server"]],
}
DATA, CHANNELS = ("sides", "scattered"), ("plain", *SEALED)


def every_pair(extra: str, data: str, channel: str) -> bool:
    """Of all triples half, in which there is every pair."""
    return (list(HEARS).index(extra) + DATA.index(data) + CHANNELS.index(channel)) % 2 == 0


@pytest.mark.parametrize(
    ("extra", "data", "channel"), long_unless(every_pair, itertools.product(HEARS, DATA, CHANNELS))
)
def test_data_split_by_columns(
    job: Path, tmp_path: Path, request: pytest.FixtureRequest, extra: str, data: str, channel: str
) -> None:
    path = request.getfixturevalue(data)
    allow = ALLOW if "label_holder" in extra else ALLOW.replace('"slopes", ', "").replace('"certificate-slopes", ', "")
    changes = (
        f"data.path={path}", f"algorithm={SSCA.replace('EXTRA', extra)}", NO_STEPS, GROUP, "rounds=3",
        f"aggregation.security={channel}",
        allow,
    )  # fmt: skip
    found = forecast(job, changes, ranks=3)
    ran(job, changes, tmp_path / "run")
    check_bytes(found, tmp_path / "run")
    assert [[one["receives"] for one in found[part]] for part in ("setup", "exchanges")] == HEARS[extra]
    question = {field["field"]: field for field in found["exchanges"][0]["broadcast"]}
    assert question["model.first"]["of"] == "own columns" and "of" not in question["rows"]
    answer = {field["field"]: field.get("of") for field in found["exchanges"][-1]["upload"]}
    sender = {"label_holder = 1": "client 1"}.get(extra, "client 0")
    assert answer == {
        "statistics.gradient.first": "own columns",
        "statistics.gradient.head.second": sender,
        "statistics.level": sender,
    }
    assert "of `own columns` its own part" in forecast_text(found)


def test_constraints_and_several_rounds_of_messages(job: Path, tmp_path: Path) -> None:
    algorithm = '{name = "ssca", batch_size = 20, rho = [0.9], gamma = [0.9], slack_cost = 10.0}'
    changes = (f"algorithm={algorithm}", NO_STEPS, GROUP, "rounds=3")
    found, columns = forecast(job, changes, ranks=3), ran(job, changes, tmp_path / "run")
    assert (found["up_bytes"], found["down_bytes"]) == (columns["up_bytes"], columns["down_bytes"])
    assert [one["name"] for one in found["setup"]] == ["shares"]
    assert any("convergence is proven" in line for line in found["warnings"])
    assert "Warning     [algorithm] rho" in forecast_text(found)


def test_fields_say_how_they_are_added(job: Path) -> None:
    bounds = '{"changes.weight" = 64.0, "losses.tally.total" = 1e15}'
    found = forecast(job, (f"aggregation.bounds={bounds}",), ranks=1)
    answer = {field["field"]: field for field in found["exchanges"][0]["upload"]}
    assert answer["weight"] == {
        "field": "weight", "shape": [], "dtype": "int64", "bytes": 8, "scale": 2.0**-40, "bound": 64.0, "limbs": 1,
        "bits": 64,
    }  # fmt: skip
    assert answer["value.first"]["scale"] == 2.0**-39 and answer["value.first"]["shape"] == [64, 5]
    losses, certificate = found["measures"]
    assert [(field["field"], field["limbs"]) for field in losses["upload"]] == [
        ("tally.total", 2), ("tally.square", 2), ("tally.count", 1),
    ]  # fmt: skip
    assert losses["upload_bytes"] == 8 * 5
    assert certificate["name"] == "certificate"
    assert {field["field"] for field in certificate["upload"]} >= {"gradient.first", "gradient.head.second"}


def test_no_shard_is_opened_and_mpi_not_loaded(
    job: Path, launch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.ShardFolder, "shard", lambda *_: pytest.fail("opens a shard"))
    monkeypatch.setattr(store.ShardFolder, "test_shard", lambda *_: pytest.fail("opens the test data"))
    forecast(job, (), ranks=2)
    program = f"import sys; from mpifed.cli import main; main(['check', {str(job)!r}], standalone_mode=False)"
    ended = launch(0, program=("-c", f"{program}; print('mpi4py' in sys.modules)"))
    assert ended.code == 0 and ended.out.endswith("False\n"), ended.text


@pytest.mark.parametrize("data", ["skewed", "regression", "classes"])
def test_any_data_can_be_checked(job: Path, data: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(data)
    objective = "least-squares" if data == "regression" else "softmax"
    changes = (f"data.path={path}", f'model={{name = "{objective}"}}', "algorithm.batch_size=1")
    found = forecast(job, changes, ranks=3)
    counts = store.open_federation(path).counts
    placement = place(counts, 1, 3, dedicated=False)
    hosted = [[client for block in placement.of(rank) for client in block] for rank in range(3)]
    assert [one["clients"] for one in found["placement"]] == [len(clients) for clients in hosted]
    assert [one["rows"] for one in found["placement"]] == [int(counts[clients].sum()) for clients in hosted]


def test_sparse_data_can_be_checked(job: Path, tmp_path: Path, launch: Callable[..., Any]) -> None:
    lines = [f"{row % 2} {1 + row}:0.5 {40 + row}:1.5\n" for row in range(40)]
    (tmp_path / "rows.svm").write_text("".join(lines))
    made = launch(
        0, "data", "svmlight", tmp_path / "rows.svm", "--sparse", "--split", "rows", "--clients", 4,
        "--out", tmp_path / "svm",
    )  # fmt: skip
    assert made.code == 0, made.text
    found = forecast(job, (f"data.path={tmp_path / 'svm'}", "algorithm.batch_size=3"), ranks=2)
    assert found["exchanges"][0]["upload"][0]["shape"] == [79, 5]


def test_memory_holds_the_data_up_to_the_limit(job: Path, digits: Path) -> None:
    data = store.open_federation(digits)
    numbers = 2048 * data.clients + 8 * data.counts.sum()  # objects, labels
    found = forecast(job, ("record.evaluate_every=0",), ranks=1)
    assert found["data_bytes"] == data.nbytes.sum() + numbers and found["measures"] == []
    assert forecast(job, ("record.evaluate_every=0", "data.memory_gib=0"), ranks=1)["data_bytes"] == numbers


def test_a_dedicated_server_and_idle_ranks(job: Path) -> None:
    found = forecast(job, ("server.dedicated=true",), ranks=11)
    assert [one["clients"] for one in found["placement"]] == [0] + [1] * 8 + [0] * 2
    assert "8 ranks with 1, 3 ranks with none; rank 0, the server, with none" in forecast_text(found)


def test_a_sweep_shows_its_first_point(job: Path) -> None:
    found = forecast(job, ('sweep={"model.hidden" = [3, 9], seeds = 4}',), ranks=2)
    assert found["points"] == 8 and found["exchanges"][0]["upload"][0]["shape"] == [64, 3]
    assert forecast_text(found).startswith("A sweep of 8 points")


@pytest.mark.parametrize("channel", ["plain", *SEALED])
def test_the_text_is_narrow_and_the_object_is_json(job: Path, channel: str) -> None:
    found = forecast(
        job, ('aggregation.bounds={"losses.tally.total" = 1e15}', f"aggregation.security={channel}"), ranks=4
    )
    assert json.loads(json.dumps(found)) == found
    assert max(map(len, forecast_text(found).splitlines())) <= 100


def test_what_the_plain_channel_shows(job: Path) -> None:
    text = forecast_text(forecast(job, (), ranks=4))
    assert "rank 0 sees every rank's partial sum" in text and "evaluation reveals" in text
    alone = forecast_text(forecast(job, ("record.evaluate_every=0",), ranks=1))
    assert "partial sum" not in alone and "evaluation reveals" not in alone


def test_what_the_run_would_refuse_is_refused(job: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder; make it with"):
        forecast(job, (f"data.path={tmp_path / 'nothing'}",), ranks=1)
    with pytest.raises(UsageError, match='"x": no such field'):
        forecast(job, ('aggregation.bounds={"x" = 1.0}',), ranks=1)
    with pytest.raises(UsageError, match="clients_per_round = 900: "):
        forecast(job, ("participation.clients_per_round=900",), ranks=1)
