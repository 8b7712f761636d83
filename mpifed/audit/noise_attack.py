"""Whether the rounding of a private release shows which of its values are noise alone.

With local noise, each upload has its own draw; with central noise, or distributed noise of a single client, the first
model has the draw of the sum. Other sums have noise of several clients, of which every float is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from mpifed.algorithms.private import settings
from mpifed.audit.attack_result import BITS, AttackResult, Floats, not_applicable
from mpifed.audit.attacks.bits import LEVEL, Hits, Singles, share
from mpifed.audit.messages import Play
from mpifed.audit.reader import EACH, HIDDEN, SEALED, Reader
from mpifed.audit.replay import Replay
from mpifed.core.exchange import Exchange
from mpifed.core.privacy import Privacy
from mpifed.core.record import bare_leaves, leaves
from mpifed.core.reveals import AddedNoise

MODEL = "the model after the first round"


@dataclass(frozen=True)
class Arithmetic:
    """Release that results from standard normal noise and a value of zero; see `mpifed.audit.attacks.bits`."""

    deviation: float
    weight: float = 1.0  # of the client
    scale: float = 0.0  # fixed-point unit of the sum; 0 for none
    total: float = 1.0  # divisor of the sum

    def __call__(self, noise: Singles) -> Singles:
        values: Singles = noise * np.float32(self.deviation) * np.float32(self.weight)
        if self.scale:
            values = (np.rint(values / np.float64(self.scale)) * self.scale).astype(np.float32)
        values = values / np.float32(self.total)
        return values


Released = tuple[Singles, Arithmetic]


def noise_attack(reader: Reader) -> Iterator[AttackResult]:
    """Attack on single uploads with local noise, or else on the first model."""
    replay = reader.replay
    privacy = replay.algorithm.problem.privacy
    local = privacy is not None and privacy.trust == "local"
    who, seen = ("server", EACH if replay.transcript.channel == "plain" else SEALED) if local else ("anybody", MODEL)
    if privacy is None or not privacy.multiplier:
        yield not_applicable(BITS, "the job adds no noise", who)
        return
    exchange = _noisy(reader)
    why = _unknown(reader, exchange, privacy)
    if exchange is None or why:
        yield not_applicable(BITS, why, who, seen)
    else:
        released = _uploads(reader, exchange) if local else _first_model(reader, exchange)
        yield _result(list(released), np.random.default_rng(replay.job.seed), who, seen)


def _noisy(reader: Reader) -> Exchange | None:
    """The exchange whose uploads contain declared noise; None if there is none."""
    return next(
        (exchange for exchange in reader.rounds if any(True for _ in reader.revealed_by_sum(AddedNoise, exchange))),
        None,
    )


def _unknown(reader: Reader, exchange: Exchange | None, privacy: Privacy) -> str:
    """Why the attack does not apply, in words; "" if it applies."""
    replay = reader.replay
    if exchange is None:
        return "no message that can be read contains noise of a single draw"
    if replay.algorithm.problem.dtype != "float32":
        return "the job computes in float64; the attack is on the generator of float32"
    if privacy.trust == "local":
        return "" if reader.readable(exchange) else HIDDEN
    if not all(noise.in_model for _, noise in reader.revealed_by_sum(AddedNoise, exchange)):
        return "the dependence of the model on the noise is not known"
    if privacy.trust == "distributed" and replay.round_starts[0].now.fewest > 1:
        return "the sum has noise of several clients, of which nearly every float is a possible value"
    return ""


def _result(released: list[Released], rng: np.random.Generator, who: str, seen: str) -> AttackResult:
    """How many of the small values of all releases the generator can produce."""
    parts = [share(values, arithmetic, rng) for values, arithmetic in released if len(values)]
    of = sum(part.of for part in parts)
    if not of:
        return not_applicable(BITS, "no value is small enough to be noise alone", who, seen)
    whole = Hits(sum(part.hits for part in parts), of, sum(part.chance * part.of for part in parts) / of)
    text = (
        f"the generator of float32 noise can produce {whole.hits} of {of} small values; of values with other content, "
        f"{whole.chance * of:.0f} would be expected by chance (p = {whole.p:.2g})"
    )
    return AttackResult(BITS, who, seen, True, whole.p < LEVEL, text)


def _uploads(reader: Reader, exchange: Exchange) -> Iterator[Released]:
    """Uploads of each client, by field."""
    weights = _weights(reader.replay)
    for _, noisy in reader.revealed_by_client(AddedNoise, exchange):
        for client, items in noisy.items():
            for noise in items:
                arithmetic = partial(Arithmetic, noise.deviation, float(weights[client]))
                for leaf, scale in zip(bare_leaves(noise.values), reader.scales(exchange), strict=False):
                    yield np.asarray(leaf, np.float32).ravel(), arithmetic(scale)


def _first_model(reader: Reader, exchange: Exchange) -> Iterator[Released]:
    """The model after the first round, where it was zero before."""
    replay = reader.replay
    problem, weights = replay.algorithm.problem, _weights(replay)
    played: list[tuple[Play, AddedNoise]] = list(reader.revealed_by_sum(AddedNoise, exchange))[:2]
    if not played:
        return
    first, noise = played[0]
    total = float(problem.clients_per_round or len(weights))
    if not settings(problem).by_coins:
        total = float(weights[list(first.uploads)].sum())
    deviation = noise.deviation * float(weights.max())
    if settings(problem).trust == "central":
        arithmetic = Arithmetic(deviation, total=total)
    else:  # noise of a single client
        scale = 0.0 if settings(problem).whole else reader.scales(exchange)[0]
        arithmetic = Arithmetic(deviation / total, total, scale, total)
    last = {f"model.{name}": leaf for name, leaf in leaves(replay.algorithm.model(replay.server))}
    after = played[1][0].question if len(played) > 1 else last
    for name in set(last) & set(after) & set(first.question):
        before = np.asarray(first.question[name])
        yield np.asarray(after[name], np.float32)[before == 0], arithmetic


def _weights(replay: Replay) -> Floats:
    """[N] weights of clients in the mean."""
    problem = replay.algorithm.problem
    return np.ones(problem.clients) if settings(problem).level == "client" else np.asarray(problem.weights, np.float64)
