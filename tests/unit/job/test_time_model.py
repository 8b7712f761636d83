"""Simulated time: the model by hand, and that of runs against the accounts of their exchanges."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from jobs_in_python import SOFTMAX, checked, fedavg, job_table
from whole_runs import run
from written_files import read_json

from mpifed.core.errors import Interrupted, UsageError
from mpifed.files.history import read_history
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import summary
from mpifed.job.schema import SimulatedNetworkTable
from mpifed.job.time_model import KINDS, PRESETS, described, figures, simulate
from mpifed.results.costs import simulated_lines
from mpifed.results.show import run_summary, run_text
from mpifed.testing import Alone, Job

LINK = {"latency_s": 0.1, "up_bytes_per_s": 1000.0, "down_bytes_per_s": 4000.0}
# two plays with 3 clients, of whom the largest sends 100 values and is told 200
PLAIN = {
    "played": 2, "up_bytes": 4000, "down_bytes": 9000, "up_most": 1600, "down_most": 3200, "sealed_most": 200,
    "opened_most": 400, "up_clear": 0, "down_clear": 160, "added": 500, "crypto_s": 0.0, "answer_s": 0.25,
    "server_s": 0.125,
}  # fmt: skip
NOTHING = dict.fromkeys(PLAIN, 0)


def kinds(table: SimulatedNetworkTable, account: Mapping[str, float]) -> dict[str, float]:
    return simulate(table, {"one": account}, (), 3).rounds["one"]


def test_the_model_by_hand() -> None:
    found = kinds(SimulatedNetworkTable(**LINK, client_slowdown=8.0), PLAIN)
    assert found == {
        "compute": 0.25 * 8,
        "encryption": 0.0,
        "latency": 2 * 0.1,  # one round trip each time
        "transfer": 1600 / 1000 + 3200 / 4000,
        "server": 0.125,
    }
    assert tuple(found) == KINDS


def test_where_nobody_answers_there_is_no_round_trip() -> None:
    """What the clients are told goes with the next question."""
    found = kinds(SimulatedNetworkTable(**LINK), PLAIN | {"up_most": 0})
    assert found["latency"] == 0 and found["transfer"] == 3200 / 4000


def test_published_times_of_encryption() -> None:
    """In the plain channel too: sealed at 18.882 ms a value, added at 0.054, opened at 18.865."""
    table = SimulatedNetworkTable(**LINK, encryption="published")
    assert kinds(table, PLAIN)["encryption"] == pytest.approx(200 * 18.882e-3 + 500 * 0.054e-3 + 400 * 18.865e-3)
    assert kinds(table, PLAIN | {"crypto_s": 9.0}) == kinds(table, PLAIN)  # and nothing of what was measured
    in_the_clear = PLAIN | {"sealed_most": 0, "opened_most": 0}
    assert kinds(table, in_the_clear)["encryption"] == 0
    own = SimulatedNetworkTable(**LINK, encryption="published", encrypt_s=1.0, decrypt_s=0.0, add_s=0.0)
    assert kinds(own, PLAIN)["encryption"] == 200


def test_published_bytes_of_encryption() -> None:
    """512 a value by default; questions, and what is opened for the server, stay as they are."""
    table = SimulatedNetworkTable(**LINK, encryption="published")
    assert kinds(table, PLAIN)["transfer"] == 200 * 512 / 1000 + (400 * 512 + 160) / 4000
    opened_for_the_server = PLAIN | {"up_clear": 800}
    assert kinds(table, opened_for_the_server)["transfer"] == (200 * 512 + 800) / 1000 + (400 * 512 + 160) / 4000
    encrypted = PLAIN | {"up_most": 524_288, "down_most": 262_144, "crypto_s": 9.0}  # bytes of another scheme
    assert kinds(table, encrypted) == kinds(table, PLAIN)
    in_the_clear = PLAIN | {"sealed_most": 0, "opened_most": 0}
    assert kinds(table, in_the_clear)["transfer"] == 1600 / 1000 + 3200 / 4000
    packed = SimulatedNetworkTable(**LINK, encryption="published", ciphertext_bytes=1000, ciphertext_values=64)
    once = PLAIN | {"played": 2}  # messages of 100 and 200 values: whole ciphertexts, two and four
    assert kinds(packed, once)["transfer"] == 4 * 1000 / 1000 + (8 * 1000 + 160) / 4000
    assert kinds(packed, once)["encryption"] == pytest.approx(
        4 * 64 * 0.018882 + 8 * 64 * 0.018865 + once["added"] * 0.000054
    )
    small = SimulatedNetworkTable(**LINK, encryption="published", ciphertext_bytes=2.5)
    assert kinds(small, PLAIN)["transfer"] == 200 * 2.5 / 1000 + (400 * 2.5 + 160) / 4000
    for encryption in ("as-run", "none"):
        found = kinds(SimulatedNetworkTable(**LINK, encryption=encryption, ciphertext_bytes=2.5), PLAIN)
        assert found["transfer"] == 1600 / 1000 + 3200 / 4000


def test_an_iteration_of_hyfdca_on_mnist_takes_the_papers_hours() -> None:
    """60,000 duals and as many inner products: each is sealed and opened by the client who holds all the rows."""
    values = 60_000
    once = PLAIN | {"sealed_most": values, "opened_most": values, "added": 4 * values}
    table = SimulatedNetworkTable(name="broadband", encryption="published")
    found = simulate(table, {"scores": once, "duals": once, "weights": NOTHING}, (), 4)
    seconds = sum(one["encryption"] for one in found.rounds.values())
    assert seconds == pytest.approx(2 * values * (0.018882 + 0.018865 + 4 * 0.000054))
    assert 75 < seconds / 60 < 76


def test_measured_cryptography_is_shared_by_clients_who_work_side_by_side() -> None:
    sealed = PLAIN | {"crypto_s": 5.0}
    assert kinds(SimulatedNetworkTable(**LINK), sealed)["encryption"] == 5.0 * 200 / 500
    assert kinds(SimulatedNetworkTable(**LINK, encryption="none"), sealed)["encryption"] == 0
    silent = sealed | {"up_most": 0, "sealed_most": 0, "added": 0}  # only opened: nothing to share
    assert kinds(SimulatedNetworkTable(**LINK), silent)["encryption"] == 5.0


def test_what_is_done_once_stands_apart() -> None:
    keys = NOTHING | {"up_bytes": 3000, "down_bytes": 6000, "crypto_s": 0.6}
    accounts = {"keys": keys, "power": PLAIN, "duals": PLAIN}
    found = simulate(SimulatedNetworkTable(**LINK), accounts, ("power",), 3)
    assert list(found.set_up) == ["keys", "power"] and list(found.rounds) == ["duals"]
    assert found.set_up["keys"] == {
        "compute": 0, "encryption": pytest.approx(0.2), "latency": 0.1, "transfer": 1000 / 1000 + 2000 / 4000,
        "server": 0,
    }  # fmt: skip
    assert found.total_s == pytest.approx(1.8 + 2 * (0.25 + 0.2 + 2.4 + 0.125))
    assert "keys" not in simulate(SimulatedNetworkTable(**LINK, encryption="published"), accounts, (), 3).set_up
    assert simulate(SimulatedNetworkTable(**LINK), {"keys": NOTHING}, (), 3) == ({}, {})


def test_it_is_linear_in_the_accounts() -> None:
    rng = np.random.default_rng(0)
    table = SimulatedNetworkTable(name="lte", encryption="published", client_slowdown=3.0)
    one, other = ({name: float(rng.integers(1, 1000)) for name in PLAIN} for _ in range(2))
    both = {name: one[name] + other[name] for name in PLAIN}
    total = sum(sum(kinds(table, account).values()) for account in (one, other))
    assert sum(kinds(table, both).values()) == pytest.approx(total)


def test_named_networks() -> None:
    annotated = get_args(SimulatedNetworkTable.model_fields["name"].annotation)[0]
    assert get_args(annotated) == tuple(PRESETS)
    assert figures(SimulatedNetworkTable(name="lte")) == {  # 60.6 ms, 6.7 and 21.1 Mbit/s
        "latency_s": pytest.approx(0.0606), "up_bytes_per_s": 837_500, "down_bytes_per_s": 2_637_500,
    }  # fmt: skip
    assert figures(SimulatedNetworkTable(name="lte", latency_s=0.0))["latency_s"] == 0  # one's own goes before
    assert all(preset.source and preset.down_mbit_per_s >= preset.up_mbit_per_s for preset in PRESETS.values())
    latencies = [preset.latency_ms for preset in PRESETS.values()]
    assert min(latencies) == PRESETS["data-center"].latency_ms and max(latencies) == PRESETS["satellite-geo"].latency_ms


def test_the_page_has_their_figures() -> None:
    text = (Path(__file__).parents[3] / "docs/how-to/simulated-network.md").read_text(encoding="utf-8")
    for name, preset in PRESETS.items():
        cells = (preset.latency_ms, preset.up_mbit_per_s, preset.down_mbit_per_s)
        assert f"| `{name}` | {' | '.join(f'{cell:,g}' for cell in cells)} |" in text


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ({"latency_s": 0.1}, "up_bytes_per_s, down_bytes_per_s: missing; give a number, or name = one of data-center"),
        ({"name": "gprs"}, '"lte"'),
        ({"name": "lte", "bandwidth": 1.0}, "unknown key; known are name, latency_s"),
        ({"name": "lte", "up_bytes_per_s": 0.0}, "expected a number above 0"),
    ],
)
def test_tables_that_cannot_be(network: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        job(Path("nowhere"), simulated_network=network)


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
    return model_sha256(read_model(out / "model.h5"))


@pytest.mark.usefixtures("microseconds")
def test_a_run_tells_its_simulated_time(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(job(digits, simulated_network=LINK | {"client_slowdown": 1e-9}), Alone(), out)
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
    assert run_summary(out)["simulated"] == found["simulated"]
    text = run_text(out)
    assert "simulated seconds" in text and "over a network with 100 ms there and back" in text

    plain = tmp_path / "plain"
    run(checked({k: v for k, v in job(digits).table().items() if k != "simulated_network"}), Alone(), plain)
    assert sha256(plain) == sha256(out)
    assert "simulated_s" not in read_history(plain) and summary(plain)["simulated_s"] is None
    assert "simulated seconds" not in run_text(plain)


@pytest.mark.parametrize("channel", ["plain", "masked", "encrypted"])
@pytest.mark.parametrize("primal", ["clear", "sealed"])
def test_published_bytes_of_a_run(patches: Path, tmp_path: Path, channel: str, primal: str) -> None:
    """2 x 3 clients with 719 rows and up to 22 of 64 columns, and a loss beside X'alpha; the same in every channel."""
    network = LINK | {"encryption": "published", "ciphertext_bytes": 100.0}
    table = {
        "name": "hinge", "rounds": 1, "data": {"path": str(patches)},
        "model": {"name": "hinge", "bias": False, "l2": 0.01},
        "record": {"evaluate_every": 2}, "simulated_network": network,
        "algorithm": {"name": "hyfdca", "rule": "paper", "inner": 2, "primal": primal},
        "aggregation": {"security": channel},
    }  # fmt: skip
    out = tmp_path / "run"
    run(checked(table), Alone(), out)
    simulated = read_json(out / "run.json")["simulated"]
    rows = 719 * 100 / 1000 + 719 * 100 / 4000
    question = (22 * 4 + 2 * 8) / 4000  # w in float32, and two numbers
    opened = (23 * 100 + 65 * 8) / 1000 + 65 * 100 / 4000  # sealed, opened by one client, and sent to the server
    assert {name: one["transfer"] for name, one in simulated["rounds"].items()} == {
        "products": pytest.approx(rows + question),
        "duals": pytest.approx(rows),
        "primal": pytest.approx(opened if primal == "sealed" else 23 * 8 / 1000),
    }
    assert simulated["network"]["ciphertext_bytes"] == 100
    assert "encryption published, 100 bytes a value" in run_text(out)


