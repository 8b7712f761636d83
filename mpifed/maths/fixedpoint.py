"""Exact sums: floats are rounded to a grid and added as integers, so that the order of addition does not matter.

A value x is rounded to the nearest multiple of `scale`, ties to even. Adding C = 1.5 * 2^52 * scale in float64 does
that rounding, and leaves the integer x / scale in the low bits of the result: bits(C + k * scale) = bits(C) + k.
So a float addition encodes, and an integer addition mod 2^64 sums. Where the range exceeds such an integer, x is split
into a coarse multiple and a remainder, two limbs; where 22 bits suffice for a float32 value, the same is done in
float32 with 2^23 in place of 2^52, and integers of 32 bits.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core import loops

_LIMB_BITS = 32  # the low limb's width when there are two
_TOGETHER = 2**14  # values encoded per call: intermediate results stay in the cache


class SumGrid(NamedTuple):
    """Integer representation of a field; it depends only on scale, bound, number of clients and dtype."""

    scale: float
    bound: float
    limbs: int  # integers per value: 1 or 2
    bits: int = 64  # of an integer: 32 or 64

    @property
    def limb_scales(self) -> tuple[float, ...]:
        """The grid of each limb, coarse first."""
        return (self.scale,) if self.limbs == 1 else (self.scale * 2.0**_LIMB_BITS, self.scale)

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest absolute value of the integers that encode a value, for each limb."""
        coarse = math.ceil(self.bound / self.limb_scales[0])
        return (coarse, *[2 ** (_LIMB_BITS - 1)] * (self.limbs - 1))  # the remainder is at most half a coarse step

    def wide(self) -> SumGrid:
        """The same grid in 64 bits."""
        return self._replace(bits=64)


def grid(scale: float, bound: float, clients: int, dtype: str = "float64") -> SumGrid:
    """The representation of sums of up to `clients` values within `bound` as multiples of `scale`.

    Values of `dtype` float32 are encoded in 32 bits where the range allows it: half the bytes and half the time.

    Raises
    ------
    ValueError
        if `scale` is not a power of two, or bound / scale exceeds two limbs.
    """
    if scale <= 0 or np.frexp(scale)[0] != 0.5:
        raise ValueError(f"scale = {scale}: must be a power of two")
    if not 0 < bound < float("inf"):
        raise ValueError(f"bound = {bound}: must be positive and finite")
    steps = bound / scale
    if dtype == "float32" and steps <= 2.0**22 and clients * steps < 2.0**31:
        return SumGrid(scale, bound, 1, 32)
    if steps < 2.0**51 and clients * steps < 2.0**62:
        return SumGrid(scale, bound, 1)
    if steps < 2.0 ** (51 + _LIMB_BITS) and clients * steps < 2.0 ** (62 + _LIMB_BITS):
        return SumGrid(scale, bound, 2)
    raise ValueError(f"bound / scale = {bound} / {scale} for {clients} clients: must stay below 2^{51 + _LIMB_BITS}")


def outside(values: NDArray[np.floating], bound: float) -> bool:
    """Whether any of `values` is NaN or exceeds `bound` in absolute value."""
    flat = values.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        if float(np.dot(flat, flat)) <= bound * bound:
            return False  # the norm is within the bound: half the time of comparing every value
    return not (float(flat.max(initial=0)) <= bound and float(flat.min(initial=0)) >= -bound)


