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
SEALED = ["masked", "encrypted"]


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


PLAIN = ["plain hides nothing", "rank 0 sees every rank's partial sum", "evaluation reveals to rank 0 every rank's sum"]
ALONE, ONE_RANK = "rank 0 is the server alone: no key of a client is in its process", "hides nothing"
SHARED = ["rank 0 is shared", "[server] dedicated = true keeps them apart"]
PAIRS = ["each client shares a mask with each of the 7 others", "no sum of fewer than 2 uploads is opened"]
PAIRS += ["the server and any clients together learn the sum of all others' uploads, and no more"]
LEAVE = ("participation.max_dropouts=2", "participation.dropout_rate=0.1", "aggregation.min_clients=4")
LEAVING = ["since up to 2 clients may drop out, the server and 5 of a client's 7 partners together"]
LEAVING += ["no sum of fewer than 4 uploads is opened"]
SAID: list[tuple[str, tuple[str, ...], int, list[str], list[str]]] = [  # ..., said, not said
    ("plain", (), 4, PLAIN, ["rank 0 is", "keeps", "mask"]), ("plain", (), 1, PLAIN[:1], PLAIN[1:2]),
    ("masked", (), 4, [*PAIRS, ALONE], ["allowed by name", "encrypted", SHARED[0]]),
    ("masked", LEAVE, 4, LEAVING, ["any clients together"]), ("masked", (), 1, [ONE_RANK], ["rank 0 is"]),
    ("encrypted", (), 4, ["all clients share the secret key", "any one client together could open", ALONE], ["mask"]),
    ("encrypted", (), 1, [ONE_RANK], ["rank 0 is"]),
    ("masked", ("server.dedicated=false",), 4, [*SHARED, "who count as colluding with the server"], [ALONE]),
    ("encrypted", ("server.dedicated=false",), 4, [*SHARED, "and so could open every upload"], [ALONE]),
]  # fmt: skip


@pytest.mark.parametrize(("channel", "changes", "ranks", "parts", "absent"), SAID)
def test_what_holds_in_general(
    job: Path, channel: str, changes: tuple[str, ...], ranks: int, parts: list[str], absent: list[str]
) -> None:
    text = told(job, channel, *changes, ranks=ranks)
    assert not [part for part in parts if part not in text] and not [part for part in absent if part in text], text
    warnings = forecast(job, (f"aggregation.security={channel}", *changes), ranks)["warnings"]
    holds = channel == "encrypted" and "server.dedicated=false" in changes
    assert any("holds the key that opens every client's upload" in one for one in warnings) == holds


@pytest.mark.parametrize(
    ("channel", "server", "clients"),
    [("plain", "every upload", "nothing"), ("masked", "the sum of 3 uploads", "nothing"),
     ("encrypted", "the sum of 3 uploads", "nothing, but for the one who opens it")],
)  # fmt: skip
def test_a_sum_for_the_server(job: Path, channel: str, server: str, clients: str) -> None:
    found = learns(job, channel, "participation.clients_per_round=3")
    (name,) = [name for name in found if name not in ("losses", "certificate")]
    assert found[name] == {"server": server, "clients": clients}
    assert found["losses"]["server"] == server.replace("3", "8")  # everybody is measured
    if channel == "masked":  # nobody leaves when losses are measured
        leaving = learns(job, channel, *LEAVE)
        assert (leaving[name]["server"], leaving["losses"]["server"]) == (
            "the sum of 6 to 8 uploads", "the sum of 8 uploads"
        )  # fmt: skip


@pytest.mark.parametrize("channel", ["plain", *SEALED])
def test_columns_and_a_label_holder(job: Path, sides: Path, channel: str) -> None:
    found = learns(job, channel, f"data.path={sides}", f"algorithm={VERTICAL}", "client_optimizer={}", ALLOW)
    whole = "every upload" if channel == "plain" else "nothing"
    assert found["scores"] == {"server": whole, "client 1 alone": "the sum of 5 uploads"}
    assert found["slopes"] == {"server": whole, "clients": "single clients' own slopes"}
    single = "single clients' own gradient.first"
    assert found["gradients"]["server"].startswith("every upload" if channel == "plain" else single)