def test_it_is_that_of_any_number_of_ranks(digits: Path, tmp_path: Path, launch: Any, write_job: Any) -> None:
    out, task = (
        tmp_path / "run",
        write_job(tmp_path / "job.toml", job(digits, simulated_network={"name": "lte"}).table()),
    )
    assert launch(2, "run", task, "--out", out).code == 0
    run(job(digits, simulated_network={"name": "lte"}), Alone(), tmp_path / "alone")
    for kind in ("latency", "transfer"):
        found = [
            [one[kind] for one in read_json(run_dir / "run.json")["simulated"]["rounds"].values()]
            for run_dir in (out, tmp_path / "alone")
        ]
        assert found[0] == found[1] and found[0][0] > 0
    assert read_history(out)["simulated_s"][-1] == summary(out)["simulated_s"]


@pytest.mark.usefixtures("microseconds")
def test_resumed_runs_go_on_with_it(digits: Path, tmp_path: Path) -> None:
    network = LINK | {"client_slowdown": 1e-9}  # so that hardly anything of it is measured
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(job(digits, 8, simulated_network=network), Alone(), whole)
    run(job(digits, 4, simulated_network=network), Alone(), parts)
    run(job(digits, 8, simulated_network=network), Alone(), parts, resume=True)
    once, twice = (read_history(out)["simulated_s"] for out in (whole, parts))
    np.testing.assert_allclose(once, twice, rtol=1e-6)
    assert len(twice) == 5 and sha256(whole) == sha256(parts)


