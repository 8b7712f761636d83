"""Small federations, and the real data where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from mpifed.shards.partition import Partition
from mpifed.shards.scaling import IDENTITY, Scaling
from mpifed.shards.store import About, ShardFolder, open_federation, write_federation

Make = Callable[..., ShardFolder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes rows X, in `chunks` pieces if they are dense, and opens the federation."""

    def make(
        X: Any, y: Any, partition: Partition, scaling: Scaling = IDENTITY, chunks: int = 1, pack: int = 1, **about: Any
    ) -> ShardFolder:
        pieces: Iterable[Any] = [X] if sparse.issparse(X) else np.array_split(X, chunks)
        dtype = None if sparse.issparse(X) else X.dtype
        classes = int(y.max()) + 1 if y.dtype.kind == "i" else 0
        facts = About(classes=classes, scaling=scaling, seed=0, provenance={"source": "test"}, **about)
        write_federation(tmp_path, partition, y, pieces, dtype, pack, facts)
        return open_federation(tmp_path)

    return make
