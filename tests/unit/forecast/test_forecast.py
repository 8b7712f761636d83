"""`mpifed check JOB.toml` against what runs then do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ended import run
from forecasts import forecast, forecast_text
from jobs_in_python import fedavg, job_table
from written_files import read_json

from mpifed.core.errors import DataError, UsageError
from mpifed.data import store
from mpifed.testing import Job, Solo


@pytest.fixture
def job(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> Path:
    tables = {"model": {"name": "mlp", "bias": False, "hidden": 5}, "record": {"evaluate_every": 3}}
    return write_job(tmp_path / "job.toml", job_table(digits, name="t", rounds=7, algorithm=fedavg(20), **tables))


def check_bytes(job: Path, changes: tuple[str, ...], found: dict[str, Any], out: Path) -> None:
    """Those that a run then counts: in all, and by exchange."""
    run(Job.read(job, changes), Solo(), out)
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
    ("rule", "channel"), [("damped", "encrypted"), pytest.param("line-search", "masked", marks=pytest.mark.long)]
)
def test_bytes_of_cells(rule: str, channel: str, patchwork: Path, write_job: Any, tmp_path: Path) -> None:
    """Set-up exchanges that are played again and again, rows that several clients hold, X'alpha in the clear."""
    job = job_table(
        patchwork, data={"path": str(patchwork), "block": 2}, model={"name": "hinge", "bias": False, "l2": 5e-3},
        algorithm={"name": "hyfdca", "rule": rule, "primal": "clear"}, aggregation={"security": channel},
        record={"evaluate_every": 0},
    )  # fmt: skip
    path = write_job(tmp_path / "job.toml", job)
    found = forecast(path, (), ranks=1)
    check_bytes(path, (), found, tmp_path / "run")
    assert [one["times"] for one in found["setup"]] == ([20, 20] if rule == "damped" else [1])
    assert [one["security"] for one in found["exchanges"]] == [channel, channel, "plain"]
    assert forecast_text(path, (), ranks=1).count("Once, before round 0, 20 times") == (2 if rule == "damped" else 0)


# of every algorithm: tests/laws/test_bytes_before.py
@pytest.mark.parametrize("channel", ["plain", "masked", pytest.param("encrypted", marks=pytest.mark.long)])
@pytest.mark.parametrize("change", ["server.dedicated=false", "participation.max_dropouts=2"])
def test_the_bytes_of_every_channel(job: Path, tmp_path: Path, channel: str, change: str) -> None:
    changes = (f"aggregation.security={channel}", change)
    found = forecast(job, changes, ranks=3)
    check_bytes(job, changes, found, tmp_path / "run")
    assert (found["keys"]["up_bytes"] > 0) == (channel != "plain")


