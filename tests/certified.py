"""The certificate of a run, computed once more from its model and the raw data; and optima, of data in one place.

Nothing of mpifed is imported: h5py and safetensors read files, numbers come from `definitions`.
For runs of the objectives and terms of this package, without a regularizer.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from certificate import Point, certificate
from definitions import OF_LOSS, OfLoss, convex, forward
from safetensors.numpy import load_file
from scipy.optimize import minimize

from jobs.hyfdca.rows import Floats, Model, Rows, read_rows, read_toml

Columns = dict[str, "float | None"]
NOBODY = 2**64 - 1  # -1 as a word: no client, and no round


def certified(run: Path, own: Mapping[str, OfLoss] | None = None, convex_own: Collection[str] = ()) -> Columns:
    """The columns of the history's last row that a certificate fills, and values with their margins.

    Parameters
    ----------
    run : folder of a run that has ended
    own : terms of one's own that are functions of the loss, by name
    convex_own : those of them that are convex with a convex loss
    """
    job = read_job(run)
    return recomputed(job, read_rows(Path(job["data"]["path"])), read_model(run / "model.safetensors"), own, convex_own)


def recomputed(
    job: dict[str, Any], rows: Rows, model: Model, own: Mapping[str, OfLoss] | None = None,
    convex_own: Collection[str] = (),
) -> Columns:  # fmt: skip
    """The same of a model in memory."""
    first = first_iterate(job, rows.raw.shape[1], rows.outputs)
    now, before = functions(job, rows, model, own), functions(job, rows, first, own)
    at = Point(
        value=np.array([f.value for f in now]),
        gradient=np.array([f.gradient for f in now]),
        limit=np.array([table["limit"] for table in job["constraint"]]),
        root_mean_square=np.array([f.root_mean_square for f in now[1:]]),
        first_value=np.array([f.value for f in before]),
        first_slopes=np.array([np.linalg.norm(f.gradient) for f in before]),
        curvature=curvatures(job, convex_own),
        convex=convex(job, convex_own),
    )
    found: Columns = {"objective": now[0].value}
    for m, function in enumerate(now[1:], 1):
        found |= {f"constraint_{m}": function.value, f"margin_{m}": 1.96 * function.standard_error}
    return found | certificate(at)


def read_job(run: Path) -> dict[str, Any]:
    """The job of a run folder, with all defaults written out."""
    return read_toml(run / "job.toml")


def read_model(path: Path) -> Model:
    """The arrays of `model.safetensors`, in float64."""
    return {name: values.astype(np.float64) for name, values in load_file(path).items()}


# --- functions ---


class Function(NamedTuple):
    """F_m at a model."""

    value: float
    standard_error: float  # of the mean over its samples; 0 where it has none
    root_mean_square: float  # of the term over its samples; 0 where it has none
    gradient: Floats  # [d], the parameters by name


def flat(model: Model) -> Floats:
    """[d] all parameters, by name."""
    return np.concatenate([model[name].ravel() for name in sorted(model)])


def functions(
    job: Mapping[str, Any], rows: Rows, model: Model, own: Mapping[str, OfLoss] | None = None
) -> list[Function]:
    """F_0, with the objective's penalties, and F_1 to F_M.

    Parameters
    ----------
    job : of a run folder
    rows : all training rows
    model : the point
    own : by their names, terms of one's own that are functions of the loss
    """
    tables, known = [job["minimize"], *job["constraint"]], OF_LOSS | dict(own or {})
    d = len(flat(model))
    sums = np.zeros((len(tables), 3))  # of counts, terms, squares
    gradients = np.zeros((len(tables), d))
    sampled = [m for m, table in enumerate(tables) if table["name"] != "norm"]
    for X, y in rows.pieces() if sampled else ():
        losses, backward = forward(job["model"]["name"], model, X, y)
        for m in sampled:
            counted = np.isin(y, tables[m]["classes"]) if tables[m].get("classes") is not None else np.ones(len(y))
            phi, slope = known[tables[m]["name"]](tables[m])
            terms = phi(losses)
            sums[m] += counted.sum(), counted @ terms, counted @ terms**2
            gradients[m] += flat(backward(counted * slope(losses)))
    w, found = flat(model), []
    for m in range(len(tables)):
        if m not in sampled:
            found.append(Function(float(w @ w), 0.0, 0.0, 2 * w))
            continue
        count, total, squares = sums[m]
        mean, variance = total / count, max(squares / count - (total / count) ** 2, 0.0)
        found.append(Function(float(mean), np.sqrt(variance / count), np.sqrt(squares / count), gradients[m] / count))
    if 0 in sampled:
        # intercepts are not counted, unless the job says so
        every, objective = job["model"].get("penalize_bias"), job["model"]
        counts = [np.full(model[name].size, float(every or not name.endswith("bias"))) for name in sorted(model)]
        v, penalty, concave = (
            w * np.concatenate(counts),
            objective.get("l2", 0.0),
            objective.get("nonconvex_penalty", 0.0),
        )
        value = penalty * (v @ v) + concave * (v**2 / (1 + v**2)).sum()
        slope = 2 * penalty * v + concave * 2 * v / (1 + v**2) ** 2
        found[0] = found[0]._replace(value=found[0].value + float(value), gradient=found[0].gradient + slope)
    return found


def curvatures(job: Mapping[str, Any], own: Collection[str] = ()) -> Floats:
    """[M + 1] mu_m, by which F_m is strongly convex whatever the data; 0 where it is not, or not known to be.

    `own` are names of convex terms beside those of the package. An intercept without a penalty has no curvature.
    """
    found = [2.0 if table["name"] == "norm" else 0.0 for table in (job["minimize"], *job["constraint"])]
    free = job["model"].get("bias") and not job["model"].get("penalize_bias")
    if not found[0] and not free and convex({**job, "constraint": []}, own):
        found[0] = 2 * job["model"].get("l2", 0.0)
    return np.array(found)


def first_iterate(job: dict[str, Any], features: int, outputs: int) -> Model:
    """w0, a function of the job's seed: zeros, but for the two matrices of a network.

    These are Glorot-uniform numbers of NumPy's Philox, whose key is the seed and the first 8 bytes of BLAKE2b of
    "model", and whose counter says that they belong to no client and no round.
    """
    objective = job["model"]
    if objective["name"] != "mlp":
        one_score = objective["name"] in ("logistic", "least-squares", "hinge", "squared-hinge")
        zeros: dict[str, Floats] = {"first": np.zeros((features, 1 if one_score else outputs))}
        return zeros | ({"head.bias": np.zeros(zeros["first"].shape[1])} if objective.get("bias") else {})
    word = int.from_bytes(hashlib.blake2b(b"model", digest_size=8).digest(), "little")
    key, counter = (np.array(words, np.uint64) for words in ([job["seed"], word], [0, NOBODY, NOBODY, 0]))
    rng, hidden = np.random.Generator(np.random.Philox(key=key, counter=counter)), objective["hidden"]
    model: dict[str, Floats] = {}
    for name, shape in (("first", (features, hidden)), ("head.second", (hidden, outputs))):
        limit = np.sqrt(6 / sum(shape))
        model[name] = rng.uniform(-limit, limit, shape).astype(job["compute"]["dtype"]).astype(np.float64)
    if objective.get("bias"):
        model |= {"head.hidden_bias": np.zeros(hidden), "head.output_bias": np.zeros(outputs)}
    return model


# --- beside the history ---------------------------------------------------------------------------------------------


def last_row(run: Path) -> Columns:
    """The history's last row; None for empty cells."""
    with (run / "history.csv").open(encoding="utf-8", newline="") as file:
        *_, last = csv.DictReader(file)
    return {name: float(cell) if cell else None for name, cell in last.items()}


