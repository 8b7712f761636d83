"""The package's certificates and those of `jobs.constraints`: the same numbers, at the edges too, in all units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from test_recomputed_certificate import point

from jobs.constraints import certificate as written_out
from jobs.constraints.certificate import Point
from mpifed.maths import certificates


def of_the_package(at: Point) -> dict[str, float | None]:
    """The columns by `mpifed.maths.certificates`."""
    now = certificates.CertifiedPoint(
        at.value[0], at.gradient[0], at.excess, at.gradient[1:], at.limit, at.root_mean_square
    )
    slopes = at.first_slopes
    first = certificates.FirstIterate(at.first_value[0], slopes[0], at.first_value[1:] - at.limit, slopes[1:], 0.0)
    nu = certificates.best_multipliers(now, first)
    found: dict[str, float | None] = dict(certificates.certificate(now, first, nu)._asdict())
    found |= {f"multiplier_{m}": float(value) for m, value in enumerate(nu, 1)}
    unit = certificates.length_scale(at.length, first)
    found["feasible_direction"] = certificates.feasible_direction(now, at.curvature, unit)
    bound = certificates.lower_bound(now, nu, at.curvature) if at.convex else -np.inf
    found["lower_bound"] = None if bound == -np.inf else bound
    return found


def check_same(at: Point) -> None:
    ours, theirs = written_out.certificate(at), of_the_package(at)
    scale = {"lower_bound": at.value_scale, "kkt_residual": 1e-3, "stationarity": 1e-3, "complementarity": 1e-3}
    for name, value in theirs.items():
        if name == "lower_bound" and theirs["feasible_direction"] == 0:
            continue  # any number is a bound where nothing meets the limits
        if value is None or ours[name] is None:
            assert value is ours[name], name
        else:
            assert value == pytest.approx(ours[name], rel=1e-6, abs=1e-6 * scale.get(name, 0.0)), name


@pytest.mark.parametrize("seed", range(60))
def test_the_package_has_the_same_numbers(seed: int) -> None:
    check_same(point(seed, units=1.0))


def special(**changes: Any) -> Point:
    """Two limits, one of them missed, changed."""
    at = Point(
        value=np.array([2.0, 1.0, 3.0]),
        gradient=np.array([[1.0, 0.5, -1.0], [-1.0, 0.0, 0.3], [0.2, -1.0, 0.4]]),
        limit=np.array([0.9, 4.0]),
        root_mean_square=np.array([1.5, 2.0]),
        first_value=np.array([5.0, 2.0, 6.0]),
        first_slopes=np.array([3.0, 1.5, 0.5]),
        length=2.0,
        curvature=np.array([0.5, 0.0, 2.0]),
        convex=True,
    )
    arrays = {name: np.array(value) if isinstance(value, list) else value for name, value in changes.items()}
    return at._replace(**arrays)


EDGES = {
    "nothing special": special(),
    "not convex": special(convex=False),
    "limits met": special(limit=[1.1, 4.0]),
    "limits met exactly": special(limit=[1.0, 3.0]),
    "limit 0, missed": special(limit=[0.0, 4.0]),
    "limit 0, and 0 at first": special(limit=[0.0, 4.0], first_value=[5.0, 0.0, 6.0]),
    "limit 0, met": special(limit=[0.0, 4.0], value=[2.0, -1.0, 3.0]),
    "objective 0": special(value=[0.0, 1.0, 3.0]),
    "objective 0, and at first": special(value=[0.0, 1.0, 3.0], first_value=[0.0, 2.0, 6.0]),
    "objective 0, limits met exactly": special(value=[0.0, 1.0, 3.0], first_value=[0.0, 2.0, 6.0], limit=[1.0, 3.0]),
    "the norm at 0": special(
        value=[0.0, 1.0, 3.0], first_value=[0.0, 1.0, 3.0], first_slopes=[0.0, 1.0, 0.1], length=0.0,
        gradient=[[0.0, 0.0, 0.0], [-1.0, 0.0, 0.3], [0.2, -1.0, 0.4]], curvature=[2.0, 0.0, 0.0],
    ),
    "a constraint without slope": special(gradient=[[1.0, 0.5, -1.0], [-1.0, 0.0, 0.3], [0.0, 0.0, 0.0]]),
    "a missed one without slope": special(gradient=[[1.0, 0.5, -1.0], [0.0, 0.0, 0.0], [0.2, -1.0, 0.4]]),
    "twice the same": special(
        value=[2.0, 1.0, 1.0], limit=[0.9, 0.9], first_value=[5.0, 2.0, 2.0], curvature=[0.5, 0.0, 0.0],
        gradient=[[1.0, 0.5, -1.0], [-1.0, 0.0, 0.3], [-1.0, 0.0, 0.3]],
    ),
    "twice the same, met exactly": special(
        value=[2.0, 1.0, 1.0], limit=[1.0, 1.0], first_value=[5.0, 2.0, 2.0], curvature=[0.5, 0.0, 0.0],
        gradient=[[1.0, 0.5, -1.0], [-1.0, 0.0, 0.3], [-1.0, 0.0, 0.3]],
    ),
    "more limits than parameters": special(gradient=[[1.0], [-1.0], [-0.2]], limit=[1.0, 3.0]),
    "they contradict each other": special(limit=[0.9, 2.0], gradient=[[1.0], [-1.0], [0.2]], curvature=[1.0, 0, 0]),
    "they nearly do": special(limit=[0.9, 2.9], gradient=[[1.0, 0], [-1.0, 0.01], [1.0, 0.0]], curvature=[1.0, 0, 0]),
    "only a limit is curved": special(curvature=[0.0, 0.0, 2.0]),
    "nothing is curved": special(curvature=[0.0, 0.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_at_the_edges_too(name: str) -> None:
    check_same(EDGES[name])


UNITS = {
    "objective": ([1000.0, 1, 1], [0, 1]),
    "first constraint": ([1, 1000.0, 1], [0, 1]),
    "all": ([1e-3, 1e5, 1e-4], [0, 1]),
    "other order": ([1, 1, 1], [1, 0]),
}


@covering({"change": UNITS, "edge": EDGES}, 1)
def test_units_and_order_say_nothing(change: str, edge: str) -> None:
    """Neither of objective and constraints with their limits, for both."""
    (units, order), at = UNITS[change], EDGES[edge]
    scale, whole = np.array(units), [0, *np.array(order) + 1]
    other = at._replace(
        value=(at.value * scale)[whole], gradient=(at.gradient * scale[:, None])[whole],
        limit=(at.limit * scale[1:])[order],
        root_mean_square=(at.root_mean_square * scale[1:])[order], first_value=(at.first_value * scale)[whole],
        first_slopes=(at.first_slopes * scale)[whole], curvature=(at.curvature * scale)[whole],
    )  # fmt: skip
    for numbers in (written_out.certificate, of_the_package):
        before, after = numbers(at), numbers(other)
        for name in ("stationarity", "feasibility", "complementarity", "kkt_residual", "feasible_direction"):
            if before[name] is None:
                assert after[name] is None
            else:
                assert after[name] == pytest.approx(before[name], rel=1e-7, abs=1e-12), name
        nu = np.array([before[f"multiplier_{m + 1}"] for m in order]) * scale[0] / scale[1:][order]
        np.testing.assert_allclose([after[f"multiplier_{m}"] for m in (1, 2)], nu, rtol=1e-6, atol=1e-12)