def test_memory_has_its_parts(job: Path, digits: Path) -> None:
    """Against runs: tests/laws/test_memory.py."""
    data = store.open_federation(digits)
    numbers = 2048 * data.clients + 8 * data.counts.sum()  # objects, labels
    found = forecast(job, ("record.evaluate_every=0",), ranks=1)
    memory = found["memory"]
    assert memory["data"] == data.nbytes().sum() + numbers and found["measures"] == []
    assert found["memory_bytes"] == sum(memory.values()) and memory["states"] == memory["evaluation"] == 0
    assert forecast(job, ("record.evaluate_every=0", "data.memory_gib=0"), ranks=1)["memory"]["data"] == numbers
    states = "algorithm.name=scaffold"
    kept, less = (forecast(job, (states, *more), ranks=1)["memory"] for more in ((), ("data.state_gib=1e-6",)))
    assert kept["states"] == data.clients * 4 * (64 * 5 + 5 * 10) and less["states"] == 1073


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_few_rounds_are_timed_and_nothing_is_kept(
    ranks: int | None, digits: Path, write_job: Callable[..., Path], launch: Callable[..., Any], here: Path
) -> None:
    """Also where a limit is not met yet."""
    limited = {"minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 1e-3}]}
    table = job_table(digits, algorithm={"name": "ssca", "batch_size": 4, "tau": 0.1}, rounds=7, **limited)
    ended = launch(ranks, "check", write_job(here / "limited.toml", table), "--time", "--json", cwd=here)
    assert ended.code == 0, ended.text
    found = json.loads(ended.out)
    assert found["ranks"] == (ranks or 1)
    assert min(found["time"][name] for name in ("seconds_per_round", "beside_s", "peak_rss_bytes")) > 0
    assert [*(here / "runs").iterdir()] == []
    ended = launch(None, "check", here / "limited.toml", "--time", "--ranks", "2")
    assert ended.code == 2 and "--ranks does not go with --time" in ended.text


def test_what_the_run_would_refuse_is_refused(job: Path, tmp_path: Path) -> None:
    for change, error, said in (
        (f"data.path={tmp_path / 'nothing'}", DataError, "no such folder; make it with"),
        ('aggregation.bounds={"x" = 1.0}', UsageError, '"x": no such field'),
        ("participation.clients_per_round=900", UsageError, "clients_per_round = 900: "),
    ):
        with pytest.raises(error, match=said):
            forecast(job, (change,), ranks=1)


def test_who_learns_what_as_data(job: Path, patches: Path, sides: Path) -> None:
    """The words: tests/unit/printed.txt."""
    cells = 'algorithm={name = "hyfdca", rule = "damped", primal = "clear"}', "client_optimizer={}"
    changes = (f"data.path={patches}", *cells, 'model={name = "hinge", l2 = 5e-3}', "aggregation.security=masked")
    learns = {one["name"]: one["learns"] for one in forecast(job, changes, 4)["exchanges"]}
    held = {"server": "nothing", "clients": "of each of their rows the sum over its holders (3)"}  # 2 x 3 clients
    in_the_clear = {"server": "every upload, in the clear", "clients": "nothing"}
    assert learns == {"products": held, "duals": held, "primal": in_the_clear}
    some = ("aggregation.security=masked", "participation.clients_per_round=3")
    changed = {"server": "the sum of 3 uploads", "clients": "nothing"}
    assert forecast(job, some, 4)["exchanges"][0]["learns"] == changed
    leaving = ("participation.max_dropouts=2", "participation.dropout_rate=0.1", "aggregation.min_clients=4")
    learns = forecast(job, ("aggregation.security=masked", *leaving), 4)["exchanges"][0]["learns"]
    assert learns["server"] == "the sum of 6 to 8 uploads"
    vertical = 'algorithm={name = "ssca", batch_size = 20, rho = [0.9, 0.3], gamma = [0.9, 0.35], label_holder = 1}'
    changes = (f"data.path={sides}", vertical, "client_optimizer={}", "aggregation.security=masked")
    allow = 'aggregation.allow=["slopes", "gradients", "certificate-slopes", "certificate-gradients", "all-losses"]'
    learns = {one["name"]: one["learns"] for one in forecast(job, (*changes, allow), 4)["exchanges"]}
    assert learns["scores"] == {"server": "nothing", "client 1 alone": "the sum of 5 uploads"}
    assert learns["slopes"] == {"server": "nothing", "clients": "single clients' own slopes"}


def test_the_smallest_client_decides_the_noise(
    make_data: Callable[..., Path], write_job: Callable[..., Path], tmp_path: Path
) -> None:
    """Its records are drawn most often, and all add the noise that covers them."""
    folder = make_data(
        tmp_path / "data", *["digits", "--split", "rows", "--clients", "5", "--skew", "power:1", "--scale", "unit-rows"]
    )
    private = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-4}
    text = job_table(folder, name="t", rounds=2, algorithm=fedavg(20), privacy=private)
    counts = store.open_federation(folder).counts
    said = f"rate from .*, that of client {counts.argmin()}, whose {counts.min()} rows decide all noise"
    told = forecast_text(write_job(tmp_path / "job.toml", text), (), ranks=1)
    assert re.search(said, " ".join(told.split()))
