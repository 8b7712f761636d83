"""Laws of methods on the dual problem: bounds in every round, w(alpha), and that no division of the data matters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from lengths import covering
from registry import table
from rounds import Seen, rounds_of

from mpifed.core.errors import UsageError
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.run.setup import prepare
from mpifed.testing import Solo

PENALTY = 1e-2
HYFDCA = ("paper", "theory", "damped", "line-search", "accelerated")  # rules
ALL = (*HYFDCA, "bundle")
MONOTONE = ("theory", "damped", "line-search", "bundle")
SPLITS = {
    "1x1": "grid --grid 1x1", "2x3": "grid --grid 2x3", "4x1": "grid --grid 4x1", "1x4": "grid --grid 1x4",
    "rows": "rows --clients 4", "columns": "columns --clients 4",
}  # fmt: skip
# 5 clients who share rows, and columns, in part
PATCHES = ["0,0-59,0-30", "1,0-89,31-63", "2,60-178,0-30", "3,90-178,31-50", "4,90-178,51-63"]


@pytest.fixture(scope="module")
def folder_of(shared_path: Path, make_data: Callable[..., Path]) -> Callable[[str], Path]:
    """folder_of(split): even against odd digits, 179 of them."""

    def folder_of(split: str) -> Path:
        out, words = shared_path / f"few-digits-{split}", SPLITS.get(split, "").split()
        if split == "patchwork":
            (shared_path / "patches.csv").write_text("\n".join(["client,rows,columns", *PATCHES, ""]))
            words = ["grid", "--map", str(shared_path / "patches.csv")]
        few = ("--labels", "even-odd", "--scale", "unit-rows", "--test-fraction", "0.9", "--seed", "4")
        return out if out.exists() else make_data(out, "digits", "--split", *words, *few)

    return folder_of


def course(
    folder: Path, rule: str, loss: str = "hinge", measured: int = 1, clients: int | None = None, **more: Any
) -> list[Seen]:
    """12 rounds in float64 with the last w, unless that is said."""
    own = {"name": "bundle"} if rule == "bundle" else {"name": "hyfdca", "rule": rule, "returns": "last"}
    job = table(
        folder, own | more, rounds=12, seed=5, data={"path": str(folder), "block": 2}, compute={"dtype": "float64"},
        model={"name": loss, "l2": PENALTY}, record={"evaluate_every": 0, "checkpoint_every": 0},
        participation={"clients_per_round": clients} if clients else {},
    )  # fmt: skip
    return rounds_of(checked(job), measured)


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


def measured(one: Seen) -> list[Any]:
    return [one.columns[name] for name in ("train_loss", "objective", "dual")]


@covering({"rule": HYFDCA, "loss": ["hinge", "squared-hinge", "logistic"]}, 1)
def test_every_round(folder_of: Callable[[str], Path], rule: str, loss: str) -> None:
    """Weak duality, alpha in its box, w = X'alpha / (lambda N), what is measured, and where promised a growing dual."""
    X, t = all_data(folder_of("patchwork"))
    found = course(folder_of("patchwork"), rule, loss)
    most = np.inf if loss == "squared-hinge" else 1
    for one in found:
        b = t * one.alpha
        assert b.min() >= -1e-12 and b.max() <= most + 1e-12
        np.testing.assert_allclose(one.w, X.T @ one.alpha / (2 * PENALTY * len(t)), rtol=0, atol=1e-10)
        expected = values(loss, X, t, one.w, t * np.clip(b, 0, most))
        np.testing.assert_allclose(measured(one), expected, rtol=0, atol=1e-8)
    _, objectives, duals = np.array([measured(one) for one in found]).T
    assert (duals <= objectives.min() + 1e-12).all() and duals[-1] > duals[0]
    assert rule not in MONOTONE or (np.diff(duals) >= -1e-10).all()


@pytest.mark.parametrize("rule", ["paper", "theory", "damped"])
def test_the_gap_is_a_bound_though_clients_are_absent(folder_of: Callable[[str], Path], rule: str) -> None:
    """Of the model there is and of the alpha of all clients, though w is not w(alpha)."""
    folder = folder_of("2x3")
    X, t = all_data(folder)
    found = course(folder, rule, returns="mean", clients=2)
    assert max(np.abs(one.w - X.T @ one.alpha / (2 * PENALTY * len(t))).max() for one in found) > 1e-3
    least = min(float(one.columns["objective"] or 0) for one in course(folder, "bundle"))
    for one in found:
        _, objective, dual = measured(one)
        np.testing.assert_allclose(measured(one), values("hinge", X, t, one.model, one.alpha), rtol=0, atol=1e-8)
        assert dual <= least and one.columns["duality_gap"] == objective - dual


@pytest.mark.parametrize("rule", ALL)
def test_no_division_of_the_data_makes_a_difference(folder_of: Callable[[str], Path], rule: str) -> None:
    """Nor do whole rows or whole columns, nor overlapping rectangles."""
    # the paper's draws are by number: rows are numbered as they are divided
    splits, more = (("1x1", "1x4", "columns"), {"inner": 179}) if rule == "paper" else (tuple(SPLITS), {})
    whole, *others = (course(folder_of(split), rule, measured=0, **more)[-1].w for split in splits)
    for split, w in zip(splits[1:], others, strict=True):
        np.testing.assert_allclose(w, whole, rtol=0, atol=1e-7, err_msg=split)


@covering({"rule": HYFDCA, "split": ["2x3", "rows", "columns"]}, 1)
def test_the_best_of_all_w_that_were_asked_with(folder_of: Callable[[str], Path], rule: str, split: str) -> None:
    """By losses that travel in an exchange; they change no other number, and P of the model never rises."""
    folder, loss = folder_of(split), "hinge" if rule != "accelerated" else "squared-hinge"
    X, t = all_data(folder)
    best, others = (course(folder, rule, loss, returns=returns) for returns in ("best", "last"))
    asked = [np.zeros(X.shape[1]), *(one.server.asked for one in others[:-1])]
    P = [values(loss, X, t, w, np.zeros(len(t)))[1] for w in asked]
    for number, (one, other) in enumerate(zip(best, others, strict=True)):
        np.testing.assert_array_equal(one.w, other.w)
        least = int(np.argmin(P[: number + 1]))
        np.testing.assert_allclose(one.model, asked[least], rtol=0, atol=1e-10)
        np.testing.assert_allclose([float(one.server.least), one.columns["objective"]], P[least], rtol=0, atol=1e-8)


def test_who_is_absent_leaves_no_best(folder_of: Callable[[str], Path]) -> None:
    """The mean is taken then, and the best where all take part."""
    folder, some = folder_of("2x3"), {"participation": {"clients_per_round": 2}}
    with pytest.raises(UsageError, match='returns = "best": with absent clients the loss at a w is unknown'):
        course(folder, "damped", returns="best", clients=2)
    hinge = {"name": "hinge", "bias": False, "l2": PENALTY}
    for more, chosen in (({}, "best"), (some, "mean")):
        job = checked(table(folder, {"name": "hyfdca", "rule": "damped"}, model=hinge, **more))
        assert prepare(job, Solo()).algorithm.model_is == chosen  # type: ignore[attr-defined]
