"""Whether what a private job releases tells by its rounding where nothing was added to the noise.

A client's upload has noise of its own where that is local; the first model has that of the sum where the server adds
it, or where one client alone had to. Other sums have the noise of several, of which every float is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mpifed.algorithms.fedavg import FedAvg
from mpifed.algorithms.fedpdm import FedPDM
from mpifed.algorithms.scaffold import Scaffold
from mpifed.audit.attacks.bits import LEVEL, Hits, Singles, share
from mpifed.audit.attempt import BITS, Attempt, Floats, none
from mpifed.audit.heard import HIDDEN
from mpifed.audit.plays import Decoder, Play, plays
from mpifed.audit.stage import Stage
from mpifed.audit.targets import EACH, SEALED
from mpifed.core.record import bare_leaves, leaves
from mpifed.maths.privacy.settings import Privacy
from mpifed.run.transcript import Message

MODEL = "the model after the first round"


@dataclass(frozen=True)
class Arithmetic:
    """What becomes of standard normal noise to which nothing is added: see `mpifed.audit.attacks.bits`."""

    deviation: float
    weight: float = 1.0  # of the client who sends it
    scale: float = 0.0  # of whose multiples the sum is; 0 where it is no matter
    total: float = 1.0  # by which the sum is divided

    def __call__(self, noise: Singles) -> Singles:
        """What is released."""
        found: Singles = noise * np.float32(self.deviation) * np.float32(self.weight)
        if self.scale:
            found = (np.rint(found / np.float64(self.scale)) * self.scale).astype(np.float32)
        found = found / np.float32(self.total)
        return found


Released = tuple[Singles, Arithmetic]


def on_noise(stage: Stage, messages: tuple[Message, ...]) -> Iterator[Attempt]:
    """Of what is released first hand: single uploads, or the first model."""
    privacy: Privacy | None = stage.algorithm.problem.privacy
    local = privacy is not None and privacy.model == "local"
    who, seen = ("server", EACH if stage.transcript.channel == "plain" else SEALED) if local else ("anybody", MODEL)
    if privacy is None or not privacy.multiplier:
        yield none(BITS, "the job adds no noise", who)
    elif why := _unknown(stage, privacy):
        yield none(BITS, why, who, seen)
    else:
        found = _uploads(stage, messages) if local else _first_model(stage, messages)
        yield _attempt(list(found), np.random.default_rng(stage.job.seed), who, seen)


def _unknown(stage: Stage, privacy: Privacy) -> str:
    """Why noise is nowhere alone, or what becomes of it is not known here; "" where it is."""
    algorithm: Any = stage.algorithm
    if not isinstance(algorithm, (FedAvg, Scaffold, FedPDM)):
        return f"what {type(algorithm).__name__} makes of noise is not known here"
    if algorithm.problem.dtype != "float32":
        return "the job computes in float64, and the generator that is tried here is that of float32"
    if privacy.model == "local":
        if stage.transcript.channel == "encrypted":
            return HIDDEN
        if privacy.on_gradients and (isinstance(algorithm, FedPDM) or algorithm.local.count > 1):
            return "uploads are computed from several noisy gradients, or with factors that are not known here"
        return ""
    if not isinstance(algorithm, FedAvg) or algorithm.problem.regularizer is not None:
        return "how the model follows from noise is known here of fedavg and fedprox without a regularizer alone"
    if privacy.model == "distributed" and stage.scenes[0].now.fewest > 1:
        return "the sum has the noise of several clients, and nearly every float is a sum of some"
    return ""


def _attempt(found: list[Released], rng: np.random.Generator, who: str, seen: str) -> Attempt:
    """All releases together: how many of their small values the generator can give."""
    each = [share(values, arithmetic, rng) for values, arithmetic in found if len(values)]
    of = sum(one.of for one in each)
    if not of:
        return none(BITS, "there are no values so small that small noise alone could be behind them", who, seen)
    whole = Hits(sum(one.hits for one in each), of, sum(one.chance * one.of for one in each) / of)
    text = (
        f"the generator of float32 noise can give {whole.hits} of {of} small values; of values that are no noise it "
        f"could give {whole.chance * of:.0f} by chance (p = {whole.p:.2g})"
    )
    return Attempt(BITS, who, seen, True, whole.p < LEVEL, text)


def _uploads(stage: Stage, messages: tuple[Message, ...]) -> Iterator[Released]:
    """What each client sent, field by field."""
    exchange, each = stage.exchanges[0], _weights(stage)
    decoder = Decoder(stage, exchange)
    for play in plays(messages, exchange.name):
        arithmetic = partial(Arithmetic, _deviation(stage, play))
        for client, upload in play.uploads.items():
            answer: Any = decoder(upload)
            for leaf, scale in zip(bare_leaves(() if answer is None else answer.value), decoder.scales, strict=False):
                yield np.asarray(leaf, np.float32).ravel(), arithmetic(float(each[client]), scale)


def _first_model(stage: Stage, messages: tuple[Message, ...]) -> Iterator[Released]:
    """What the model became where it was zero before."""
    algorithm: Any = stage.algorithm
    exchange, each = stage.exchanges[0], _weights(stage)
    played = [play for play in plays(messages, exchange.name) if play.uploads][:2]
    if not played:
        return
    came = list(played[0].uploads)
    by_coins = algorithm.problem.privacy.by_coins
    total = float(algorithm.problem.clients_per_round or len(each)) if by_coins else float(each[came].sum())
    deviation = _deviation(stage, played[0]) * float(each.max())
    if algorithm.problem.privacy.model == "central":
        arithmetic = Arithmetic(deviation, total=total)
    else:  # of one client
        decoder = Decoder(stage, exchange)
        scale = 0.0 if algorithm.problem.privacy.whole else decoder.scales[0]
        arithmetic = Arithmetic(deviation / total, total, scale, total)
    last = {f"model.{name}": leaf for name, leaf in leaves(algorithm.model(stage.server))}
    after = played[1].question if len(played) > 1 else last
    for name in set(last) & set(after) & set(played[0].question):
        before = np.asarray(played[0].question[name])
        yield np.asarray(after[name], np.float32)[before == 0], arithmetic


def _weights(stage: Stage) -> Floats:
    """[N] what clients count in the mean."""
    problem = stage.algorithm.problem
    return np.ones(problem.clients) if problem.privacy.level == "client" else np.asarray(problem.weights, np.float64)


def _deviation(stage: Stage, play: Play) -> float:
    """The standard deviation of the noise of a round for a weight of 1, as floats have it."""
    algorithm: Any = stage.algorithm
    privacy, step = algorithm.problem.privacy, float(play.question["step"])
    if privacy.on_gradients:
        return step / int(algorithm.batch) * float(privacy.multiplier * privacy.reach)
    told = algorithm._share(play.round if isinstance(algorithm, FedPDM) else step)
    return float(privacy.multiplier * (told.paper if privacy.accounting == "paper" else told.sensitivity))
