"""Whether what a private job releases tells by its rounding where nothing was added to the noise.

A client's upload has noise of its own where that is local; the first model has that of the sum where the server adds
it, or where one client alone had to. Other sums have the noise of several, of which every float is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from mpifed.audit.attacks.bits import LEVEL, Hits, Singles, share
from mpifed.audit.attempt import BITS, Attempt, Floats, none
from mpifed.audit.plays import Play
from mpifed.audit.reader import EACH, HIDDEN, SEALED, Reader
from mpifed.audit.stage import Stage
from mpifed.core.exchange import Exchange
from mpifed.core.record import bare_leaves, leaves
from mpifed.core.reveals import AddedNoise
from mpifed.maths.privacy.settings import Privacy

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


def on_noise(reader: Reader) -> Iterator[Attempt]:
    """Of what is released first hand: single uploads, or the first model."""
    stage = reader.stage
    privacy: Privacy | None = stage.algorithm.problem.privacy
    local = privacy is not None and privacy.trust == "local"
    who, seen = ("server", EACH if stage.transcript.channel == "plain" else SEALED) if local else ("anybody", MODEL)
    if privacy is None or not privacy.multiplier:
        yield none(BITS, "the job adds no noise", who)
        return
    exchange = _noisy(reader)
    why = _unknown(reader, exchange, privacy)
    if exchange is None or why:
        yield none(BITS, why, who, seen)
    else:
        found = _uploads(reader, exchange) if local else _first_model(reader, exchange)
        yield _attempt(list(found), np.random.default_rng(stage.job.seed), who, seen)


def _noisy(reader: Reader) -> Exchange | None:
    """The exchange of a round whose answers hold noise; None where none is known to."""
    return next((one for one in reader.rounds if any(True for _ in reader.told_by_sum(AddedNoise, one))), None)


def _unknown(reader: Reader, exchange: Exchange | None, privacy: Privacy) -> str:
    """Why noise is nowhere alone, or what becomes of it is not known; "" where it is."""
    stage = reader.stage
    if exchange is None:
        return "no noise is in what can be read, or none that is of one draw"
    if stage.algorithm.problem.dtype != "float32":
        return "the job computes in float64, and the generator that is tried here is that of float32"
    if privacy.trust == "local":
        return "" if reader.readable(exchange) else HIDDEN
    if not all(one.in_model for _, one in reader.told_by_sum(AddedNoise, exchange)):
        return "how the model follows from noise is not known here"
    if privacy.trust == "distributed" and stage.scenes[0].now.fewest > 1:
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


def _uploads(reader: Reader, exchange: Exchange) -> Iterator[Released]:
    """What each client sent, field by field."""
    each = _weights(reader.stage)
    for _, noisy in reader.told(AddedNoise, exchange):
        for client, several in noisy.items():
            for one in several:
                arithmetic = partial(Arithmetic, one.deviation, float(each[client]))
                for leaf, scale in zip(bare_leaves(one.values), reader.scales(exchange), strict=False):
                    yield np.asarray(leaf, np.float32).ravel(), arithmetic(scale)


def _first_model(reader: Reader, exchange: Exchange) -> Iterator[Released]:
    """What the model became where it was zero before."""
    stage = reader.stage
    problem, each = stage.algorithm.problem, _weights(stage)
    played: list[tuple[Play, AddedNoise]] = list(reader.told_by_sum(AddedNoise, exchange))[:2]
    if not played:
        return
    first, noise = played[0]
    total = float(problem.clients_per_round or len(each))
    if not problem.privacy.by_coins:
        total = float(each[list(first.uploads)].sum())
    deviation = noise.deviation * float(each.max())
    if problem.privacy.trust == "central":
        arithmetic = Arithmetic(deviation, total=total)
    else:  # of one client
        scale = 0.0 if problem.privacy.whole else reader.scales(exchange)[0]
        arithmetic = Arithmetic(deviation / total, total, scale, total)
    last = {f"model.{name}": leaf for name, leaf in leaves(stage.algorithm.model(stage.server))}
    after = played[1][0].question if len(played) > 1 else last
    for name in set(last) & set(after) & set(first.question):
        before = np.asarray(first.question[name])
        yield np.asarray(after[name], np.float32)[before == 0], arithmetic


def _weights(stage: Stage) -> Floats:
    """[N] what clients count in the mean."""
    problem = stage.algorithm.problem
    return np.ones(problem.clients) if problem.privacy.level == "client" else np.asarray(problem.weights, np.float64)
