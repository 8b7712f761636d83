"""Kernels: elementwise functions in one pass over device memory, each with its counterpart in NumPy.

A kernel is a few lines of C++ between declared inputs and outputs; CuPy makes them a loop over the output. The sources
are plain C++ without CUDA's extensions, compiled without fused multiply-add: sums and products round as NumPy's do, and
results differ from the CPU's only where exp, tanh and log of the two libraries do, by a unit in the last place. No
kernel adds floating-point numbers atomically, so that results are reproducible bit for bit on one kind of device.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mpifed.core.record import Array, ArrayModule, beside, namespace

OPTIONS = ("--fmad=false",)


class KernelSource(NamedTuple):
    """An elementwise kernel of CuPy: `raw` arguments are indexed by its body, all others by the output's index `i`."""

    name: str
    inputs: str
    outputs: str
    body: str


class ReductionKernel(NamedTuple):
    """A reduction kernel of CuPy: the sum or maximum of a function along axes."""

    name: str
    inputs: str
    outputs: str
    each: str  # expression that maps an element
    both: str  # expression that combines two partial results, a and b
    first: str  # identity: the result for no elements


@cache
def _compiled(xp: ArrayModule, source: KernelSource | ReductionKernel) -> Any:  # what a kernel gives, its source says
    if isinstance(source, KernelSource):
        return xp.ElementwiseKernel(
            source.inputs, source.outputs, source.body, f"mpifed_{source.name}", options=OPTIONS
        )  # fmt: skip
    name, (inputs, outputs) = f"mpifed_{source.name}", source[1:3]
    return xp.ReductionKernel(
        inputs, outputs, source.each, source.both, f"{outputs.split()[1]} = a", source.first, name, options=OPTIONS
    )


def launch(source: KernelSource, like: Array, *arguments: Array | float, size: int | None = None) -> Array:
    """The output of a kernel on the device of `like`, or its outputs in sequence.

    Parameters
    ----------
    arguments : the inputs, and also the outputs where any of these is raw
    size : of the loop, where all arguments are raw
    """
    kernel = _compiled(namespace(like), source)
    output: Array = kernel(*arguments) if size is None else kernel(*arguments, size=size)
    return output


def reduce(source: ReductionKernel, values: Array, axis: int = -1) -> Array:
    """The reduction of `values` on a device along an axis."""
    result: Array = _compiled(namespace(values), source)(values, axis=axis)
    return result


# --- the swish and its derivative -----------------------------------------------------------------------------------

SIGMOID = KernelSource("sigmoid", "T z", "T gate", "gate = tanh(z * (T)0.5) * (T)0.5 + (T)0.5;")
SWISH = KernelSource(
    "swish", "T z", "T gate, T active", "gate = tanh(z * (T)0.5) * (T)0.5 + (T)0.5; active = z * gate;"
)  # fmt: skip
SWISH_SLOPE = KernelSource(
    "swish_slope", "T z, T gate, T active, T back", "T down", "down = ((z - active) + (T)1) * gate * back;"
)  # fmt: skip


def sigmoid(z: Array) -> Array:
    """1 / (1 + exp(-z)) without overflow, by the hyperbolic tangent (three times as fast as the exponential)."""
    if namespace(z) is not np:
        return launch(SIGMOID, z, z)
    half = z.dtype.type(0.5)
    result: Array = np.tanh(z * half)
    result *= half
    result += half
    return result


def swish(z: Array) -> tuple[Array, Array]:
    """(g, S): the sigmoid g of z, and the swish S = z g."""
    if namespace(z) is not np:
        gate, active = launch(SWISH, z, z)
        return gate, active
    gate = sigmoid(z)
    return gate, z * gate


def swish_slope(z: Array, gate: Array, active: Array, back: Array) -> Array:
    """The derivative with respect to z, given the derivative `back` with respect to the swish: S' = g (1 + z - S).

    On the CPU `active` and `back` are overwritten: new arrays would not stay in the cache.
    """
    if namespace(z) is not np:
        return launch(SWISH_SLOPE, z, z, gate, active, back)
    slope = np.subtract(z, active, out=active)
    slope += slope.dtype.type(1)
    slope *= gate
    back *= slope
    return back


# --- the softmax and its cross-entropy ------------------------------------------------------------------------------

