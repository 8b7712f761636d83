"""Where one method is another: bit for bit where both take the same steps, else to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import NOISELESS, Played, close, local_job, make_data, played

from mpifed.core.record import leaves

STEP = {"initial": 0.4, "exponent": 0.3}
FOUR = {"participation": {"clients_per_round": 4}}
SINGLE = FOUR | {"compute": {"dtype": "float32"}}
THREE, EPOCHS = {"local_steps": 3}, {"local_epochs": 2}
Own = tuple[str, dict[str, Any]]


def model(folder: Path, own: Own, tables: dict[str, Any]) -> Played:
    name, settings = own
    hyper = {"name": name, "batch_size": 4, "client_optimizer": {"learning_rate": STEP}, **settings}
    return played(local_job(folder, hyper, **tables))


@pytest.mark.parametrize(("one", "other", "tables"), [
    *((("fedavg", THREE), (name, THREE | own), FOUR) for name, own in (
        ("fedcm", {"alpha": 1.0}), ("mime-lite", {"alpha": 1.0}), ("fedacg", {"lam": 0.0, "beta": 0.0}),
        ("fedexprox", {"alpha": 1.0, "mu": 0.0}), ("fednova", {"mu": 0.0}), ("fedsam", {"rho": 0.0}),
    )),
    (("fedavg", THREE), ("fedsam", THREE | {"rho": 0.0}), SINGLE),
    (("fedprox", THREE | {"mu": 0.6}), ("fednova", THREE | {"mu": 0.6}), FOUR),
    *((("feddyn", THREE | {"alpha": 0.4}), ("fedspeed", THREE | {"alpha": 0.4} | own), FOUR)
      for own in ({"rho": 0.0}, {"mix": 0.0})),
], ids=str)  # fmt: skip
def test_to_the_bit(skewed: Path, one: Own, other: Own, tables: dict[str, Any]) -> None:
    assert model(skewed, one, tables).model.tobytes() == model(skewed, other, tables).model.tobytes()


@covering({"numbers": ["exact", "exact-blocks"], "work": [{}, THREE, EPOCHS, {"server_optimizer": {"momentum": 0.5}}]})
def test_fedprox_without_mu_is_fedavg_to_the_bit(skewed: Path, work: dict[str, Any], numbers: str) -> None:
    tables = SINGLE | {"aggregation": {"arithmetic": numbers}}
    plain, none, some = (
        model(skewed, own, tables).model
        for own in (("fedavg", work), ("fedprox", work | {"mu": 0.0}), ("fedprox", work | {"mu": 0.5}))
    )
    assert (plain == none).all()
    assert (np.abs(plain - some).max() > 1e-4) == (work in (THREE, EPOCHS))  # one step begins where all are


@pytest.fixture(scope="module")
def equal(shared_path: Path) -> Path:
    """6 clients with 8 rows each."""
    asked = ("--samples", 48, "--features", 4, "--task", "regression", "--split", "rows", "--clients", 6)
    return make_data(shared_path / "equal-8", "synthetic", *asked)


CLIPPED = {"learning_rate": 0.4, "momentum": 0.5, "weight_decay": 0.01, "clip_norm": 1e9}
UNCLIPPED = {key: value for key, value in CLIPPED.items() if key != "clip_norm"}
WHOLE = {"batch_size": 8, "client_optimizer": {"learning_rate": 0.1}}
STEEP = WHOLE | {"local_steps": 4, "client_optimizer": {"learning_rate": 0.4}}  # of FedLin: 0.1 a step
RIDGE = {"model": {"name": "least-squares", "bias": False, "l2": 0.05}, "rounds": 20}


@pytest.mark.parametrize(("data", "one", "other", "tables", "atol"), [
    ("skewed", ("fedavg", {}), ("delta-sgd", {}), SINGLE, 1e-6),  # of one step
    ("skewed", ("fedavg", {}), ("delta-sgd", {}), FOUR, 1e-12),
    ("skewed", ("fedavg", THREE | {"client_optimizer": UNCLIPPED}), ("fedavg", THREE | {"client_optimizer": CLIPPED}),
     {}, 1e-10),
    ("equal", ("fedavg", WHOLE), ("proxskip", WHOLE | {"p": 1.0}), RIDGE, 1e-10),  # gradient descent
    ("equal", ("proxskip", WHOLE | {"p": 0.3}), ("tamuna", WHOLE | {"p": 0.3}), RIDGE, 1e-10),  # of whole models
    ("equal", ("fedlin", STEEP), ("mime", WHOLE | {"local_steps": 4, "alpha": 1.0}), RIDGE, 1e-10),
    # FedPDM of one step: (10a) from x_0 with eta = 1 / (2 rho) moves as FedAvg with the step 1 / rho
    ("equal", ("fedavg", WHOLE | {"client_optimizer": {"learning_rate": 0.5}}),
     ("fedpdm", WHOLE | {"rho": 2.0, "client_optimizer": {"learning_rate": 0.5}}), RIDGE, 1e-10),
], ids=str)  # fmt: skip
def test_to_rounding(request: Any, data: str, one: Own, other: Own, tables: dict[str, Any], atol: float) -> None:
    found, expected = (model(request.getfixturevalue(data), own, tables).server.model for own in (one, other))
    close(found, expected, atol)


@pytest.mark.parametrize("weights", ["uniform", "rows"])
def test_fedadmm_is_feddyn_while_all_are_present(skewed: Path, weights: str) -> None:
    """With h_i = -lambda_i."""
    own = THREE | {"weights": weights}
    dyn, admm = (model(skewed, one, {}) for one in (("feddyn", own | {"alpha": 0.4}), ("fedadmm", own | {"rho": 0.4})))
    close(admm.server.model, dyn.server.model)
    close(-admm.kept("dual"), dyn.kept(""))


# --- private methods with no noise and nothing clipped ---------------------------------------------------------------

PLAIN: dict[str, dict[str, Any]] = {"fedavg": {}, "fedprox": {"mu": 0.3}, "scaffold": {}, "fedpdm": {"rho": 2.0}}


def states(found: Played) -> list[Any]:
    return [np.asarray(leaf) for state in (found.server, found.clients) for _, leaf in leaves(state)]


def private(folder: Path, name: str, steps: int, **privacy: Any) -> list[Any]:
    """The states of server and clients, in double precision, as gradients are clipped."""
    tables: dict[str, Any] = {"aggregation": {"arithmetic": "exact"}, "participation": {"clients_per_round": 3}}
    tables |= {"privacy": NOISELESS | {"clip": 1e6} | privacy} if privacy else {}
    return states(model(folder, (name, PLAIN[name] | {"local_steps": steps}), tables))


@pytest.mark.parametrize("steps", [1, 3])
def test_local_steps_of_clipped_gradients(skewed: Path, steps: int) -> None:
    """Clipped gradients are summed before they are multiplied by the step, others after."""
    for name in ("fedavg", "fedprox"):
        for one, other in zip(private(skewed, name, steps, noise="paper"), private(skewed, name, steps), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-10)


@covering({"name": PLAIN, "steps": [1, 3], "trust": ["local", "central", "distributed"]}, 1)
def test_clients(classes: Path, name: str, steps: int, trust: str) -> None:
    """At level "client" all count alike: so shards are equal, and the bits are the same."""
    plain, same, clipped = (
        [leaf.tobytes() for leaf in private(classes, name, steps, **more)]
        for more in ({}, {"level": "client", "trust": trust}, {"level": "client", "trust": trust, "clip": 0.01})
    )
    assert plain == same != clipped
