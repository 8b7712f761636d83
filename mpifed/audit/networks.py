"""The rows behind the gradient of a network of a library.

- A first layer that sees all features and has biases gives the row of a minibatch of one: a unit's gradient is
  (derivative by its input) x the row, and that of its bias the derivative itself. It is exact.
- Other networks of PyTorch, and few rows: rows and labels are optimized until the cosine of their gradient and the
  observed one is largest (J. Geiping, H. Bauermeister, H. Droege, M. Moeller, "Inverting Gradients", NeurIPS 2020,
  arXiv:2003.14053): by Adam along signs, without their total variation, which knows what images look like.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.inversion import Recovered
from mpifed.core.record import Array, bare_leaves
from mpifed.maths.objectives import NeuralNetwork, Parameters
from mpifed.maths.objectives.torch_model import TorchNetwork, built

STEPS = 1000
RATE = 0.1  # of Adam; it falls to zero


def rows_behind_network(
    objective: NeuralNetwork, mean: MeanGradient, batch: int, features: int, outputs: int, nonnegative: bool
) -> Recovered:
    """The rows [f, p] of a minibatch; none where no attack is built in."""
    row = _first_layer(mean.gradient, features) if batch == 1 else None
    if row is not None:
        return Recovered(row[None], True)
    if isinstance(objective, TorchNetwork) and objective.loss_name == "cross-entropy":
        return Recovered(_by_cosine(objective, mean, batch, features, outputs, nonnegative), False)
    return Recovered(np.zeros((0, features)), False)


def _first_layer(gradient: Parameters, features: int) -> Array | None:
    """[p] the row, from the gradients of a matrix [units, features], or its transpose, and of the biases beside it."""
    for both in pairwise(bare_leaves(gradient.head)):
        for w, b in (both, both[::-1]):
            if b.ndim == 1 and w.ndim == 2 and {*w.shape} == {len(b), features} and b.any():
                unit = int(np.argmax(np.abs(b)))
                row: Array = (w if w.shape == (len(b), features) else w.T)[unit] / np.float64(b[unit])  # as of JAX
                return row
    return None


def _by_cosine(
    objective: TorchNetwork, mean: MeanGradient, batch: int, features: int, outputs: int, nonnegative: bool
) -> Array:
    """[batch, p] rows whose gradient points where the observed one does."""
    import torch

    shape = objective.shape or (features,)
    net, head = built(objective.build, 0, shape, outputs).eval(), mean.model.head
    parameters = {
        name: torch.tensor(leaf, dtype=torch.float32, requires_grad=True)
        for name, leaf in zip(head._fields, bare_leaves(head), strict=True)
    }
    seen = torch.cat([torch.tensor(leaf, dtype=torch.float32).reshape(-1) for leaf in bare_leaves(mean.gradient.head)])
    x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.zeros(batch, outputs, requires_grad=True)  # logits of the labels
    adam = torch.optim.Adam([x, y], RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    for _ in range(STEPS):
        z = torch.func.functional_call(net, parameters, (x,))
        loss = torch.nn.functional.cross_entropy(z, y.softmax(1))
        slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        whole = torch.cat([slope.reshape(-1) for slope in slopes])
        cosine = torch.nn.functional.cosine_similarity(whole, seen, dim=0)
        x.grad, y.grad = (-slope for slope in torch.autograd.grad(cosine, (x, y)))
        x.grad.sign_()
        adam.step()
        falling.step()
        if nonnegative:
            x.data.clamp_(min=0)
    rows: Array = x.detach().numpy().reshape(batch, -1).astype(np.float64)
    return rows
