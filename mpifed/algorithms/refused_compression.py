"""What does not go with `[compression]`: rows of a method, and of a job with its method."""

from __future__ import annotations

from collections.abc import Iterator

from mpifed.algorithms.more_exchanges import Method
from mpifed.core.refusals import Refusal
from mpifed.maths.compression import Sparse


def refused_compression(method: Method) -> Iterator[Refusal]:
    """What of the settings, the method or `[privacy]` does not go with the compression of uploads."""
    compression, privacy, d = method.problem.compression, method.problem.privacy, method.layout.size
    if compression is None:
        return
    key, memory, other = "[compression]", compression.memory, "leave [compression] out, or take another method"
    if isinstance(compression, Sparse):
        k, fraction = compression.k, compression.fraction
        yield Refusal(
            (k is None) == (fraction is None),
            f"{key} k, fraction",
            "each says how many coordinates are sent, and so one of the two is expected",
            "give fraction = 0.01, or the number itself",
        )
        yield Refusal((k or 0) > d, f"{key} k = {k}", f"the model has {d} parameters", "lower it")
        if (k is None) == (fraction is None) or (k or 0) > d:
            return
    yield Refusal(
        memory == "diana" and not compression.unbiased,
        f'{key} memory = "diana"',
        "needs an unbiased compressor",
        'take rand-k, qsgd or natural, or memory = "ef21"',
    )
    alpha, slow = compression.alpha, memory == "diana" and compression.unbiased
    yield Refusal(
        alpha is not None and memory not in ("ef21-sgdm", "diana"),
        f"{key} alpha",
        f'memory = "{memory}" has no mean over rounds',
    )
    yield Refusal(
        slow and (alpha or 0) > 1 / (1 + compression.omega(d)),
        f"{key} alpha = {alpha}",
        'memory = "diana" is proven to converge up to 1 / (1 + omega) alone',
        "lower it, or leave it out, which takes that",
    )
    yield Refusal(
        method.guard.work.several,
        key,
        "an upload of this method has several parts, or is not of the model's shape",
        other,
    )
    yield Refusal(
        method.prepare is not None or method.hear is not None,
        key,
        "clients of this method exchange more than their uploads in a round, by which it needs them as they were",
        other,
    )
    yield Refusal(method.personal is not None, key, "clients of this method are judged by models of their own", other)
    yield Refusal(
        privacy is not None and privacy.trust != "local",
        f'{key} with [privacy] trust = "{privacy and privacy.trust}"',
        "the noise is of the sum's integers, all of which must travel",
        'take trust = "local", where clients compress what is noisy already',
    )


def refused_absence(method: Method, dropouts: bool) -> Refusal:
    """Absent clients, of methods that keep states, where the server's estimate is of all clients."""
    compression, problem = method.problem.compression, method.problem
    absent = dropouts or (problem.clients_per_round or problem.clients) < problem.clients
    return Refusal(
        compression is not None and compression.counts_absent and absent and method.guard.work.remembers,
        f'[compression] memory = "{compression and compression.memory}"',
        "where clients are absent the server knows the mean of all clients' uploads, and the states of this method "
        "need that of those present",
        'take memory = "error-feedback" or "none", or let all clients take part',
    )
