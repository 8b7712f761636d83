"""Distinct texts of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array


def numbered(texts: Array, others: Array | None) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64] | None]:
    """(the distinct texts of both arrays, ascending; the number of each of `texts` [s], and of `others` [t])."""
    names, codes = np.unique(texts if others is None else np.concatenate([texts, others]), return_inverse=True)
    return names.tolist(), codes[: len(texts)], None if others is None else codes[len(texts) :]
