"""Data of `datasets` and of partitioners of flwr-datasets: each client has the rows that they say."""

from __future__ import annotations

import numpy as np
import pytest
from federations import in_order, labelled

import mpifed as mf
from mpifed.data.store import open_federation

datasets = pytest.importorskip("datasets", reason="needs the extra `flwr-datasets`")
from flwr_datasets import partitioner as partitioners  # noqa: E402  # beside datasets

RNG = np.random.default_rng(5)
VALUES = RNG.normal(size=(90, 2)).astype(np.float32)
LABELS = np.arange(90) % 3
WRITERS = RNG.choice(["ann", "bob", "eve"], 90)
PIXELS = RNG.integers(0, 256, (90, 6, 5, 3), np.uint8)


def table() -> datasets.Dataset:
    columns = {"a": VALUES[:, 0], "b": VALUES[:, 1], "writer": WRITERS, "label": LABELS}
    return datasets.Dataset.from_dict(columns).cast_column("label", datasets.ClassLabel(names=["x", "y", "z"]))


def images() -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {"image": [datasets.Image().encode_example(pixels) for pixels in PIXELS], "label": LABELS},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )


@pytest.mark.parametrize(
    "partitioner",
    [
        partitioners.IidPartitioner(num_partitions=4),
        partitioners.DirichletPartitioner(4, partition_by="label", alpha=0.5, min_partition_size=2, seed=7),
        partitioners.PathologicalPartitioner(3, partition_by="label", num_classes_per_partition=2, seed=7),
        partitioners.NaturalIdPartitioner(partition_by="writer"),
    ],
    ids=lambda partitioner: type(partitioner).__name__,
)
def test_the_partitions_of_a_partitioner(partitioner: partitioners.Partitioner) -> None:
    partitioner.dataset = table()
    parts = [partitioner.load_partition(number) for number in range(partitioner.num_partitions)]
    data = mf.FederatedDataset.from_clients(parts, label="label", ignore="writer", scale="none")
    folder = open_federation(data.path, verify=True)
    assert data.clients == partitioner.num_partitions and data.samples == len(LABELS)
    for number in range(data.clients):
        part = partitioner.load_partition(number).with_format("numpy")[:]
        assert labelled(folder, number) == in_order(np.column_stack([part["a"], part["b"]]), part["label"])


def test_images_of_a_dataset() -> None:
    pixels = PIXELS.transpose(0, 3, 1, 2)
    dataset = images().with_format("numpy")[:]  # as docs/how-to/python.md shows
    X = dataset["image"].transpose(0, 3, 1, 2)
    data = mf.FederatedDataset.from_arrays(X, dataset["label"], clients=WRITERS, scale="none")
    assert data.shape == (3, 6, 5)
    assert labelled(open_federation(data.path), 1) == in_order(pixels[WRITERS == "bob"], LABELS[WRITERS == "bob"])
