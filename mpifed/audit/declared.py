"""Whether what an algorithm says that its answers reveal has the form that attacks need."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpifed.core.record import bare_leaves, leaves
from mpifed.core.reveals import (
    AddedNoise,
    DualSum,
    DualVariables,
    InnerProducts,
    MeanGradient,
    Received,
    ScoreDerivatives,
)
from mpifed.maths.objectives import Parameters


def wrong_revealed(item: Any, received: Received) -> str:
    """What is wrong with something that an algorithm says to be revealed, "" if nothing."""
    wrong = _wrong_shapes(item, len(received.columns))
    if not wrong and not received.sealed and not finite(item):
        return f"{type(item).__name__} with numbers that are not finite"
    return wrong


def _wrong_shapes(item: Any, columns: int) -> str:
    if isinstance(item, MeanGradient):
        if not isinstance(item.model, Parameters):
            return f"MeanGradient with `model` {_form(item.model)}; Parameters(first, head) is expected"
        own, other = _form(item.model), _form(item.gradient)
        if not isinstance(item.gradient, Parameters) or own != other:
            return f"MeanGradient with `gradient` {other}; that of `model` is expected: {own}"
        return _unlike("MeanGradient", "model.first", item.model.first, (columns, None))
    if isinstance(item, InnerProducts):
        scores = np.shape(item.weights)[-1] if np.ndim(item.weights) else None
        return _unlike("InnerProducts", "weights", item.weights, (columns, None)) or _unlike(
            "InnerProducts", "products", item.products, (np.size(item.rows), scores)
        )
    if isinstance(item, ScoreDerivatives):
        return _unlike("ScoreDerivatives", "derivatives", item.derivatives, (np.size(item.rows), None))
    if isinstance(item, DualVariables):
        return _unlike("DualVariables", "values", item.values, (np.size(item.rows),))
    if isinstance(item, DualSum):
        return _unlike("DualSum", "values", item.values, (columns,))
    return "" if isinstance(item, AddedNoise) else f"gives a {type(item).__name__}, of no kind that is known"


def _form(record: Any) -> str:
    """Its type and shapes, for an error."""
    if not isinstance(record, tuple):
        return f"of type {type(record).__name__} and shape {np.shape(record)}"
    if not hasattr(record, "_fields"):
        return "a plain tuple"
    return f"{type(record).__name__}({', '.join(f'{name} {np.shape(leaf)}' for name, leaf in leaves(record))})"


def finite(item: Any) -> bool:
    """Whether all its arrays hold numbers."""
    parts = [part for part in item if hasattr(part, "_fields") or hasattr(part, "dtype")]
    return all(bool(np.isfinite(leaf).all()) for part in parts for leaf in bare_leaves(part))


def _unlike(kind: str, field: str, values: Any, expected: tuple[int | None, ...]) -> str:
    """What to say of an array whose shape is another; None: of any length."""
    shape = np.shape(values)
    if len(shape) == len(expected) and all(b in (None, a) for a, b in zip(shape, expected, strict=True)):
        return ""
    text = ", ".join("any" if one is None else str(one) for one in expected)
    return f"{kind} with {field} of shape {list(shape)}; [{text}] is expected"
