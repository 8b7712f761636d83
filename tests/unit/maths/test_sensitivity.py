"""Sensitivities of uploads against hand-written local steps with gradients that try to break them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.maths.privacy.sensitivity import upload, upload_hidden

Floats = NDArray[np.float64]
Gradient = Callable[[int, Floats], Floats]  # (record, model) -> its gradient, before clipping

CLIP, RHO = 0.7, 10.0


def clipped(gradient: Floats) -> Floats:
    return gradient * min(1.0, CLIP / max(float(np.linalg.norm(gradient)), 1e-300))


def mean_gradient(records: list[int | None], gradient: Gradient, x: Floats, batch: float) -> Floats:
    """Of a minibatch of numbered records; None is a record left out."""
    return sum((clipped(gradient(i, x)) for i in records if i is not None), np.zeros_like(x)) / batch


def local_steps(
    batches: list[list[int | None]], gradient: Gradient, x: Floats, pull: float, step: float, centre: Floats
) -> Floats:
    """x <- x - step (g + pull (x - centre)): what a proximal term or an l2 penalty makes of SGD."""
    for records in batches:
        x = x - step * mean_gradient(records, gradient, x, len(records)) - step * pull * (x - centre)
    return x


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("steps", "batch", "pull", "step"), [(1, 1, 0.0, 0.1), (1, 4, 3.0, 0.1), (3, 2, 2.0, 0.2), (4, 3, 12.0, 0.3)]
)
def test_no_pair_of_data_sets_moves_an_upload_further(
    adjacency: str, steps: int, batch: int, pull: float, step: float
) -> None:
    random = np.random.default_rng(7)
    bound = upload(step, 2.0, abs(1 - step * pull), steps, CLIP, batch, adjacency)
    for _ in range(60):
        directions, frequency = random.normal(size=(steps * batch + 1, 3)), 10 ** random.uniform(-1, 4)
        offsets = random.normal(size=(steps * batch + 1, 3))

        def gradient(i: int, x: Floats) -> Floats:
            return 5 * directions[i] * np.sin(frequency * x + offsets[i])  # noqa: B023

        data: list[int | None] = list(random.permutation(steps * batch))
        start, centre = random.normal(size=3), random.normal(size=3)
        ends = []
        for changed in (data, [(steps * batch if adjacency == "replace-one" else None) if i == 0 else i for i in data]):
            batches = [changed[r * batch : (r + 1) * batch] for r in range(steps)]
            ends.append(2.0 * local_steps(batches, gradient, start, pull, step, centre))
        assert np.linalg.norm(ends[0] - ends[1]) <= bound * (1 + 1e-12)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("steps", "batch", "keep"), [(1, 1, 0.8), (1, 5, 1.0), (2, 1, 0.5), (2, 4, 1.0), (3, 4, 0.9), (3, 2, 1.3)]
)
def test_adversarial_gradients_attain_it(adjacency: str, steps: int, batch: int, keep: float) -> None:
    """The other records' gradients turn round between the models of two neighbours, however close these are."""
    step, here = 0.1, {np.zeros(1).tobytes(): 0.1}  # gradients of the others, at the models met so far

    def end(record: float | None, side: float) -> float:
        def gradient(i: int, x: Floats) -> Floats:
            return np.array([record if i == 1 else here.setdefault(x.tobytes(), side)])

        first: list[int | None] = [None if record is None else 1, *[0] * (batch - 1)]
        batches = [first, *[[0] * batch] * (steps - 1)]
        return float(local_steps(batches, gradient, np.zeros(1), (1 - keep) / step, step, np.ones(1))[0])

    other = -CLIP if adjacency == "replace-one" else None
    moved = abs(end(CLIP, CLIP) - end(other, -CLIP))
    assert moved == pytest.approx(upload(step, 1.0, keep, steps, CLIP, batch, adjacency), rel=1e-9)


@pytest.mark.parametrize("seen_at", [0, 1, 2])
def test_the_first_minibatch_is_the_worst_place(seen_at: int) -> None:
    """The maximum over r, written out."""
    steps, keep, batch = 3, 0.9, 4
    here = keep ** (steps - 1 - seen_at) * 2 * CLIP / batch
    after = sum(keep ** (steps - 1 - r) * 2 * CLIP for r in range(seen_at + 1, steps))
    bound = upload(0.1, 1.0, keep, steps, CLIP, batch, "replace-one")
    assert bound >= 0.1 * (here + after) - 1e-15
    if seen_at == 0:
        assert bound == pytest.approx(0.1 * (here + after), rel=1e-12)


def test_poisson_batches_are_bounded_for_one_step_only() -> None:
    assert upload(0.1, -2.0, 1.0, 1, CLIP, 30, "add-remove", "poisson") == pytest.approx(0.2 * CLIP / 30)
    with pytest.raises(UsageError, match="one local step"):
        upload(0.1, 1.0, 1.0, 2, CLIP, 30, "add-remove", "poisson")


# --- the hidden dual ---------------------------------------------------------------------------------------------


