"""Kernels of dual steps: HyFDCA's closed forms, and Newton's method for the logistic loss, in one pass each.

The classes of `mpifed.maths.duals`, which use them for arrays on a device, document the formulas.
"""

from __future__ import annotations

from mpifed.core.record import Array, beside
from mpifed.maths.kernels import KernelSource, launch

_INPUTS = "T alpha, T score, T y, T curvature"

HINGE = KernelSource("hinge_step", _INPUTS + ", T least", "T step", """
    T updated = (y + y - (T)1 - score) / (curvature > least ? curvature : least) + alpha;
    updated = updated > y ? y : updated;
    const T low = y - (T)1;
    updated = updated < low ? low : updated;
    step = updated - alpha;
""")  # fmt: skip

SQUARED_HINGE = KernelSource("squared_hinge_step", _INPUTS, "T step", """
    const T t = y + y - (T)1;
    T updated = alpha * (T)-0.5 + t - score;
    updated = (updated / (curvature + (T)0.5) + alpha) * t;
    updated = updated < (T)0 ? (T)0 : updated;
    step = updated * t - alpha;
""")  # fmt: skip

LOGISTIC = KernelSource("logistic_step", _INPUTS + ", T least", "T step", """
    const T t = y + y - (T)1, c = curvature;
    T k = c * (t * alpha) - t * score;
    const bool over = k > c / (T)2;
    k = over ? c - k : k;
    T q = k < (T)0 ? k : (T)0;
    const T x = k + log(c > least ? c : least);
    if (x >= (T)1 && (T)2 * x < c) {
        const T part = x / c, third = log(part) - log1p(-part);
        q = third < q ? third : q;
    }
    for (int turn = 0; turn < 6; ++turn) {
        const T power = exp(q), v = power / ((T)1 + power);
        q -= (q + c * v - k) / ((T)1 + c * (v - v * v));
        q = q > (T)0 ? (T)0 : q;
    }
    const T power = exp(q), v = power / ((T)1 + power);
    step = (over ? (T)1 - v : v) * t - alpha;
""")  # fmt: skip

LEAST_SQUARES = KernelSource(
    "least_squares_step", _INPUTS, "T step", "step = (y - score - alpha) / (curvature + (T)1);"
)  # fmt: skip


def device_step(
    source: KernelSource, alpha: Array, scores: Array, y: Array, curvature: Array | float, *least: float
) -> Array:
    """[..., s] dual steps; arguments as in `mpifed.maths.duals.Dual.step`, with alpha on a device.

    `least` is the lower bound of the curvature, for kernels that need it.
    """
    dtype = alpha.dtype

    def alike(values: Array | float) -> Array | float:
        return beside(alpha, values, dtype) if getattr(values, "ndim", 0) else float(values)

    return launch(source, alpha, alpha, alike(scores), alike(y), alike(curvature), *map(float, least))
