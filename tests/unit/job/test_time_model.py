"""Simulated time: the model by hand, and that of runs against the accounts of their exchanges."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import SOFTMAX, checked, fedavg, job_table
from whole_runs import run
from written_files import read_json

from mpifed.files.history import read_history
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import summary
from mpifed.job.schema import SimulatedNetwork
from mpifed.job.time_model import KINDS, simulate
from mpifed.testing import Job, Solo

LINK = {"latency_s": 0.1, "up_bytes_per_s": 1000.0, "down_bytes_per_s": 4000.0}
# two plays with 3 clients, of whom the largest sends 100 values and is told 200
PLAIN = {
    "played": 2, "up_bytes": 4000, "down_bytes": 9000, "up_most": 1600, "down_most": 3200, "sealed_most": 200,
    "opened_most": 400, "up_clear": 0, "down_clear": 160, "added": 500, "crypto_s": 0.0, "answer_s": 0.25,
    "server_s": 0.125,
}  # fmt: skip
NOTHING = dict.fromkeys(PLAIN, 0)


def kinds(table: SimulatedNetwork, account: Mapping[str, float]) -> dict[str, float]:
    return simulate(table, {"one": account}, (), 3).rounds["one"]


def test_the_model_by_hand() -> None:
    """Published encryption takes 18.882 ms a value, 0.054 to add, 18.865 to open, in the plain channel too, and nothing
    of what was measured; that is shared by clients who work side by side.
    """
    found = kinds(SimulatedNetwork(**LINK, client_slowdown=8.0), PLAIN)
    assert tuple(found) == KINDS and found == {
        "compute": 0.25 * 8, "encryption": 0.0, "latency": 2 * 0.1,  # one round trip each time
        "transfer": 1600 / 1000 + 3200 / 4000, "server": 0.125,
    }  # fmt: skip
    sealed, in_the_clear = PLAIN | {"crypto_s": 5.0}, PLAIN | {"sealed_most": 0, "opened_most": 0}
    silent = sealed | {"up_most": 0, "sealed_most": 0, "added": 0}  # only opened: nothing to share
    times = 200 * 18.882e-3 + 500 * 0.054e-3 + 400 * 18.865e-3
    own = {"encrypt_s": 1.0, "decrypt_s": 0.0, "add_s": 0.0}
    for keys, account, expected in (
        ({"encryption": "published"}, PLAIN, times), ({"encryption": "published"}, sealed, times),
        ({"encryption": "published"}, in_the_clear, 0), ({"encryption": "published"} | own, PLAIN, 200),
        ({}, sealed, 5.0 * 200 / 500), ({"encryption": "none"}, sealed, 0), ({}, silent, 5.0),
    ):  # fmt: skip
        assert kinds(SimulatedNetwork(**LINK, **keys), account)["encryption"] == pytest.approx(expected)


def test_what_is_done_once_stands_apart() -> None:
    keys = NOTHING | {"up_bytes": 3000, "down_bytes": 6000, "crypto_s": 0.6}
    accounts = {"keys": keys, "power": PLAIN, "duals": PLAIN}
    found = simulate(SimulatedNetwork(**LINK), accounts, ("power",), 3)
    assert list(found.set_up) == ["keys", "power"] and list(found.rounds) == ["duals"]
    assert found.set_up["keys"] == {
        "compute": 0, "encryption": pytest.approx(0.2), "latency": 0.1, "transfer": 1000 / 1000 + 2000 / 4000,
        "server": 0,
    }  # fmt: skip
    assert found.total_s == pytest.approx(1.8 + 2 * (0.25 + 0.2 + 2.4 + 0.125))
    assert "keys" not in simulate(SimulatedNetwork(**LINK, encryption="published"), accounts, (), 3).set_up
    assert simulate(SimulatedNetwork(**LINK), {"keys": NOTHING}, (), 3) == ({}, {})


# --- of runs -----------------------------------------------------------------------------------------------------


# of FedAvg on the digits: a client sends 641 integers of 8 bytes, and is told a model of 640 floats and a number of 8
ROUND = 0.1 + 641 * 8 / 1000 + (640 * 4 + 8) / 4000


def job(folder: Path, rounds: int = 4, **changes: Any) -> Job:
    often = {"evaluate_every": 2, "checkpoint_every": 2}
    base = {"model": SOFTMAX | {"l2": 0.01}, "algorithm": fedavg(4, 0.2), "record": often, "simulated_network": LINK}
    return checked(job_table(folder, rounds=rounds, **base | changes))


@pytest.fixture
def microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which whatever is measured takes a microsecond, whoever else is on the machine."""
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-6 * next(ticks))


def sha256(out: Path) -> str:
    return model_sha256(read_model(out / "model.safetensors"))


@pytest.mark.usefixtures("microseconds")
def test_a_run_tells_its_simulated_time(digits: Path, tmp_path: Path, launch: Any) -> None:
    out = tmp_path / "run"
    run(job(digits, simulated_network=LINK | {"client_slowdown": 1e-9}), Solo(), out)
    history, found = read_history(out), read_json(out / "run.json")
    simulated = history["simulated_s"]
    assert simulated[0] == 0 and (np.diff(simulated) > 0).all()
    assert simulated[-1] == found["simulated_s"] == summary(out)["simulated_s"]
    (parts,) = found["simulated"]["rounds"].values()
    assert parts["latency"] == pytest.approx(4 * 0.1)
    assert parts["transfer"] == pytest.approx(4 * (ROUND - 0.1))
    assert parts["encryption"] == 0 and parts["server"] > 0
    assert 0 < parts["compute"] < 1e-6
    np.testing.assert_allclose(simulated, [0, 2 * ROUND, 4 * ROUND], rtol=1e-4)
    assert found["simulated"]["network"] == {
        "name": None, **LINK, "client_slowdown": 1e-9, "encryption": "as-run",
    }  # fmt: skip
    assert json.loads(launch(None, "show", out, "--json").out)["simulated"] == found["simulated"]
    text = launch(None, "show", out).out
    assert "simulated seconds" in text

    plain = tmp_path / "plain"
    run(checked({k: v for k, v in job(digits).table().items() if k != "simulated_network"}), Solo(), plain)
    assert sha256(plain) == sha256(out)
    assert "simulated_s" not in read_history(plain) and summary(plain)["simulated_s"] is None
    assert "simulated seconds" not in launch(None, "show", plain).out