def fedpdm_round(
    gradients: list[Callable[[Floats], Floats]], dual: Floats, start: Floats, step: float, penalty: float
) -> tuple[Floats, Floats]:
    """(10a)-(10d): (upload, new dual) with the given gradient function of each local step."""
    x = start.copy()
    for gradient in gradients:
        x = x - step * (gradient(x) - dual + RHO * (x - start) + 2 * penalty * x)
    new = dual + RHO * (start - x)
    return x - new / RHO, new


def prox(t: int) -> float:
    return 1 / (RHO + math.sqrt(t))


def fedpd(t: int) -> float:
    return 1 / math.sqrt(t) / RHO


@pytest.mark.parametrize("rule", [prox, fedpd])
@pytest.mark.parametrize(("steps", "penalty", "batch"), [(1, 0.0, 1), (1, 0.4, 3), (2, 0.0, 2), (3, 1.0, 2)])
def test_hidden_duals_never_drift_further(rule: Callable[[int], float], steps: int, penalty: float, batch: int) -> None:
    """Random patterns of participation, and gradients that differ by what they may in each step."""
    random, rounds = np.random.default_rng(3), 12
    sizes = [rule(t) for t in range(1, rounds + 1)]
    hidden = upload_hidden(sizes, RHO, steps, CLIP, batch, "replace-one", penalties=(penalty,))
    largest = np.zeros(rounds)
    for _ in range(150):
        duals, pattern = [np.zeros(1), np.zeros(1)], random.random(rounds) < random.uniform(0.2, 1)
        lucky = random.uniform(0, 1)
        for t in np.flatnonzero(pattern):
            start, drawn = random.normal(size=1), random.integers(steps) if random.random() < 0.7 else -1
            sign = np.where(random.random(steps) < lucky, 1.0, -1.0)
            pair = []
            for which, dual in zip((1.0, -1.0), duals, strict=True):
                size = [CLIP / batch if r == 0 and drawn == 0 else CLIP if r else 0.0 for r in range(steps)]
                gradients = [lambda x, g=which * s * z: np.array([g]) for s, z in zip(sign, size, strict=True)]
                pair.append(fedpdm_round(gradients, dual, start, sizes[t], penalty))
            duals = [pair[0][1], pair[1][1]]
            assert abs(duals[0] - duals[1])[0] <= hidden.drift[t] * (1 + 1e-10)
            largest[t] = max(largest[t], abs(pair[0][0] - pair[1][0])[0])
    assert (largest <= hidden.sensitivity * (1 + 1e-10)).all()
    assert (largest > 0.2 * hidden.sensitivity).mean() > 0.7


@pytest.mark.parametrize("rule", [prox, fedpd])
@pytest.mark.parametrize("batch", [1, 4])
def test_one_step_attains_it_in_every_round(rule: Callable[[int], float], batch: int) -> None:
    """The largest over all signs of the record's gradients and all patterns of participation."""
    sizes = [rule(t) for t in range(1, 5)]
    hidden = upload_hidden(sizes, RHO, 1, CLIP, batch, "replace-one")
    largest = np.zeros(4)
    for choices in itertools.product([-1.0, 0.0, 1.0], repeat=4):
        duals = [np.zeros(1), np.zeros(1)]
        for t, choice in enumerate(choices):
            if choice == 0.0:  # the client is absent
                continue
            pair = [
                fedpdm_round(
                    [lambda x, g=which * choice * CLIP / batch: np.array([g])], dual, np.zeros(1), sizes[t], 0.0
                )
                for which, dual in zip((1.0, -1.0), duals, strict=True)
            ]
            duals = [pair[0][1], pair[1][1]]
            largest[t] = max(largest[t], abs(pair[0][0] - pair[1][0])[0])
    np.testing.assert_allclose(largest, hidden.sensitivity, rtol=0.03)


def test_the_identities_of_a_round() -> None:
    """y = x_0 - 2 step S + (1 - 2 a^Q) lambda / rho and lambda+ = a^Q lambda + rho step S."""
    random, step, steps = np.random.default_rng(5), 0.03, 3
    dual, start, g = random.normal(size=2), random.normal(size=2), random.normal(size=(steps, 2))
    y, new = fedpdm_round([lambda x, r=r: g[r] for r in range(steps)], dual, start, step, 0.0)
    a = 1 - step * RHO
    total = sum(a ** (steps - 1 - r) * g[r] for r in range(steps))
    np.testing.assert_allclose(new, a**steps * dual + RHO * step * total, rtol=1e-12)
    np.testing.assert_allclose(y, start - 2 * step * total + (1 - 2 * a**steps) * dual / RHO, rtol=1e-12)


@pytest.mark.parametrize(("rule", "least", "most"), [(prox, 1.4, 1.5), (fedpd, 7.5, 9.0)])
def test_what_a_hidden_dual_costs(rule: Callable[[int], float], least: float, most: float) -> None:
    """300 rounds, one local step: at most 1.5 times the sensitivity with a public dual, or about 8 times."""
    sizes = [rule(t) for t in range(1, 301)]
    public = np.array([upload(step, 2.0, abs(1 - step * RHO), 1, CLIP, 30, "replace-one") for step in sizes])
    ratio = upload_hidden(sizes, RHO, 1, CLIP, 30, "replace-one").sensitivity / public
    assert ratio[0] == 1.0  # no dual yet
    assert least <= ratio.max() <= most
    assert (ratio >= 1).all()
