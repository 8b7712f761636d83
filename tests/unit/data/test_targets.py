"""Several real targets of each row, and the shape of a sample: from a source to batches, and from damaged files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifed.core.errors import DataError
from mpifed.core.record import of_vectors
from mpifed.data.block import Block
from mpifed.data.prepare import Options, prepare
from mpifed.data.samples import Samples, Source
from mpifed.data.shards import common_shard, shard_of
from mpifed.data.store import open_federation

ROWS, TARGETS = 50, 3
X = np.random.default_rng(1).standard_normal((ROWS, 6)).astype("f4")
Y = np.random.default_rng(2).standard_normal((ROWS, TARGETS)).round(6)


@dataclass(frozen=True)
class Three(Source):
    """Rows of three targets, samples of shape [2, 3]; what is wrong with them, if anything."""

    wrong: str = ""

    def read(self, seed: int) -> Samples:
        labels: Any = {
            "integers": np.full((ROWS, 2), 2),
            "deep": Y[..., None],
            "nan": np.where(Y[7, 1] == Y, np.nan, Y),
        }
        labels = labels.get(self.wrong, Y)
        shape = (2, 4) if self.wrong == "shape" else (2, 3)
        return Samples(X, labels, Samples(X[:5], labels[:5]), shape=shape)


def options(source: Source, out: Path, **more: Any) -> Options:
    return Options(**{"name": "three", "source": source, "split": "rows", "clients": 4, "out": out} | more)


def test_from_a_source_to_batches(tmp_path: Path) -> None:
    data = prepare(options(Three(), tmp_path / "data"))
    assert (data.targets, data.classes, data.shape) == (TARGETS, 0, (2, 3))
    again = open_federation(tmp_path / "data", verify=True)
    assert again.targets == TARGETS and again.target_scale == 1.0
    shards = tuple(shard_of(again, client) for client in range(4))
    for shard in shards:
        batch = Block((shard,), "float64").take(np.arange(shard.samples)[None, ::-1])
        assert batch.y.shape == (1, shard.samples)
        np.testing.assert_array_equal(of_vectors(batch.y)[0], Y[shard.rows[::-1]])
        np.testing.assert_allclose(batch.X[0], X[shard.rows[::-1]])
        assert batch.rows(1, 3).y.shape == (1, 2)
    test = common_shard(again)
    assert test is not None
    np.testing.assert_array_equal(of_vectors(test.y), Y[:5])


@pytest.mark.parametrize(("wrong", "message"), [
    ("integers", r"labels are int64 \(50, 2\), such as 2; several labels of a row are 0 or 1"),
    ("deep", r"labels are float64 \(50, 3, 1\)"),
    ("nan", "label of row 7 is"),
    ("shape", r"shape \(2, 4\) for 6 features; their product must be that number"),
])  # fmt: skip
def test_wrong_sources(tmp_path: Path, wrong: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(options(Three(wrong), tmp_path / "data"))
