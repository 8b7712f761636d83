"""Networks as a user may write them, of NumPy: a right one, with dropout too, and such as are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifed.core.record import map_leaves
from mpifed.maths.objectives import NeuralNetwork

STATE = np.random.default_rng(3)


@dataclass(frozen=True)
class Hidden(NeuralNetwork):
    """tanh(X w + b) v."""

    def initial(self, features: int, outputs: int, rng: Any) -> dict[str, Any]:
        return {"w": np.zeros((features, 5)), "b": rng.standard_normal(5), "v": rng.standard_normal((5, outputs))}

    def outputs(self, parameters: Any, X: Any, gradient: bool, key: int | None) -> Any:
        w, b, v = parameters
        hidden = np.tanh(X @ w + b)

        def back(slopes: Any) -> Any:
            down = slopes @ v.T * (1 - hidden**2)
            return type(parameters)(X.T @ down, down.sum(axis=0), hidden.T @ slopes)

        return hidden @ v, back


class Values(Hidden):
    """Real targets."""

    loss_name = "mse"


class Dropping(Hidden):
    """Half of the hidden units, by the key of a pass in training."""

    def kept(self, X: Any, key: int | None) -> Any:
        return np.ones((len(X), 5)) if key is None else np.random.default_rng(key).integers(0, 2, (len(X), 5)) * 2.0

    def outputs(self, parameters: Any, X: Any, gradient: bool, key: int | None) -> Any:
        w, b, v = parameters
        hidden, kept = np.tanh(X @ w + b), self.kept(X, key).astype(X.dtype)

        def back(slopes: Any) -> Any:
            down = slopes @ v.T * kept * (1 - hidden**2)
            return type(parameters)(X.T @ down, down.sum(axis=0), (kept * hidden).T @ slopes)

        return kept * hidden @ v, back


def _outputs(change: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """What outputs() gives, changed."""
    return {"outputs": lambda self, *given: change(*Hidden.outputs(self, *given))}


class Raising(Hidden):
    """For some records, and what stands beside them."""

    def outputs(self, parameters: Any, X: Any, gradient: bool, key: int | None) -> Any:
        if gradient and ((X >= 0).all(axis=1) & (X.sum(axis=1) % 3 < 1)).any():  # no random row
            raise IndexError("a record")
        return super().outputs(parameters, X, gradient, key)


for name, base, changed in (
    ("WrongWayBack", Hidden, _outputs(lambda z, back: (z, lambda s: map_leaves(lambda g: 2 * g, back(s))))),
    ("WideOutputs", Hidden, _outputs(lambda z, back: (z.astype("f8"), back))),
    ("Noisy", Hidden, _outputs(lambda z, back: (z + STATE.standard_normal(z.shape).astype(z.dtype), back))),
    ("Centered", Hidden, _outputs(lambda z, back: (z - z.mean(axis=0), lambda s: back(s - s.mean(axis=0))))),
    ("NotFinite", Hidden, {"initial": lambda *given: Hidden.initial(*given) | {"b": np.full(5, np.nan)}}),
    ("DropsByOthers", Dropping, {"kept": lambda self, X, key: np.ones((len(X), 5)) * (1 + (key or 0) * (X.sum() > 0))}),
    ("DropsAnew", Dropping, {"kept": lambda self, X, key: Dropping.kept(self, X, key and int(STATE.integers(9e9)))}),
):  # fmt: skip
    globals()[name] = dataclass(frozen=True)(type(name, (base,), {"__module__": __name__} | changed))