def test_masks_on_a_graph_that_is_enough(tmp_path: Path, job: Path, launch: Callable[..., Any]) -> None:
    words = "synthetic --samples 600 --features 3 --split rows --clients 300 --out"
    assert launch(0, "data", *words.split(), tmp_path / "many").code == 0
    changes = (f"data.path={tmp_path / 'many'}", 'model={name = "least-squares"}', "algorithm.batch_size=1")
    text = told(job, "masked", *changes)
    assert "of the 299 others" in text and "all 299" not in text
    assert "it learns the sum of the others' uploads and no more, except with probability 2^-40" in text


# --- clients who hold some rows of some columns ----------------------------------------------------------------------

HYBRID = ('algorithm={name = "hyfdca", rule = "damped", primal = "clear"}', "client_optimizer={}")
HYBRID += ('model={name = "hinge", l2 = 5e-3}',)
HOLDERS = "of each of their rows the sum over its holders (3)"  # 2 x 3 clients: rows have three, columns two
CLEAR = {"server": "every upload, in the clear", "clients": "nothing"}


@pytest.mark.parametrize("channel", SEALED)
def test_cells(job: Path, patches: Path, channel: str) -> None:
    given = (f"data.path={patches}", *HYBRID)
    found, text = learns(job, channel, *given), told(job, channel, *given)
    assert found["products"] == found["duals"] == found["all-products"] == {"server": "nothing", "clients": HOLDERS}
    assert found["primal"] == CLEAR and "in the clear by design: power-primal, primal" in text
    assert "the difference is that row times its step" in text and "keeps" not in text
    assert "the server knows the indices of the samples that each client holds" in text
    assert "columns have two holders: each sees in the next broadcast how the sum over both has changed" in text
    assert learns(job, "plain", *given)["products"]["server"] == "every upload"


@pytest.mark.parametrize("channel", SEALED)
def test_cells_some_of_which_are_absent(job: Path, patches: Path, channel: str) -> None:
    """What too few fill in a round stays in the sum as it was, and that is said."""
    some = (f"data.path={patches}", *HYBRID, "participation.clients_per_round=4")
    given = (*some, "aggregation.min_clients=1")
    found, text = learns(job, channel, *given), told(job, channel, *given)
    rows = f"{HOLDERS}, including the last uploads of absent clients"
    assert found["return-duals"] == {"server": "nothing", "clients who return": rows}
    assert found["duals"] == found["products"] == {"server": "nothing", "clients": rows}
    assert found["return-primal"]["server"] == found["primal"]["server"] == CLEAR["server"]
    assert "in the clear by design: power-primal, return-primal, primal" in text
    which = "all of them" if channel == "encrypted" else "those for clients"
    assert f"the server keeps the sums, {which} encrypted under the clients' common key" in text
    assert "who receives a sum twice learns its change: that of one client, if it alone participated" in text
    sealed = learns(job, channel, *given, "algorithm.primal=sealed")["primal"]["server"]
    assert sealed.startswith("changes of single clients' own pulled")
    assert sealed.endswith("their sum with the last uploads of absent clients")
    assert ("not masked" in sealed) == (channel == "masked")
    said = (
        "keep the last uploads wherever fewer than 2 participating clients fill a position: there it learns no change"
    )
    some = (*some, 'algorithm={name = "hyfdca", rule = "damped"}', "rounds=40")
    assert said in told(job, channel, *some)
    assert f"{said}, except those allowed by name: primal" in told(job, channel, *some, 'aggregation.allow=["primal"]')
    assert said not in told(job, channel, *some, "aggregation.min_clients=1") + told(job, "plain", *some)
