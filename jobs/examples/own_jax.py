"""A network of JAX: any library that gives a derivative by the parameters is a subclass of `NeuralNetwork`.

mpirun -n 4 mpifed run jobs/examples/own_jax.toml
"""

import os
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

# before JAX begins: several threads of a rank would take each other's cores
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from mpifed.core.record import Array, map_leaves
from mpifed.maths.objectives import NeuralNetwork, Pullback
from mpifed.maths.parameters import NamedArrays

jax.config.update("jax_enable_x64", True)  # clipping computes in float64


def network(parameters: NamedArrays, X: jax.Array) -> jax.Array:  # [s, p] -> [s, L]
    w, a, v, b = parameters
    return jnp.tanh(X @ w + a) @ v + b


def way_back(parameters: NamedArrays, X: jax.Array, slopes: jax.Array) -> NamedArrays:
    _, pull = jax.vjp(lambda parameters: network(parameters, X), parameters)
    gradient: NamedArrays = pull(slopes)[0]
    return gradient


forward, backward = jax.jit(network), jax.jit(way_back)


@dataclass(frozen=True)
class Tanh(NeuralNetwork):  # the fields, and `l2`, are the keys of [model] in the job
    hidden_units: int = 32

    def initial(self, features: int, outputs: int, rng: Generator) -> dict[str, Array]:
        w = rng.standard_normal((features, self.hidden_units)) / np.sqrt(features)
        v = rng.standard_normal((self.hidden_units, outputs)) / np.sqrt(self.hidden_units)
        return {"in.weight": w, "in.bias": np.zeros(len(v)), "out.weight": v, "out.bias": np.zeros(outputs)}

    def outputs(self, parameters: NamedArrays, X: Array, gradient: bool, key: int | None) -> tuple[Array, Pullback]:
        X = X.astype(parameters[0].dtype, copy=False)
        z = np.asarray(forward(parameters, X))
        return z, lambda slopes: map_leaves(np.asarray, backward(parameters, X, slopes))
