"""Clients' optimizers beside PyTorch's, on the same gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifed import SGD, AdamW

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

PAIRS = [
    (AdamW(0.02), lambda w: torch.optim.AdamW([w], 0.02)),
    (
        AdamW(0.02, beta1=0.5, beta2=0.9, eps=0.1, weight_decay=0.3),
        lambda w: torch.optim.AdamW([w], 0.02, (0.5, 0.9), 0.1, 0.3),
    ),
    (
        SGD(0.02, momentum=0.9, nesterov=True, weight_decay=0.3),
        lambda w: torch.optim.SGD([w], 0.02, 0.9, weight_decay=0.3, nesterov=True),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda part: getattr(type(part), "__name__", ""))
def test_the_steps_are_pytorchs(ours: Any, theirs: Any) -> None:
    random = np.random.default_rng(3)
    w, state = random.normal(size=6), ours.start
    there = torch.tensor(w.copy(), requires_grad=True)
    optimizer = theirs(there)
    for k in range(1, 9):
        g = random.normal(size=6)
        there.grad = torch.from_numpy(g.copy())
        optimizer.step()
        direction, state = ours.direction(state, g, w, k)
        w = w - ours.at(1) * direction
        np.testing.assert_allclose(w, there.detach().numpy(), rtol=0, atol=1e-12)