_NORMALIZED = """
    const long long first = i * outputs;
    T top = z[first];
    for (long long k = 1; k < outputs; ++k) top = z[first + k] > top ? z[first + k] : top;
    T total = 0;
    for (long long k = 0; k < outputs; ++k) total += exp(z[first + k] - top);
    loss = (log(total) + top) - z[first + y[i]];
"""
CROSS_ENTROPY = KernelSource("cross_entropy", "raw T z, raw int64 y, int64 outputs", "T loss", _NORMALIZED)
CROSS_ENTROPY_SLOPE = KernelSource(
    "cross_entropy_slope", "raw T z, raw int64 y, raw W weights, int64 outputs", "T loss, raw T slope",
    _NORMALIZED + """
    for (long long k = 0; k < outputs; ++k) {
        T residual = exp(z[first + k] - top) / total;
        if (k == y[i]) residual -= (T)1;
        slope[first + k] = residual * (T)weights[i];
    }
    """,
)  # fmt: skip


def device_cross_entropy(logits: Array, y: Array) -> Array:
    """[..., s] the cross-entropy of each sample, from logits [..., s, L] on a device."""
    xp = namespace(logits)
    logits, loss = xp.ascontiguousarray(logits), xp.empty(y.shape, logits.dtype)
    launch(CROSS_ENTROPY, logits, logits, xp.ascontiguousarray(y), logits.shape[-1], loss)
    return loss


def device_cross_entropy_slope(logits: Array, y: Array, weights: Array) -> tuple[Array, Array]:
    """(loss [..., s], derivative of the weighted loss with respect to the logits [..., s, L]), on a device."""
    xp = namespace(logits)
    logits, loss = xp.ascontiguousarray(logits), xp.empty(y.shape, logits.dtype)
    slope, weights = xp.empty_like(logits), xp.ascontiguousarray(weights)
    launch(CROSS_ENTROPY_SLOPE, logits, logits, xp.ascontiguousarray(y), weights, logits.shape[-1], loss, slope)
    return loss, slope


# --- clipping and noise ---------------------------------------------------------------------------------------------

CLIP = KernelSource("clip", "float64 square, float64 most", "float64 factor", """
    const double part = most / sqrt(square);
    factor = part > 1.0 ? 1.0 : part;
""")  # fmt: skip
NOISE = KernelSource(
    "noise", "T value, T noise, T spread", "T out", "const T moved = noise * spread; out = moved + value;"
)


NOISY = KernelSource(
    "noisy", "T value, int64 noise, float64 factor, float64 most, int32 truncate, float64 scale", "O out", """
    double steps = (double)value * factor;
    steps = steps == steps ? steps : 0.0;
    steps = steps > most ? most : steps;
    steps = steps < -most ? -most : steps;
    const double whole = truncate ? trunc(steps) : rint(steps);
    const double moved = whole + (double)noise;
    out = (O)(moved * scale);
    """,
)  # fmt: skip


def device_noisy(
    values: Array, noise: Array, factor: float, most: float, truncate: bool, scale: float, out: Array
) -> None:
    """Write (round(clip(values * factor, -most, most)) + noise) * scale to `out`, as `loops.noisy` does on the CPU."""
    launch(NOISY, values, values, noise, factor, most, int(truncate), scale, out)


def clip_factors(squares: Array, most: float) -> Array:
    """Factors that scale vectors of squared norms `squares` to norms of at most `most`; exactly 1 for shorter ones."""
    if namespace(squares) is not np:
        return launch(CLIP, squares, squares, most)
    with np.errstate(divide="ignore"):
        factors: Array = np.minimum(1.0, most / np.sqrt(squares))
    return factors


def with_noise(values: Array, noise: Array, spread: Array) -> Array:
    """values [n, ...] + spread [n] * noise [n, ...]; `noise` is on the CPU, and may be overwritten."""
    wide = spread.astype(noise.dtype).reshape(-1, *[1] * (noise.ndim - 1))
    if namespace(values) is not np:
        return launch(NOISE, values, values, beside(values, noise), beside(values, wide))
    noise *= wide
    noise += values
    return noise


# --- sums of squares ------------------------------------------------------------------------------------------------

SQUARES = ReductionKernel("squares", "T x", "float64 y", "(double)x * (double)x", "a + b", "0")


def device_square_norms(values: Array) -> Array:
    """Squared norms along the last axis, in float64, on a device."""
    return reduce(SQUARES, values)


# --- rows of many clients at once -----------------------------------------------------------------------------------

GATHER = KernelSource("gather", "raw uint64 first, raw int64 at, int64 rows, int64 width", "T out", """
    const long long row = i / width;
    const T* shard = (const T*)first[row / rows];
    out = shard[at[row] * width + i % width];
""")  # fmt: skip


def gathered(first: Array, at: Array, width: int, out: Array) -> None:
    """Write the rows `at` [n, s] of n arrays [s_i, width] to `out`; `first` [n] are the arrays' device addresses."""
    launch(GATHER, out, first, at, at.shape[1], width, out)
