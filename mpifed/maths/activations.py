"""Activations of hidden units and their derivatives, of NumPy and CuPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mpifed.core.record import Array, namespace
from mpifed.maths.kernels import normal_cdf, swish, swish_slope


class Activation(NamedTuple):
    """A function of each hidden unit's input z, and its derivative."""

    # z -> (gate, active): what the derivative needs besides, and the values
    values: Callable[[Array], tuple[Array, Array]]
    # (z, gate, active, back) -> the derivative by z, from that by the values, `back`; overwrites `active` and `back`
    slope: Callable[[Array, Array, Array, Array], Array]


def _relu(z: Array) -> tuple[Array, Array]:
    return z, namespace(z).maximum(z, z.dtype.type(0))


def _relu_slope(z: Array, gate: Array, active: Array, back: Array) -> Array:
    back *= z > 0  # 0 at the corner, as in PyTorch
    return back


def _tanh(z: Array) -> tuple[Array, Array]:
    return z, namespace(z).tanh(z)


def _tanh_slope(z: Array, gate: Array, active: Array, back: Array) -> Array:
    active *= active
    back *= 1 - active
    return back


def _gelu(z: Array) -> tuple[Array, Array]:
    gate = normal_cdf(z)
    return gate, z * gate


def _gelu_slope(z: Array, gate: Array, active: Array, back: Array) -> Array:
    """Of z times the normal distribution function: that function, and z times the normal density."""
    density = namespace(z).exp(z * z * -0.5)
    density *= z
    density *= 1 / math.sqrt(2 * math.pi)
    density += gate
    back *= density
    return back


ACTIVATIONS: Mapping[str, Activation] = {
    "swish": Activation(swish, swish_slope),
    "relu": Activation(_relu, _relu_slope),
    "tanh": Activation(_tanh, _tanh_slope),
    "gelu": Activation(_gelu, _gelu_slope),
}
