"""A network of which few parameters train and travel: a transformer with adapters of low rank."""

from __future__ import annotations

import torch
from torch import nn

from mpifed.models import ByteTransformer, low_rank


def adapted(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The transformer with adapters of rank 4, which train, as its last layer does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # alike with every seed of a job, as weights are that `net.load_state_dict` reads
        net = ByteTransformer(shape, outputs)
    low_rank(net.requires_grad_(False).layers, 4)
    net.scores.requires_grad_(True)
    return net
