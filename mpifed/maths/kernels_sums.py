"""Kernels of sums over clients: values rounded to a grid and added as integers, on a device.

`mpifed.maths.fixedpoint` does the same on the CPU, by adding a large constant instead of rounding; the integers are
the same. Each element of the message is summed separately, over the clients in their order.
"""

from __future__ import annotations

from mpifed.core.record import Array, namespace
from mpifed.maths.fixedpoint import SumGrid
from mpifed.maths.kernels import KernelSource, ReductionKernel, launch, reduce

ENCODE = KernelSource("encode", "raw T values, int64 clients, int64 width, float64 inverse", "S total", """
    for (long long row = 0; row < clients; ++row)
        total += (S)rint((double)values[row * width + i] * inverse);
""")  # fmt: skip

ENCODE_WIDE = KernelSource(
    "encode_wide", "raw T values, int64 clients, int64 width, float64 coarse, float64 fine",
    "int64 high, int64 low", """
    for (long long row = 0; row < clients; ++row) {
        const double value = (double)values[row * width + i];
        const double multiple = rint(value / coarse);
        high += (long long)multiple;
        low += (long long)rint((value - multiple * coarse) / fine);
    }
    """,
)  # fmt: skip

PEAK = ReductionKernel(
    "peak", "T x", "float64 y", "x == x ? fabs((double)x) : 1.0 / 0.0", "a > b ? a : b", "0"
)  # fmt: skip

# the first client whose largest value exceeds the bound, and that value
WORST = KernelSource("worst", "raw float64 peaks, raw int64 who, int64 clients, float64 bound", "raw float64 worst", """
    for (long long row = 0; row < clients; ++row)
        if (worst[0] == 0 && !(peaks[row] <= bound)) {
            worst[0] = (double)(who[row] + 1);
            worst[1] = peaks[row];
        }
""")  # fmt: skip


def add_encoded(values: Array, form: SumGrid, totals: list[Array]) -> None:
    """Add the rows of `values` [n, m], rounded to the grid, to `totals`, [m] for each limb; all on a device."""
    clients, width = values.shape
    if form.limbs == 1:
        launch(ENCODE, values, values, clients, width, 1 / form.scale, totals[0])
    else:
        launch(ENCODE_WIDE, values, values, clients, width, *form.limb_scales, *totals)


def note_worst(values: Array, clients: Array, bound: float, worst: Array) -> None:
    """Store (1 + client, its largest value) in `worst` [2] for the first client that exceeds the bound, unless set.

    Parameters
    ----------
    values : [n, m] of `clients` [n], both on the device
    worst : [2] float64; zeros as long as no value exceeds the bound; NaN counts as infinite
    """
    peaks = reduce(PEAK, values, axis=1)
    launch(WORST, values, peaks, clients, len(values), bound, worst, size=1)


def encoded(values: Array, form: SumGrid) -> Array:
    """[limbs, m] integers that encode `values` [m] on the grid; on a device."""
    totals = namespace(values).zeros((form.limbs, values.size), f"int{form.bits}")
    add_encoded(values.reshape(1, -1), form, list(totals))
    return totals
