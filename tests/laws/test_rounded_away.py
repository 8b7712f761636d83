"""Columns and l2 scaled along: the same problem in other units, of which the grid of exact sums loses digits, or all.

Whatever the scale, a gap is true to 1e-6 of the objective at 0, or there is none and a warning names the exchange.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from certified import last_row
from jobs_in_python import checked, fedavg
from lengths import covering
from scipy.optimize import minimize
from whole_runs import run

from mpifed.core.errors import NotCertified, NumericalError
from mpifed.testing import Solo

ROWS, COLUMNS, L2 = 64, 6, 0.01
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, COLUMNS))
Y = (X @ RNG.normal(size=COLUMNS) + 0.7 * RNG.normal(size=ROWS) > 0).astype(np.int64)
MARGINS = X * (2 * Y - 1)[:, None]
SPLITS = {
    "rows": ("rows", "--clients", "4"),
    "columns": ("columns", "--clients", "3"),
    "grid": ("grid", "--grid", "2x2"),
}
SAYS = "the grid of exact sums rounds these values away"
SCALES = [1e-16, 1e-14, 1e-10, 1e-6, 1e-2, 1.0, 1e4, 1e8, 1e16]
LOSSES = ("logistic", "squared-hinge")
SSCA = {"name": "ssca", "rho": [0.9, 0.1], "gamma": [0.9, 0.1]}


class Method(NamedTuple):
    """A certifying method, on one kind of data."""

    split: str
    algorithm: dict[str, Any]
    rounds: int
    learns: bool = True  # at every scale, if no digits are lost


METHODS = {
    f"{rule}, {split}": Method(split, {"name": "hyfdca", "rule": rule}, 60, rule != "paper")
    for rule in ("line-search", "accelerated", "damped", "theory", "paper")
    for split in SPLITS
}
METHODS |= {f"bundle, {split}": Method(split, {"name": "bundle"}, 30) for split in SPLITS}
METHODS |= {
    "cocoa": Method("rows", {"name": "cocoa"}, 30),
    "fedavg": Method("rows", fedavg(16, 0.5), 60, False),
    "ssca, rows": Method("rows", SSCA | {"batch_size": 16}, 60),
    "ssca, columns": Method("columns", SSCA | {"batch_size": ROWS}, 60),
}


def optimum(loss: str) -> tuple[float, float]:
    """(P*, P(0)) of the problem at scale 1, in float64."""

    def objective(w: Any) -> tuple[float, Any]:
        m = MARGINS @ w
        if loss == "logistic":
            value, slope = np.logaddexp(0, -m).mean(), -1 / (1 + np.exp(m))
        else:
            value, slope = (np.maximum(0, 1 - m) ** 2).mean(), -2 * np.maximum(0, 1 - m)
        return value + L2 * w @ w, slope @ MARGINS / ROWS + 2 * L2 * w

    found = minimize(objective, np.zeros(COLUMNS), jac=True, method="BFGS", options={"gtol": 1e-9})
    return float(found.fun), float(objective(np.zeros(COLUMNS))[0])


@pytest.fixture(scope="module")
def scaled(shared_path: Path, make_data: Callable[..., Path]) -> Callable[[str, float], Path]:
    """(split, scale) -> the data, the columns times the scale."""

    def folder(split: str, scale: float) -> Path:
        out = shared_path / f"times-{scale:g}-{split}"
        if not out.exists():
            np.savez(source := out.with_suffix(".npz"), X=X * scale, y=Y)
            make_data(out, "npz", str(source), "--scale", "none", "--split", *SPLITS[split])
        return out

    return folder


def job(name: str, folder: Path, scale: float, loss: str = "logistic", **tables: Any) -> Any:
    method = METHODS[name]
    tau = {"tau": min(0.2 * scale**2, 1e30)}  # the largest number that a job may have
    algorithm = dict(method.algorithm) | (tau if method.algorithm["name"] == "ssca" else {})
    base = {
        "name": "law", "rounds": method.rounds, "data": {"path": str(folder)},
        "model": {"name": loss, "bias": False, "l2": L2 * scale**2}, "algorithm": algorithm,
        "compute": {"dtype": "float64"}, "aggregation": {"security": "plain"},
        "record": {"evaluate_every": method.rounds, "checkpoint_every": 0},
    }  # fmt: skip
    return checked(base | tables)


def said(out: Path) -> list[str]:
    """The warnings of a run that are of this."""
    return [text for text in json.loads((out / "run.json").read_text())["warnings"] if SAYS in text]


@covering({"name": METHODS, "scale": SCALES, "loss": LOSSES}, together=1)
def test_a_gap_is_true_or_there_is_none(
    name: str, scale: float, loss: str, scaled: Callable[[str, float], Path], tmp_path: Path
) -> None:
    method, (least, start) = METHODS[name], optimum(loss)
    try:
        run(job(name, scaled(method.split, scale), scale, loss), Solo(), tmp_path)
    except NumericalError as error:  # which says what to do
        assert "outside the bound" in str(error) or "training diverged" in str(error)
        assert scale != 1.0
        return
    row, warned = last_row(tmp_path), said(tmp_path)
    assert row["objective"] is not None
    if row["duality_gap"] is not None:
        assert row["duality_gap"] >= row["objective"] - least - 1e-6 * start
    else:
        assert len(warned) == 1
        assert all(row[column] is None for column in ("dual", "lower_bound") if column in row)
    if row["objective"] > start * (1 - 1e-6):  # it is still where it began
        assert len(warned) == 1 or not method.learns
        assert (row.get("kkt_residual") or 1.0) > 0.99
    if scale == 1.0:
        assert not warned and row["duality_gap"] is not None


@pytest.mark.parametrize(
    ("name", "exchange"),
    [
        ("bundle, columns", "planes.pulled"),
        ("line-search, grid", "all-primal.pulled, norms.value, primal.pulled"),
        ("ssca, rows", "certificate.gradient.first"),
        ("ssca, columns", "certificate-gradients.statistics.gradient.first"),
    ],
)
def test_the_warning_names_the_exchange_and_the_end_is_not_reached(
    name: str, exchange: str, scaled: Callable[[str, float], Path], tmp_path: Path
) -> None:
    folder, scale = scaled(METHODS[name].split, 1e-14), 1e-14
    with pytest.raises(NotCertified, match=r"duality_gap <= 0\.5 \(it is not known\)"):
        run(job(name, folder, scale, stop={"reached": ["duality_gap<=0.5"]}), Solo(), tmp_path)
    (warning,) = said(tmp_path)
    assert exchange in warning
    assert "mpifed data ... --scale standard" in warning


@pytest.mark.launch
@pytest.mark.parametrize("scale", [1e-14, 1e-8, 1.0])
@pytest.mark.parametrize("name", ["bundle, grid", "accelerated, grid"])
def test_masked_sums_and_two_ranks_say_the_same(
    name: str, scale: float, scaled: Callable[[str, float], Path], launch: Any, tmp_path: Path
) -> None:
    ends, path = list[Any](), tmp_path / "job.toml"
    for ranks, security in ((None, "plain"), (None, "masked"), (2, "plain")):
        out, sums = tmp_path / f"{security}-{ranks}", {"security": security, "min_clients": 2}
        task = job(name, scaled(METHODS[name].split, scale), scale, aggregation=sums, rounds=4)
        path.write_text(task.text(), encoding="utf-8")
        assert launch(ranks, "run", path, "--out", out).code == 0
        ends.append((last_row(out)["objective"], last_row(out)["duality_gap"], said(out)))
    assert ends[0] == ends[1] == ends[2]
