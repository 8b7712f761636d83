"""A model as one flat vector, whose layers are views of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from numpy.typing import DTypeLike

from mpifed.core.loops import combination
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, map_leaves, namespace


class Layout:
    """Where the layers of a model stand in x [..., d]: those that penalties count first, then those that are free.

    Attributes
    ----------
    at : where each layer stands, by its name
    penalized : where all stand that penalties count
    size : d
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], free: Collection[str] = ()) -> None:
        self.shapes, self.at, self.size, self.penalized = dict(shapes), dict[str, slice](), 0, slice(0, 0)
        for name in sorted(shapes, key=lambda name: name in free):
            start = self.size
            self.size += prod(shapes[name])
            self.at[name] = slice(start, self.size)
            if name not in free:
                self.penalized = slice(0, self.size)

    def views(self, x: Array) -> tuple[Array, ...]:
        """The layers of x [..., d], each [..., *shape], in the order of `shapes`: what is written there is in x."""
        lead = x.shape[:-1]
        return tuple(x[..., self.at[name]].reshape(lead + shape) for name, shape in self.shapes.items())

    def flat(self, record: Record, dtype: DTypeLike | None = None) -> Array:
        """x [..., d] in new memory, from a record of the layers [..., *shape], in the order of `shapes`."""
        leaves, own = bare_leaves(record), next(iter(self.shapes.values()))
        lead = leaves[0].shape[: leaves[0].ndim - len(own)]
        x: Array = namespace(leaves[0]).empty((*lead, self.size), dtype or leaves[0].dtype)
        for layer, leaf in zip(self.views(x), leaves, strict=True):
            layer[...] = leaf
        return x

    def record(self, x: Array, like: AnyRecord) -> AnyRecord:
        """The views of x [..., d] as a record of the structure of `like`."""
        views = iter(self.views(x))
        return map_leaves(lambda _: next(views), like)

    def combination(
        self, counted: Sequence[float], free: Sequence[float], arrays: Sequence[Array], out: Array | None = None
    ) -> Array:
        """The sum of `arrays` [n, d], or [d], times `counted`, and where no penalty counts times `free`."""
        return combination(counted, arrays, out, (self.penalized.stop, free))