def compared(ours: Columns, theirs: Columns, tolerance: float) -> list[tuple[str, float | None, float | None, bool]]:
    """(column, here, in the history, whether they agree) of each number here.

    Rounding errors are relative to what a number is a difference of: the parts of the residual to 1, of which 1e-3 is
    demanded here, a gap and a margin to their values.
    """
    scales = dict.fromkeys(("lower_bound", "duality_gap"), abs(ours["objective"] or 0.0))
    scales |= dict.fromkeys(("kkt_residual", "stationarity", "feasibility", "complementarity"), 1e-3)
    of_margins = {name.replace("constraint", "margin"): value for name, value in ours.items() if "constraint_" in name}
    scales |= {name: abs(value or 0.0) for name, value in of_margins.items()}
    found, missed = [], max(columns["feasibility"] or 0.0 for columns in (ours, theirs))
    for name, here in ours.items():
        there = theirs.get(name, math.nan)
        if name == "duality_gap" and (here is None) != (there is None):
            same = missed <= 1e-3 * tolerance  # limits that are met, or not, by a rounding error
        elif name == "lower_bound" and here == math.inf:
            same = there is not None  # any number is a bound where nothing meets the limits
        else:
            same = _agree(here, there, scales.get(name, 0.0), tolerance)
        found.append((name, here, there, same))
    return found


def _agree(ours: float | None, theirs: float | None, scale: float, tolerance: float) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return bool(ours == theirs or abs(ours - theirs) <= tolerance * max(abs(ours), abs(theirs), scale))


# --- optima ---------------------------------------------------------------------------------------------------------


class Optimum(NamedTuple):
    """A point near the optimum."""

    w: Floats  # [d]
    value: Floats  # [M + 1]
    multipliers: Floats  # [M]


def solve(job: Mapping[str, Any], rows: Rows, shape: tuple[int, int], sharpness: float) -> Optimum:
    """Minimize F_0 subject to F_m <= U_m from zeros, whatever the margins, for linear scores without biases.

    By the method of multipliers (D. P. Bertsekas, 1982, chapter 2), nu_m <- (nu_m + sharpness e_m)+ after each
    minimization over w by L-BFGS. The tests certify what it finds.
    """
    limit = np.array([table["limit"] for table in job["constraint"]])
    w, nu = np.zeros(shape[0] * shape[1]), np.zeros(len(limit))

    def at(w: Floats) -> tuple[Floats, Floats]:
        found = functions(job, rows, {"first": w.reshape(shape)})
        return np.array([f.value for f in found]), np.array([f.gradient for f in found])

    for _ in range(30):

        def augmented(w: Floats, nu: Floats = nu) -> tuple[float, Floats]:
            value, gradients = at(w)
            moved = np.maximum(nu + sharpness * (value[1:] - limit), 0)
            return value[0] + float((moved**2 - nu**2).sum()) / (2 * sharpness), np.array([1.0, *moved]) @ gradients

        options = {"maxiter": 3000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
        w = minimize(augmented, w, jac=True, method="L-BFGS-B", options=options).x
        value, old = at(w)[0], nu
        nu = np.maximum(nu + sharpness * (value[1:] - limit), 0)
        if (abs(nu - old) <= 1e-9 * sharpness * abs(limit)).all():
            break
    return Optimum(w, value, nu)
