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
from mpifed.core.record import Array, bare_leaves
from mpifed.maths.objectives.torch_model import TorchNetwork, built
from mpifed.maths.problem import Problem

STEPS = 1000
RATE = 0.1  # of Adam; it falls to zero


def rows_behind_network(problem: Problem, mean: MeanGradient, batch: int, nonnegative: bool) -> Array:
    """The rows [f, p] of a minibatch; none where no attack is built in."""
    objective, features = problem.objective, problem.features
    for both in pairwise(bare_leaves(mean.gradient.head)) if batch == 1 else ():
        for w, b in (both, both[::-1]):
            if b.ndim == 1 and w.ndim == 2 and {*w.shape} == {len(b), features} and b.any():
                unit = int(np.argmax(np.abs(b)))
                row: Array = (w if w.shape == (len(b), features) else w.T)[unit] / np.float64(b[unit])  # as of JAX
                return row[None]
    if not isinstance(objective, TorchNetwork) or objective.loss_name != "cross-entropy":
        return np.zeros((0, features))
    import torch

    def tensor(leaf: Array) -> torch.Tensor:
        return torch.tensor(leaf, dtype=torch.float32)

    shape, head = objective.shape or (features,), mean.model.head
    net = built(objective.build, 0, shape, problem.outputs).eval()
    values = [tensor(leaf).requires_grad_() for leaf in bare_leaves(head)]
    parameters = dict(zip(head._fields, values, strict=True))
    seen = torch.cat([tensor(leaf).reshape(-1) for leaf in bare_leaves(mean.gradient.head)])
    x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.zeros(batch, problem.outputs, requires_grad=True)  # logits of the labels
    adam = torch.optim.Adam([x, y], RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    for _ in range(STEPS):
        z = torch.func.functional_call(net, parameters, (x,))
        loss = torch.nn.functional.cross_entropy(z, y.softmax(1))
        slopes = torch.autograd.grad(loss, values, create_graph=True)
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
