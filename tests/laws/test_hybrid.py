"""Laws of methods on the dual problem: bounds in every round, w(alpha), and that no division of the data matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from jobs_in_python import checked
from lengths import covering
from mapped import with_map
from rounds import Seen, rounds_of

from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.run.setup import prepare
from mpifed.testing import Solo

PENALTY = 1e-2
RULES: dict[str, dict[str, Any]] = {
    "paper": {"rule": "paper"},
    "theory": {"rule": "theory"},
    "damped": {"rule": "damped"},
    "line-search": {"rule": "line-search"},
    "accelerated": {"rule": "accelerated"},
    "bundle": {"name": "bundle"},
}
MONOTONE = ("theory", "damped", "line-search", "bundle")
SPLITS = {
    "1x1": ("grid", "--grid", "1x1"),
    "2x3": ("grid", "--grid", "2x3"),
    "4x1": ("grid", "--grid", "4x1"),
    "1x4": ("grid", "--grid", "1x4"),
    "rows": ("rows", "--clients", "4"),
    "columns": ("columns", "--clients", "4"),
}


def made(out: Path, *arguments: Any) -> Path:
    """A data folder."""
    if not out.exists():
        done = CliRunner().invoke(main, ["data", *with_map(arguments), "--out", str(out)])
        assert done.exit_code == 0, done.output
    return out


def few_digits(folder: Path, split: str) -> Path:
    """Even against odd ones."""
    return made(
        folder / f"few-digits-{split}", "digits", "--split", *SPLITS[split], "--labels", "even-odd", "--scale",
        "unit-rows", "--test-fraction", "0.9", "--seed", 4,
    )  # fmt: skip


def course(
    folder: Path, algorithm: dict[str, Any], loss: str = "hinge", measured: int = 1, **tables: Any
) -> list[Seen]:
    """12 rounds in float64 with the last w, unless the tables say otherwise."""
    last = {} if algorithm.get("name") == "bundle" else {"name": "hyfdca", "returns": "last"}
    return rounds_of(
        checked({
            "name": "law", "rounds": 12, "seed": 5, "data": {"path": str(folder), "block": 2},
            "algorithm": last | algorithm, "model": {"name": loss, "l2": PENALTY},
            "aggregation": {"security": "plain"}, "compute": {"dtype": "float64"},
            "record": {"evaluate_every": 0, "checkpoint_every": 0}, **tables,
        }),
        measured,
    )  # fmt: skip


def all_data(folder: Path) -> tuple[Any, Any]:
    """X [N, p] and the signs t [N]."""
    data = open_federation(folder)
    X, t = np.zeros((data.samples, data.features)), np.zeros(data.samples)
    for client in range(data.clients):
        shard = shard_of(data, client)
        for at, part in shard.pieces("float64"):
            X[np.ix_(shard.rows[at], shard.columns)] = part.toarray() if shard.sparse else part
        t[shard.rows] = 2 * shard.y - 1
    return X, t


def values(loss: str, X: Any, t: Any, w: Any, alpha: Any) -> tuple[float, float, float]:
    """(P without the penalty, P, D), (1) and (2), sample by sample."""
    lam, N, primal, conjugates = 2 * PENALTY, len(t), 0.0, 0.0
    for x, sign, a in zip(X, t, alpha, strict=True):
        m, b = sign * (x @ w), sign * a
        if loss == "hinge":
            primal, conjugates = primal + max(0.0, 1 - m), conjugates - b
        elif loss == "squared-hinge":
            primal, conjugates = primal + max(0.0, 1 - m) ** 2, conjugates - b + b * b / 4
        else:
            primal += np.log1p(np.exp(-m))
            conjugates += sum(v * np.log(v) for v in (b, 1 - b) if v > 0)
    pulled = X.T @ alpha / (lam * N)
    return primal / N, primal / N + lam / 2 * w @ w, -lam / 2 * pulled @ pulled - conjugates / N


@covering({"rule": [rule for rule in RULES if rule != "bundle"], "loss": ["hinge", "squared-hinge", "logistic"]}, 1)
def test_every_round(patchwork_of_digits: Path, rule: str, loss: str) -> None:
    """Weak duality, alpha in its box, w = X'alpha / (lambda N), what is measured, and where promised a growing dual."""
    X, t = all_data(patchwork_of_digits)
    found, optimal = course(patchwork_of_digits, RULES[rule], loss), np.inf
    for one in found:
        b = t * one.alpha
        assert b.min() >= -1e-12
        assert loss == "squared-hinge" or b.max() <= 1 + 1e-12
        b = np.clip(b, 0, None if loss == "squared-hinge" else 1)
        np.testing.assert_allclose(one.w, X.T @ one.alpha / (2 * PENALTY * len(t)), rtol=0, atol=1e-10)
        expected = values(loss, X, t, one.w, t * b)
        names = ("train_loss", "objective", "dual")
        np.testing.assert_allclose([one.columns[name] for name in names], expected, rtol=0, atol=1e-8)
        optimal = min(optimal, one.columns["objective"])
    duals = np.array([one.columns["dual"] for one in found])
    assert (duals <= optimal + 1e-12).all()
    if rule in MONOTONE:
        assert (np.diff(duals) >= -1e-10).all()
    assert duals[-1] > duals[0]


