"""Where one method is another: bit for bit where both take the same steps, else to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import local_job, played

STEP = {"initial": 0.4, "exponent": 0.3}
FOUR = {"participation": {"clients_per_round": 4}}
SINGLE = FOUR | {"compute": {"dtype": "float32"}}
THREE, EPOCHS = {"local_steps": 3}, {"local_epochs": 2}
Own = tuple[str, dict[str, Any]]


def model(folder: Path, own: Own, tables: dict[str, Any]) -> Any:
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


@pytest.mark.parametrize(("one", "other", "tables", "atol"), [
    (("fedavg", {}), ("delta-sgd", {}), SINGLE, 1e-6),  # of one step
    (("fedavg", {}), ("delta-sgd", {}), FOUR, 1e-12),
    (("fedavg", THREE | {"client_optimizer": {"learning_rate": 0.4, "momentum": 0.5, "weight_decay": 0.01}}),
     ("fedavg", THREE | {"client_optimizer": {  # which clips nothing
         "learning_rate": 0.4, "momentum": 0.5, "weight_decay": 0.01, "clip_norm": 1e9,
     }}), {}, 1e-10),
], ids=str)  # fmt: skip
def test_to_rounding(skewed: Path, one: Own, other: Own, tables: dict[str, Any], atol: float) -> None:
    found, expected = (model(skewed, own, tables).model for own in (one, other))
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("weights", ["uniform", "rows"])
def test_fedadmm_is_feddyn_while_all_are_present(skewed: Path, weights: str) -> None:
    """With h_i = -lambda_i."""
    own = THREE | {"weights": weights}
    dyn, admm = (
        model(skewed, each, {}) for each in (("feddyn", own | {"alpha": 0.4}), ("fedadmm", own | {"rho": 0.4}))
    )
    np.testing.assert_allclose(admm.server.model, dyn.server.model, rtol=0, atol=1e-10)
    np.testing.assert_allclose(-admm.kept("dual"), dyn.kept(""), rtol=0, atol=1e-10)
