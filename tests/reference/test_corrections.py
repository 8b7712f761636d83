"""Methods that correct local steps: their pages in other settings, and identities between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pages_corrections  # noqa: F401  # into PAGES
import pytest
from loops import local_job, played
from methods import METHODS
from pages import PAGES

from mpifed.testing import Job

MOVING = ("feddyn", "fedadmm", "fedsplit", "fedsam", "fedspeed")  # which take momentum
FOUR = {"participation": {"clients_per_round": 4}}
EXACT = {"rtol": 0, "atol": 1e-10}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("feddyn", {"local_epochs": 2, "weights": "rows"}),
    ("fedadmm", {"local_epochs": 2, "weights": "rows", "start": "own"}),
    ("fedadmm", {"local_steps": 1}),
    *((name, {"local_steps": 4, "momentum": 0.6}) for name in MOVING),
    ("fedsplit", {"local_epochs": 1, "weights": "rows", "start": "own"}),
    ("fedsplit", {"local_steps": 3, "start": "paper"}),
    ("fedsam", {"local_epochs": 1}),
    ("fedspeed", {"local_epochs": 1, "mix": 0.6}),
    ("delta-sgd", {"local_epochs": 2, "gamma": 1.5, "delta": 0.4}),
]


def task(folder: Path, name: str, /, **changes: Any) -> Job:
    """Some clients, where a method takes that, with unequal shards."""
    tables = {key: changes.pop(key) for key in ("rounds", "participation", "model", "compute") if key in changes}
    optimizer = {"learning_rate": 0.2, "momentum": changes.pop("momentum", 0.0)}
    own = {**(METHODS[name].least or {}), "name": name, "batch_size": 4, **changes}
    return local_job(folder, {**own, "client_optimizer": optimizer}, **tables)


@pytest.mark.parametrize(("name", "changes"), SETTINGS, ids=str)
def test_the_page_in_other_settings(skewed: Path, name: str, changes: dict[str, Any]) -> None:
    some = {} if METHODS[name].everybody({}) else FOUR
    job = task(skewed, name, **changes, **some)
    np.testing.assert_allclose(played(job).model, PAGES[name](job).play().judged(), **EXACT)


# --- identities ------------------------------------------------------------------------------------------------------


def test_fedadmm_is_feddyn_while_all_are_present(skewed: Path) -> None:
    """With h_i = -lambda_i."""
    for weights in ("uniform", "rows"):
        dyn = played(task(skewed, "feddyn", alpha=0.4, local_steps=3, weights=weights))
        admm = played(task(skewed, "fedadmm", rho=0.4, local_steps=3, weights=weights))
        np.testing.assert_allclose(admm.server.model, dyn.server.model, **EXACT)
        np.testing.assert_allclose(-admm.kept("dual"), dyn.kept(""), **EXACT)


@pytest.mark.parametrize("own", [{"rho": 0.0}, {"mix": 0.0}], ids=str)
def test_fedspeed_without_perturbation_is_feddyn_to_the_bit(skewed: Path, own: dict[str, Any]) -> None:
    dyn, speed = (task(skewed, name, alpha=0.4, local_steps=3, **FOUR, **more)
                  for name, more in (("feddyn", {}), ("fedspeed", own)))  # fmt: skip
    assert np.array_equal(played(speed).model, played(dyn).model)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fedsam_without_perturbation_and_delta_sgd_of_one_step_are_fedavg(skewed: Path, dtype: str) -> None:
    tables = {**FOUR, "compute": {"dtype": dtype}}
    average, sharp = (played(task(skewed, name, local_steps=3, **own, **tables)).model
                      for name, own in (("fedavg", {}), ("fedsam", {"rho": 0.0})))  # fmt: skip
    assert np.array_equal(sharp, average)
    average, delta = (played(task(skewed, name, **tables)).model for name in ("fedavg", "delta-sgd"))
    np.testing.assert_allclose(delta, average, rtol=0, atol=1e-6 if dtype == "float32" else 1e-12)