@pytest.fixture
def patchwork_of_digits(shared_path: Path) -> Path:
    """5 clients who share rows, and columns, in part."""
    path = shared_path / "patchwork-of-digits.csv"
    lines = ["0,0-59,0-30", "1,0-89,31-63", "2,60-178,0-30", "3,90-178,31-50", "4,90-178,51-63"]
    path.write_text("\n".join(["client,rows,columns", *lines, ""]), encoding="utf-8")
    return made(
        shared_path / "patchwork-of-digits", "digits", "--split", "grid", "--map", path, "--labels", "even-odd",
        "--scale", "unit-rows", "--test-fraction", "0.9", "--seed", 4,
    )  # fmt: skip


@pytest.mark.parametrize("rule", ["paper", "theory", "damped"])
def test_the_gap_is_a_bound_though_clients_are_absent(shared_path: Path, rule: str) -> None:
    """Of the model there is and of the alpha of all clients, though w is not w(alpha)."""
    folder = few_digits(shared_path, "2x3")
    X, t = all_data(folder)
    found = course(folder, RULES[rule] | {"returns": "mean"}, participation={"clients_per_round": 2})
    apart = [np.abs(one.w - X.T @ one.alpha / (2 * PENALTY * len(t))).max() for one in found]
    assert max(apart) > 1e-3
    least = min(one.columns["objective"] for one in course(folder, RULES["bundle"]))
    for one in found:
        expected = values("hinge", X, t, one.model, one.alpha)
        measured = [one.columns[name] for name in ("train_loss", "objective", "dual")]
        np.testing.assert_allclose(measured, expected, rtol=0, atol=1e-8)
        assert one.columns["dual"] <= least
        assert one.columns["duality_gap"] == one.columns["objective"] - one.columns["dual"]


@pytest.mark.parametrize("rule", RULES)
def test_no_division_of_the_data_makes_a_difference(shared_path: Path, rule: str) -> None:
    """Nor do whole rows or whole columns, nor overlapping rectangles."""
    found = {}
    given, splits = dict[str, int](), tuple(SPLITS)
    if rule == "paper":  # by number: rows are numbered as they are divided
        given, splits = {"inner": 179}, ("1x1", "1x4", "columns")
    for split in splits:
        found[split] = course(few_digits(shared_path, split), RULES[rule] | given, measured=0)[-1].w
    for split in splits[1:]:
        np.testing.assert_allclose(found[split], found["1x1"], rtol=0, atol=1e-7, err_msg=split)


@covering({"rule": [rule for rule in RULES if rule != "bundle"], "split": ["2x3", "rows", "columns"]}, 1)
def test_the_best_of_all_w_that_were_asked_with(shared_path: Path, rule: str, split: str) -> None:
    """By losses that travel in an exchange; they change no other number, and P of the model never rises."""
    folder, loss = few_digits(shared_path, split), "hinge" if rule != "accelerated" else "squared-hinge"
    X, t = all_data(folder)
    best = course(folder, RULES[rule] | {"returns": "best"}, loss)
    others = course(folder, RULES[rule], loss)
    asked = [np.zeros(X.shape[1]), *(one.server.asked for one in others[:-1])]
    P = [values(loss, X, t, w, np.zeros(len(t)))[1] for w in asked]
    for number, (one, other) in enumerate(zip(best, others, strict=True)):
        np.testing.assert_array_equal(one.w, other.w)
        least = int(np.argmin(P[: number + 1]))
        np.testing.assert_allclose(one.model, asked[least], rtol=0, atol=1e-10)
        assert float(one.server.least) == pytest.approx(P[least], abs=1e-8)
        assert one.columns["objective"] == pytest.approx(P[least], abs=1e-8)


def test_who_is_absent_leaves_no_best(shared_path: Path) -> None:
    """The mean is taken then, and the best where all take part."""
    folder, some = few_digits(shared_path, "2x3"), {"participation": {"clients_per_round": 2}}
    with pytest.raises(UsageError, match='returns = "best": with absent clients the loss at a w is unknown'):
        course(folder, {"rule": "damped", "returns": "best"}, **some)
    table = {
        "name": "law", "rounds": 1, "data": {"path": str(folder)}, "algorithm": {"name": "hyfdca", "rule": "damped"},
        "model": {"name": "hinge", "bias": False, "l2": PENALTY}, "aggregation": {"security": "plain"},
    }  # fmt: skip
    chosen = [prepare(checked(table | more), Solo()).algorithm for more in ({}, some)]
    assert [one.model_is for one in chosen] == ["best", "mean"]
