"""Networks that another library differentiates: what every such library needs, whatever its name.

A library gives the outputs of one client's samples, and the way back from their derivatives to the parameters'. Here
the clients take turns, large batches pass in pieces, and losses of the outputs are those of NumPy.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mpifed.core.record import ABSENT, AnyRecord, Array, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Features
from mpifed.maths.arrays import namespace
from mpifed.maths.losses import LOSSES, SampleLoss
from mpifed.maths.objectives.form import Objective
from mpifed.maths.parameters import Backward, NamedArrays, Parameters, Slope, named_arrays

# from the derivative by one client's outputs [s, L] to that by its parameters
Pullback: TypeAlias = Callable[[Array], NamedArrays]
Keys: TypeAlias = NDArray[np.int64]  # [n] of the clients' passes in training, from 0 to 2^62


@dataclass(frozen=True)
class NeuralNetwork(Objective):
    """The base of networks of any library: a subclass defines `initial` and `outputs`.

    All parameters are in the model's head, a `NamedArrays`. Vectors, such as biases and the scales of norms, count as
    intercepts: `l2` is of the others. `loss_name` is a field, or a constant.
    """

    @property
    def loss_name(self) -> str:
        """One of `LOSSES`: cross-entropy of classes, binary-cross-entropy of several labels of a sample, their mean, or
        mse of real targets, half the mean over a sample's of (z - y)^2."""
        return "cross-entropy"

    @property
    def sample_loss(self) -> SampleLoss:
        return LOSSES[self.loss_name]

    @property
    def samples_at_once(self) -> int:
        """How many samples pass at a time, to bound memory; a function of the settings and of shapes alone."""
        return 256

    @abstractmethod
    def initial(self, features: int, outputs: int, rng: Generator) -> dict[str, Array]:
        """The initial parameters by name, without clients' axes; random numbers from `rng` only. Names have no "/"."""

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        initial = {name: np.asarray(leaf, dtype) for name, leaf in self.initial(features, outputs, rng).items()}
        self.__dict__["_shapes"] = [leaf.shape for leaf in initial.values()]
        return Parameters(ABSENT, named_arrays(tuple(initial))(*initial.values()))

    @abstractmethod
    def outputs(self, parameters: NamedArrays, X: Array, gradient: bool, key: int | None) -> tuple[Array, Pullback]:
        """(outputs [s, L] of one client's samples X [s, p], the way back), arrays of NumPy in the dtype of the model.

        The way back may be called several times, and after other passes. Bits must follow from the arguments alone: one
        thread, no state, no random numbers but those that follow from `key`.

        Parameters
        ----------
        parameters : leaves [*shape], in float32 or float64; not to be written to, nor is X
        gradient : whether there will be a way back; otherwise none is needed
        key : in training, an integer from 0 to 2^62 for what the network draws, as masks of dropout: another one for
            each pass; None in evaluation, where it draws nothing
        """

    def pass_keys(self, now: Round, step: int, clients: Array, secret: bool = False) -> tuple[Array, ...]:
        return (now.words_of_clients("passes", clients, step, secret) >> 2 & 2**62 - 1,)

    def forward(self, model: Parameters, X: Features, *keys: Keys) -> tuple[Array, Backward]:
        """[n, s, L] the outputs; clients one after the other, so that no bit depends on who is beside whom."""
        each = self._pieces(model, X, whole=True)
        passes = [self.outputs(parameters, x, True, key_of(keys, i, 0)) for i, _, parameters, x in each]

        def backward(slope: Slope) -> Parameters:
            gradients = [back(slopes) for (_, back), slopes in zip(passes, slope.scores, strict=True)]
            return Parameters(ABSENT, map_leaves(lambda *parts: namespace(X).stack(parts), *gradients))

        return namespace(X).stack([z for z, _ in passes]), backward

    def scores_of(self, model: Parameters, X: Features) -> Array:
        parts = [self.outputs(parameters, x, False, None)[0] for _, _, parameters, x in self._pieces(model, X)]
        together: Array = namespace(X).concatenate(parts)
        return together.reshape(len(X), -1, together.shape[-1]) if together.size else together[None]

    def gradient(
        self, model: Parameters, X: Features, y: Array, weights: Array, *keys: Keys, out: Parameters | None = None
    ) -> Parameters:
        if out is None:
            pairs = zip(model.head, self.shapes, strict=True)
            empty = [namespace(y).empty((len(y), *shape), leaf.dtype) for leaf, shape in pairs]
            out = Parameters(ABSENT, type(model.head)(*empty))
        for leaf in out.head:
            leaf[...] = 0
        for i, at, parameters, x in self._pieces(model, X):
            own = map_leaves(itemgetter(i), out.head)
            self.add_gradient(parameters, x, y[i, at], weights[i, at], own, key_of(keys, i, at.start))
        return out

    def add_gradient(
        self, parameters: NamedArrays, X: Array, y: Array, weights: Array, out: NamedArrays, key: int | None
    ) -> None:
        """Add one client's gradient over samples that pass together to `out`, leaves [*shape]."""
        z, back = self.outputs(parameters, X, True, key)
        map_leaves(operator.iadd, out, back(self.slope(ABSENT, z, y, weights).scores))

    def in_pieces(
        self, compute: Callable[..., AnyRecord], model: Parameters, X: Features, y: Array, weights: Array, *keys: Keys
    ) -> AnyRecord:
        """As `Objective.in_pieces`; the pass that begins with a client's row s has its key and s."""
        sums = list[AnyRecord]()
        for i, at, parameters, x in self._pieces(model, X):
            who, own = slice(i, i + 1), Parameters(ABSENT, parameters)
            part = compute(own, x[None], y[who, at], weights[who, at], *[each[who] + at.start for each in keys])
            if at.start:
                map_leaves(operator.iadd, sums[-1], part)
            else:
                sums.append(part)
        return map_leaves(lambda *parts: namespace(parts[0]).concatenate(parts), *sums)

    def penalized(self, model: Parameters) -> Parameters:
        """True for matrices and kernels: parameters with two axes or more, after that of the clients."""
        return Parameters(ABSENT, type(model.head)(*(len(shape) > 1 for shape in self.shapes)))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each parameter, without leading axes; known since `start`."""
        shapes: list[tuple[int, ...]] = self.__dict__["_shapes"]
        return shapes

    def _pieces(
        self, model: Parameters, X: Features, whole: bool = False
    ) -> Iterator[tuple[int, slice, NamedArrays, Array]]:
        """What passes together: client i's samples `at`, its parameters without leading axes, and X [k, p].

        As many as pass at a time, or the `whole` of them; of no samples an empty piece.
        """
        assert not isinstance(X, tuple)  # sparse data are refused
        head = model.head
        own = type(head)(*[leaf.ndim > len(shape) for leaf, shape in zip(head, self.shapes, strict=True)])
        for i, x in enumerate(X):
            parameters = map_leaves(lambda leaf, has, i=i: leaf[i if len(leaf) > 1 else 0] if has else leaf, head, own)
            rows = max(len(x), 1)
            step = rows if whole else self.samples_at_once
            for start in range(0, rows, step):
                at = slice(start, start + step)
                yield i, at, parameters, x[at]


def key_of(keys: tuple[Keys, ...], i: int, row: int) -> int | None:
    """That of a client's pass from a row on; None in evaluation."""
    return int(keys[0][i]) + row if keys else None
