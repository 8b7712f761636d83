"""Checks of HyFDCA's settings against each other and the data, see `mpifed.algorithms.hyfdca`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mpifed.algorithms.hyfdca_rules import TOGETHER

if TYPE_CHECKING:
    from mpifed.algorithms.hyfdca import HyFDCA


def wrong_settings(of: HyFDCA) -> Iterator[str]:
    """Errors of the settings, one message each."""
    counts = of.problem.counts
    smallest = int(np.argmin(counts))
    if of.inner is not None and of.rule in TOGETHER:
        yield f'[algorithm] inner = {of.inner}: rule "{of.rule}" moves all samples; leave it out'
    elif of.inner is not None and of.inner > counts[smallest]:
        yield (
            f"[algorithm] inner = {of.inner}: the smallest shard (client {smallest}) has {counts[smallest]} samples; "
            "lower inner"
        )
    if of.gamma is not None and of.rule not in ("paper", "theory"):
        yield f'[algorithm] gamma: rule "{of.rule}" has no step size but its own; leave it out'
    elif of.gamma is not None and of.gamma.at(1) > 1:
        yield f"[algorithm] gamma = {of.gamma.scale:g}: step sizes above 1 leave the domain; lower it"
    if of.sigma is not None and not of.needs_sigma:
        yield f'[algorithm] sigma = {of.sigma:g}: rule "{of.rule}" does not use it; leave it out'
    if of.returns == "best" and of.partial_participation:
        yield (
            '[algorithm] returns = "best": with absent clients the loss at a w is unknown; take "mean" or "last", or '
            "let all clients take part"
        )
    if of.draws == "client" and of.local.count(1.0) is None:
        yield f'[algorithm] draws = "client": rule "{of.rule}" draws nothing; leave it out, or give inner'
    if of.senders == "none" and (of.partial_participation or of.draws == "client"):
        yield (
            '[algorithm] senders = "none": holders of a sample know the same steps only if all clients take part, and '
            'draws = "rows"; take senders = "all"'
        )
