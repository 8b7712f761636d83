"""The rows of the paper's tables, a job each, and what the paper says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mpifed.job.job import read_table

JOBS = Path(__file__).parent
TARGETS = {"2nn": 0.97, "cnn": 0.99}  # test accuracy
SPLITS = {
    "iid": ("IID", "iid", Path("data/mnist-rows-100")),
    "shards": ("two shards", "shards:2", Path("data/mnist-shards-100")),
}
RATE = "client_optimizer.learning_rate"


class Row(NamedTuple):
    """A cell of a table of the paper: 100 clients of 600 images, a tenth of them in each round."""

    model: str  # 2nn or cnn
    epochs: int  # E
    batch: int | None  # B, None where it is all of a client
    split: str  # iid or shards
    says: int  # rounds to the target
    where: str

    @property
    def name(self) -> str:
        return f"{self.model}-e{self.epochs}-b{self.batch or 'inf'}-{self.split}"

    @property
    def title(self) -> str:
        return f"{self.model.upper()}, E = {self.epochs}, B = {self.batch or 'all'}, {SPLITS[self.split][0]}"

    @property
    def target(self) -> float:
        return TARGETS[self.model]

    @property
    def job(self) -> dict[str, Any]:
        return read_table(JOBS / f"{self.name}.toml", ())


# Table 1, C = 0.1: (B, IID, two shards); its second half has 18 and 206 for the CNN with E = 5, B = 10
_TABLE_1 = ((10, 87, 664), (None, 1474, 1796))
# Table 2, the CNN: (E, B, IID, two shards); the first is their FedSGD
_TABLE_2 = (
    (1, None, 626, 483), (5, None, 179, 1000), (1, 50, 65, 600), (20, None, 234, 672), (1, 10, 34, 350),
    (5, 50, 29, 334), (20, 50, 32, 426), (5, 10, 20, 229), (20, 10, 18, 173),
)  # fmt: skip

ROWS = tuple(
    Row(model, epochs, batch, split, says, where)
    for model, where, cells in (
        ("2nn", "Table 1", [(1, *cell) for cell in _TABLE_1]),
        ("cnn", "Table 2", list(_TABLE_2)),
    )
    for epochs, batch, *numbers in cells
    for split, says in zip(SPLITS, numbers, strict=True)
)
