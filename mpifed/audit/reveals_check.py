"""Validation of what an algorithm declares that its uploads reveal."""

from __future__ import annotations

from typing import cast

import numpy as np

from mpifed.core import reveals
from mpifed.core.record import Array, Record, bare_leaves, leaves
from mpifed.maths.objectives import Parameters


def wrong_revealed(item: reveals.Revealed, received: reveals.Received) -> str:
    """Why a declared item is malformed, in words; "" if it is not."""
    wrong = _wrong_shapes(item, len(received.columns))
    if not wrong and not received.sealed and not finite(item):
        return f"{type(item).__name__} with numbers that are not finite"
    return wrong


def _wrong_shapes(item: reveals.Revealed, columns: int) -> str:
    if isinstance(item, reveals.MeanGradient):
        if not isinstance(item.model, Parameters):
            return f"MeanGradient with `model` {_form(item.model)}; Parameters(first, head) is expected"
        model_form, gradient_form = _form(item.model), _form(item.gradient)
        if not isinstance(item.gradient, Parameters) or model_form != gradient_form:
            return f"MeanGradient with `gradient` {gradient_form}; that of `model` is expected: {model_form}"
        if not bare_leaves(item.model.first):  # of a network, whose parameters belong to no feature
            return ""
        return _unlike("MeanGradient", "model.first", item.model.first, (columns, None))
    if isinstance(item, reveals.InnerProducts):
        scores = np.shape(item.weights)[-1] if np.ndim(item.weights) else None
        return _unlike("InnerProducts", "weights", item.weights, (columns, None)) or _unlike(
            "InnerProducts", "products", item.products, (np.size(item.rows), scores)
        )
    if isinstance(item, reveals.ScoreDerivatives):
        return _unlike("ScoreDerivatives", "derivatives", item.derivatives, (np.size(item.rows), None))
    if isinstance(item, reveals.DualVariables):
        return _unlike("DualVariables", "values", item.values, (np.size(item.rows),))
    if isinstance(item, reveals.DualSum):
        return _unlike("DualSum", "values", item.values, (columns,))
    return f"gives a {type(item).__name__}, which is no kind of `mpifed.core.reveals`"


def _form(record: Record) -> str:
    """Type and shapes of a record, for an error."""
    if not isinstance(record, tuple):
        return f"of type {type(record).__name__} and shape {np.shape(record)}"
    if not hasattr(record, "_fields"):
        return "a plain tuple"
    return f"{type(record).__name__}({', '.join(f'{name} {np.shape(leaf)}' for name, leaf in leaves(record))})"


def finite(item: reveals.Revealed) -> bool:
    """Whether all arrays of an item are finite."""
    # the others are plain numbers
    parts = cast("list[Record]", [part for part in item if hasattr(part, "_fields") or hasattr(part, "dtype")])
    return all(bool(np.isfinite(leaf).all()) for part in parts for leaf in bare_leaves(part))


def _unlike(kind: str, field: str, values: Array, expected: tuple[int | None, ...]) -> str:
    """Error for an array of another shape than expected, where None is any length; "" if it fits."""
    shape = np.shape(values)
    if len(shape) == len(expected) and all(b in (None, a) for a, b in zip(shape, expected, strict=True)):
        return ""
    text = ", ".join("any" if size is None else str(size) for size in expected)
    return f"{kind} with {field} of shape {list(shape)}; [{text}] is expected"
