"""Every kernel, with the types and the scalars with which it is used."""

from __future__ import annotations

from typing import Any, NamedTuple

from mpifed.maths import kernels, kernels_duals, kernels_sums, sparse

BOTH = ("float32", "float64")


class Use(NamedTuple):
    """One way in which a kernel is launched."""

    source: Any
    types: dict[str, str]
    scalars: frozenset[str] = frozenset()


def uses() -> list[Use]:
    """All."""
    found = []
    for T in BOTH:
        for one in (kernels.SIGMOID, kernels.SWISH, kernels.SWISH_SLOPE, kernels.NOISE):
            found.append(Use(one, {"T": T}))
        found.append(Use(kernels.CROSS_ENTROPY, {"T": T}, frozenset({"outputs"})))
        for W in BOTH:
            found.append(Use(kernels.CROSS_ENTROPY_SLOPE, {"T": T, "W": W}, frozenset({"outputs"})))
            found.append(Use(sparse.PRODUCT, {"T": T, "D": W}, frozenset({"width"})))
            found.append(Use(kernels_sums.ADD, {"T": T, "S": W}, frozenset({"clients", "width"})))
        for D in (*BOTH, "int64"):
            found.append(Use(kernels.GATHER, {"T": D}, frozenset({"rows", "width"})))
        for one in vars(kernels_duals).values():
            for scalars in ({"least"}, {"least", "curvature"}) if isinstance(one, kernels.KernelSource) else ():
                found.append(Use(one, {"T": T}, frozenset(scalars)))
        for S in ("int32", "int64"):
            found.append(Use(kernels_sums.ENCODE, {"T": T, "S": S}, frozenset({"clients", "width", "inverse"})))
        wide = frozenset({"clients", "width", "coarse", "fine"})
        found.append(Use(kernels_sums.ENCODE_WIDE, {"T": T}, wide))
        found.append(Use(sparse.SQUARES, {"D": T}))
    found.append(Use(kernels.CLIP, {}, frozenset({"most"})))
    found.append(Use(kernels_sums.WORST, {}, frozenset({"clients", "bound"})))
    return found


REDUCTIONS = (kernels.SQUARES, kernels_sums.PEAK)
