"""What `mpifed check JOB.toml` says of who learns what, in each channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forecasts import forecast, forecast_text
from jobs_in_python import fedavg, job_table

VERTICAL = '{name = "ssca", batch_size = 20, rho = [0.9, 0.3], gamma = [0.9, 0.35], label_holder = 1}'
ALLOW = 'aggregation.allow=["slopes", "gradients", "all-losses", "certificate-slopes", "certificate-gradients"]'
HYBRID = (
    'algorithm={name = "hyfdca", rule = "damped", primal = "clear"}',
    "client_optimizer={}",
    'model={name = "hinge", l2 = 5e-3}',
)
SHARED = ("rank 0 is shared", "[server] dedicated = true keeps them apart")


@pytest.fixture
def job(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> Path:
    """Eight clients."""
    return write_job(tmp_path / "job.toml", job_table(digits, name="t", rounds=2, algorithm=fedavg(20)))


def told(job: Path, channel: str, *changes: str, ranks: int = 4) -> str:
    """All that is said, in one line."""
    text = forecast_text(job, (f"aggregation.security={channel}", *changes), ranks)
    start = text.index("Who learns")
    return " ".join(text[start : text.index("\nPlacement")].split())


def learns(job: Path, channel: str, *changes: str) -> dict[str, dict[str, str]]:
    found = forecast(job, (f"aggregation.security={channel}", *changes), 4)
    return {one["name"]: one["learns"] for part in ("setup", "exchanges", "measures") for one in found[part]}


@pytest.mark.parametrize(
    ("channel", "server", "clients"),
    [
        ("plain", "every upload", "nothing"),
        ("masked", "the sum of 3 uploads", "nothing"),
        ("encrypted", "the sum of 3 uploads", "nothing, but for the one who opens it"),
    ],
)
def test_a_sum_for_the_server(job: Path, channel: str, server: str, clients: str) -> None:
    found = learns(job, channel, "participation.clients_per_round=3")
    (name,) = [name for name in found if name not in ("losses", "certificate")]
    assert found[name] == {"server": server, "clients": clients}
    assert found["losses"]["server"] == server.replace("3", "8")  # everybody is measured


@pytest.mark.parametrize("channel", ["plain", "masked", "encrypted"])
def test_columns_and_a_label_holder(job: Path, sides: Path, channel: str) -> None:
    found = learns(job, channel, f"data.path={sides}", f"algorithm={VERTICAL}", "client_optimizer={}", ALLOW)
    whole = "every upload" if channel == "plain" else "nothing"
    assert found["scores"] == {"server": whole, "client 1 alone": "the sum of 5 uploads"}
    assert found["slopes"] == {"server": whole, "clients": "single clients' own slopes"}
    single = "single clients' own gradient.first"
    assert found["gradients"]["server"].startswith("every upload" if channel == "plain" else single)


def test_masks_of_all_pairs(job: Path) -> None:
    text = told(job, "masked")
    assert "gradients" not in text  # fedavg has none
    assert "each client shares a mask with each of the 7 others" in text
    assert "the server and any clients together learn the sum of all others' uploads, and no more" in text
    assert "no sum of fewer than 2 uploads is opened" in text and "allowed by name" not in text


def test_masks_with_drop_outs(job: Path) -> None:
    changes = ("participation.max_dropouts=2", "participation.dropout_rate=0.1", "aggregation.min_clients=4")
    found, text = learns(job, "masked", *changes), told(job, "masked", *changes)
    assert found["changes"]["server"] == "the sum of 6 to 8 uploads"
    assert found["losses"]["server"] == "the sum of 8 uploads"  # nobody leaves when losses are measured
    assert "since up to 2 clients may drop out, the server and 5 of a client's 7 partners together" in text
    assert "no sum of fewer than 4 uploads is opened" in text
    assert "any clients together" not in text


def test_masks_on_a_graph_that_is_enough(tmp_path: Path, job: Path, launch: Callable[..., Any]) -> None:
    made = launch(
        0, "data", "synthetic", "--samples", 600, "--features", 3, "--split", "rows", "--clients", 300,
        "--out", tmp_path / "many",
    )  # fmt: skip
    assert made.code == 0, made.text
    changes = (f"data.path={tmp_path / 'many'}", 'model={name = "least-squares"}', "algorithm.batch_size=1")
    text = told(job, "masked", *changes)
    assert "of the 299 others" in text and "all 299" not in text
    assert "it learns the sum of the others' uploads and no more, except with probability 2^-40" in text


@pytest.mark.parametrize(
    ("channel", "said"),
    [
        ("plain", ()),
        ("masked", (*SHARED, "who count as colluding with the server")),
        ("encrypted", (*SHARED, "and so could open every upload")),
    ],
)
def test_a_server_that_hosts_clients(job: Path, channel: str, said: tuple[str, ...]) -> None:
    text = told(job, channel, "server.dedicated=false")
    assert all(part in text for part in said)
    assert "rank 0 is the server alone" not in text
    assert ("rank 0 is the server alone" in told(job, channel)) == (channel != "plain")
    warnings = forecast(job, (f"aggregation.security={channel}", "server.dedicated=false"), 4)["warnings"]
    assert any("holds the key that opens every client's upload" in one for one in warnings) == (channel == "encrypted")


@pytest.mark.parametrize("channel", ["masked", "encrypted"])
def test_one_rank_hides_nothing(job: Path, channel: str) -> None:
    text = told(job, channel, ranks=1)
    assert "one rank: its process holds all data and keys" in text and "hides nothing" in text
    assert "rank 0 is" not in text


# --- clients who hold some rows of some columns ----------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["masked", "encrypted"])
def test_cells(job: Path, patches: Path, channel: str) -> None:
    """2 x 3 clients: rows have three holders, columns two."""
    given = (f"data.path={patches}", *HYBRID)
    found, text = learns(job, channel, *given), told(job, channel, *given)
    by_rows = {"server": "nothing", "clients": "of each of their rows the sum over its holders (3)"}
    assert found["products"] == found["duals"] == found["all-products"] == by_rows
    assert found["primal"] == {"server": "every upload, in the clear", "clients": "nothing"}
    assert (
        "in the clear by design: power-primal, primal" in text and "the difference is that row times its step" in text
    )
    assert "the server knows the indices of the samples that each client holds" in text
    assert "columns have two holders: each sees in the next broadcast how the sum over both has changed" in text
    assert "keeps" not in text
    assert learns(job, "plain", *given)["products"]["server"] == "every upload"


@pytest.mark.parametrize("channel", ["masked", "encrypted"])
def test_cells_some_of_which_are_absent(job: Path, patches: Path, channel: str) -> None:
    given = (f"data.path={patches}", *HYBRID, "participation.clients_per_round=4", "aggregation.min_clients=1")
    found, text = learns(job, channel, *given), told(job, channel, *given)
    rows = "of each of their rows the sum over its holders (3), including the last uploads of absent clients"
    assert found["return-duals"] == {"server": "nothing", "clients who return": rows}
    assert found["duals"] == found["products"] == {"server": "nothing", "clients": rows}
    assert found["return-primal"]["server"] == found["primal"]["server"] == "every upload, in the clear"
    assert "in the clear by design: power-primal, return-primal, primal" in text
    kept = {
        "masked": "the server keeps the sums, those for clients encrypted under the clients' common key",
        "encrypted": "the server keeps the sums, all of them encrypted under the clients' common key",
    }
    assert kept[channel] in text
    assert "who receives a sum twice learns its change: that of one client, if it alone participated" in text
    sealed = learns(job, channel, *given, "algorithm.primal=sealed")["primal"]["server"]
    assert sealed.startswith("changes of single clients' own pulled")
    assert sealed.endswith("their sum with the last uploads of absent clients")
    assert ("not masked" in sealed) == (channel == "masked")


@pytest.mark.parametrize("channel", ["masked", "encrypted"])
def test_what_too_few_fill_in_a_round_is_said(job: Path, patches: Path, channel: str) -> None:
    """Where absent clients go on counting, it stays in the sum as it was."""
    sealed = 'algorithm={name = "hyfdca", rule = "damped"}'
    given = (f"data.path={patches}", *HYBRID, sealed, "participation.clients_per_round=4", "rounds=40")
    said = "keep the last uploads wherever fewer than 2 participating clients fill a position: there it"
    assert said in told(job, channel, *given)
    assert f"{said} learns no change, except those allowed by name: primal" in told(
        job, channel, *given, 'aggregation.allow=["primal"]'
    )
    assert said not in told(job, channel, *given, "aggregation.min_clients=1")
    assert said not in told(job, "plain", *given)
