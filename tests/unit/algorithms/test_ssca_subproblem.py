"""The closed form of SSCA's convex problem with one constraint against the dual problem in any number of them."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.algorithms.ssca import solve
from mpifed.maths.dual import levels, multipliers
from mpifed.maths.surrogate import Forms, Surrogate, gram


@pytest.mark.parametrize("constant", [-0.5, 0.1, 0.4, 3.0])  # met, active, nearly out of reach, and out of reach
@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_one_constraint_in_closed_form_is_the_dual(constant: float, margin: float) -> None:
    linear = np.array([[0.3, -0.7, 0.2]])
    surrogate, cost = Surrogate(np.array([constant]), linear, np.float64(1)), np.array([50.0])  # type: ignore[arg-type]
    form = Forms(np.array([constant]), np.array([1.0, 0.3]), (None, 0))
    found, products = solve(surrogate, form, cost, margin), gram(surrogate, form.rows)
    nu = multipliers(form.constants + margin, products, form.curvatures, cost)
    np.testing.assert_allclose(found.multipliers, nu, rtol=1e-12)
    slack = np.maximum(levels(nu, form.constants + margin, products, form.curvatures), 0)
    np.testing.assert_allclose(found.slack, slack, rtol=1e-12, atol=1e-14)
    assert found.total == pytest.approx(1 + 0.3 * nu[0], rel=1e-12)
    w = -np.array(found.factors) @ linear
    np.testing.assert_allclose(w, -nu @ linear / (2 * found.total), rtol=1e-12)
    assert (found.slack[0] > 1e-12) == (constant == 3.0)
