"""Data of `datasets` and of partitioners of flwr-datasets: each client has the rows that they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from federations import common, in_order, labelled, make

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


@pytest.mark.parametrize("files", [1, 3])
def test_a_folder_of_save_to_disk(tmp_path: Path, files: int) -> None:
    table().save_to_disk(str(tmp_path / "table"), num_shards=files)
    words = ["--label", "label", "--by", "writer", "--scale", "none"]
    folder = make(tmp_path / "out", "arrow", tmp_path / "table", *words)
    assert folder.names() == ("a", "b") and folder.client_names() == ("ann", "bob", "eve")
    for number, writer in enumerate(["ann", "bob", "eve"]):
        assert labelled(folder, number) == in_order(VALUES[writer == WRITERS], LABELS[writer == WRITERS])


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    parts = table().remove_columns("writer").train_test_split(30, seed=1)  # rows by indices, which it flattens
    parts.save_to_disk(str(tmp_path / "table"))
    words = ["--label", "label", "--split", "rows", "--clients", "1", "--scale", "none"]
    folder = make(tmp_path / "out", "arrow", tmp_path / "table", *words)
    train, test = (parts[name].with_format("numpy")[:] for name in ("train", "test"))
    assert labelled(folder, 0) == in_order(np.column_stack([train["a"], train["b"]]), train["label"])
    assert in_order(*common(folder)) == in_order(np.column_stack([test["a"], test["b"]]), test["label"])


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
    data = mf.FederatedDataset.from_partitioner(partitioner, label="label", features=["a", "b"])
    folder = open_federation(data.path, verify=True)
    assert data.clients == partitioner.num_partitions and data.samples == len(LABELS)
    for number in range(data.clients):
        part = partitioner.load_partition(number).with_format("numpy")[:]
        assert labelled(folder, number) == in_order(np.column_stack([part["a"], part["b"]]), part["label"])


def test_images_of_a_partitioner_and_of_a_dataset() -> None:
    partitioner = partitioners.LinearPartitioner(num_partitions=3)
    partitioner.dataset = images()
    data = mf.FederatedDataset.from_partitioner(partitioner, label="label", scale="none")
    folder, pixels = open_federation(data.path, verify=True), PIXELS.transpose(0, 3, 1, 2)
    assert data.shape == (3, 6, 5)
    ends = np.cumsum([0, *folder.counts])
    for number in range(3):
        rows = slice(ends[number], ends[number + 1])
        assert labelled(folder, number) == in_order(pixels[rows], LABELS[rows])
    dataset = images().with_format("numpy")[:]  # as docs/how-to/python.md shows
    X = dataset["image"].transpose(0, 3, 1, 2)
    data = mf.FederatedDataset.from_arrays(X, dataset["label"], clients=WRITERS, scale="none")
    assert data.shape == (3, 6, 5)
    assert labelled(open_federation(data.path), 1) == in_order(pixels[WRITERS == "bob"], LABELS[WRITERS == "bob"])