class Encoder:
    """Adds encoded values to an integer accumulator; it owns its buffers, so that it is worth reusing."""

    def __init__(self, form: SumGrid, size: int) -> None:
        self.form, self.size = form, size
        self._together = max(1, _TOGETHER // max(size, 1))  # rows per call of NumPy
        kinds = (np.float64, np.int64, 52) if form.bits == 64 else (np.float32, np.int32, 23)
        self._real, self._integer, digits = kinds
        self._constants = [1.5 * 2.0**digits * scale for scale in form.limb_scales]
        self._largest = 2.0 ** (digits - 1) * form.limb_scales[0]  # the largest value that adding a constant encodes
        self._bits = [int(self._real(constant).view(self._integer)) for constant in self._constants]
        self._removed: dict[int, list[int]] = {}  # what `_offsets` gives, for each number of additions

    @cached_property
    def _shifted(self) -> NDArray[np.floating]:
        return np.empty((self._together, min(self.size, _TOGETHER)), self._real)

    @cached_property
    def _rest(self) -> NDArray[np.float64]:
        return np.empty((self._together, min(self.size, _TOGETHER)))

    def add(
        self, values: NDArray[np.floating], accumulator: NDArray[np.signedinteger], anew: bool = False,
        common: NDArray[np.floating] | None = None, factor: float = 1.0,
    ) -> bool:  # fmt: skip
        """Add the rows of `values` [n, size] to `accumulator` [limbs * size], which is overwritten with `anew`.

        Parameters
        ----------
        common : [size] of the dtype of `values`; `factor` times it is added to each row before that is rounded

        Returns
        -------
        Whether all values are numbers within the bound. If not, the content of the accumulator is undefined.
        """
        return self._add_rows(values, accumulator, self.form.bound, anew, common, factor)

    def add_total(
        self, total: NDArray[np.floating], accumulator: NDArray[np.signedinteger], clients: int, anew: bool = False
    ) -> bool:
        """`add` for a sum [size] over `clients` clients, whose bound is `clients` times that of a value."""
        bound = self.form.bound * clients
        if bound <= self._largest or anew or not outside(total, self._largest):
            limit = min(bound, self._largest)
            if self._add_rows(total.reshape(1, -1), accumulator, limit, anew):
                return True
        if bound <= self._largest or outside(total, bound):
            return False
        remainder = total.astype(np.float64)
        for limb, scale in enumerate(self.form.limb_scales):
            part = accumulator[limb * self.size : (limb + 1) * self.size]
            multiple = np.rint(remainder / scale)  # the division is exact, since scales are powers of two
            remainder -= multiple * scale
            np.add(multiple.astype(self._integer), self._integer(0) if anew else part, out=part)
        return True

    def _add_rows(
        self, values: NDArray[np.floating], accumulator: NDArray[np.signedinteger], bound: float, anew: bool,
        common: NDArray[np.floating] | None = None, factor: float = 1.0,
    ) -> bool:  # fmt: skip
        """`add` within any bound. Each row leaves the constant that encodes it, which is subtracted here."""
        offsets = self._offsets(len(values))
        narrow = self.form.bits == 32
        as_is = values.dtype == np.float32 or (values.dtype == np.float64 and not narrow)
        if common is not None and (loops.compiled is None or not as_is):
            values, common = values + common * common.dtype.type(factor), None
        if loops.compiled is not None:
            if not as_is:
                if outside(values, bound):  # before they are rounded
                    return False
                values = values.astype(self._real)
            within: bool = loops.compiled.add_encoded(
                np.ascontiguousarray(values), *values.shape, common, factor, bound,
                (*self._constants, 0.0)[:2], anew, (*offsets, 0)[:2], accumulator,
            )  # fmt: skip
            return within
        sums = accumulator.reshape(self.form.limbs, -1)
        size = sums.shape[1]
        for start in range(0, len(values), self._together):
            rows = values[start : start + self._together]
            if outside(rows, bound):
                return False
            for left in range(0, size, _TOGETHER):
                at = slice(left, left + _TOGETHER)
                self._add(rows[:, at], sums[:, at], [0] * len(offsets) if start else offsets, anew and not start)
        return True

    def _add(
        self, values: NDArray[np.floating], sums: NDArray[np.signedinteger], offsets: list[int], anew: bool
    ) -> None:
        """Add the rows of `values` [n, m], which must fit the buffers, to `sums` [limbs, m]."""
        shifted = self._shifted[: len(values), : values.shape[1]]
        for limb, constant in enumerate(self._constants):
            if values.dtype == shifted.dtype:
                np.add(values, constant, out=shifted)
            else:  # convert first: float32 + a Python float would be added in float32
                np.copyto(shifted, values, casting="same_kind")
                shifted += constant
            coded = shifted.view(self._integer)
            summed = coded[0] if len(coded) == 1 else coded.sum(axis=0, dtype=self._integer)
            if anew:
                np.add(summed, offsets[limb], out=sums[limb])
            else:
                sums[limb] += summed
                sums[limb] += offsets[limb]
            if limb + 1 < len(self._constants):
                shifted -= constant
                values = np.subtract(values, shifted, out=self._rest[: len(values), : values.shape[1]])  # exact

    def _offsets(self, adds: int) -> list[int]:
        """For each limb, the signed integer that removes `adds` constants from a sum mod 2^bits."""
        if adds not in self._removed:
            half = 2 ** (self.form.bits - 1)
            self._removed[adds] = [(-adds * bits + half) % (2 * half) - half for bits in self._bits]
        return self._removed[adds]


def decode(accumulator: NDArray[np.signedinteger], form: SumGrid, dtype: str) -> NDArray[np.floating]:
    """The sum [size] that `accumulator` [limbs * size] represents, rounded to `dtype`."""
    size = len(accumulator) // form.limbs
    if form.limbs == 1:
        total = accumulator.astype(dtype)
        total *= total.dtype.type(form.scale)
        return total
    coarse, fine = form.limb_scales
    return (accumulator[:size] * coarse + accumulator[size:] * fine).astype(dtype)
