"""What of a method's job does not go with its `[compression]`: rows."""

from __future__ import annotations

from collections.abc import Iterator

from mpifed.core.exchange import Method
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
    yield Refusal(
        memory == "diana" and not compression.unbiased,
        f'{key} memory = "diana"',
        "needs an unbiased compressor",
        'take rand-k, qsgd or natural, or memory = "ef21"',
    )
    alpha = compression.alpha
    yield Refusal(
        alpha is not None and memory not in ("ef21-sgdm", "diana"),
        f"{key} alpha",
        f'memory = "{memory}" has no mean over rounds',
    )
    yield Refusal(
        memory == "diana" and (alpha or 0) > 1 / (1 + compression.omega(d)),
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