def test_an_interrupted_run_does_too(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(job(digits), Alone(), out, max_hours=0)
    assert summary(out)["simulated_s"] == 0
    run(job(digits), Alone(), out, resume=True)
    assert summary(out)["simulated_s"] == read_history(out)["simulated_s"][-1] > 4 * 0.1


@pytest.mark.usefixtures("microseconds")
@pytest.mark.parametrize("first", [None, LINK | {"latency_s": 9.0}])
def test_over_another_network_earlier_rows_are_left_empty(first: Any, digits: Path, tmp_path: Path) -> None:
    def table(rounds: int, network: Any) -> Job:
        found = {name: value for name, value in job(digits, rounds).table().items() if name != "simulated_network"}
        return checked(found | ({"simulated_network": network} if network else {}))

    out = tmp_path / "run"
    run(table(4, first), Alone(), out)
    assert ("simulated_s" in read_history(out)) == (first is not None)
    run(table(8, LINK), Alone(), out, resume=True)
    history = read_history(out)
    assert history["round"].tolist() == [0, 2, 4, 6, 8]
    assert np.isnan(history["simulated_s"]).tolist() == [True, True, True, False, False]
    assert history["simulated_s"][-1] == summary(out)["simulated_s"] == pytest.approx(8 * ROUND, rel=1e-4)
    run(table(8, None), Alone(), out, resume=True)
    assert "simulated_s" not in read_history(out) and summary(out)["simulated_s"] is None


def test_the_table_of_what_a_round_takes() -> None:
    table = SimulatedNetworkTable(**LINK)
    simulation = simulate(table, {"power": PLAIN, "scores": PLAIN, "duals": PLAIN}, ("power",), 3)
    head, names, *rows = simulated_lines(described(table, simulation), rounds=2)
    assert head == "over a network with 100 ms there and back, 1000 B/s up, 3.9 KiB/s down; encryption as-run"
    assert names.split() == ["each", "round", *KINDS, "together"]
    assert [row.split("  ")[0] for row in rows] == ["scores", "duals", "a round", "power, once"]
    assert rows[0].split("  ", 1)[1].split() == [
        "125", "ms", "0", "100", "ms", "1.2", "s", "62.5", "ms", "1.49", "s",
    ]  # fmt: skip
    (once,) = list(simulated_lines(described(table, simulation), rounds=0))[2:]
    assert once.startswith("power, once") and once.endswith("2.98 s")
    assert math.isclose(simulation.total_s, 3 * 2.975)
