"""A picture of a partition shows the rows, classes, targets and columns that its clients hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mpifed as mf
from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.plots import partition as module

# classes of the rows of each client
LABELS = ([0, 0, 0, 1, 1, 1, 1], [2], [0, 2, 2])
COUNTS = np.array([[3, 0, 1], [4, 0, 0], [0, 1, 2]])  # of each class, by client


def of_clients(labels: Any, out: Path | None = None) -> mf.FederatedDataset:
    rng = np.random.default_rng(0)
    return mf.FederatedDataset.from_clients([(rng.normal(size=(len(y), 2)), np.array(y)) for y in labels], out=out)


def test_dots_have_the_area_of_the_counts() -> None:
    picture = of_clients(LABELS).plot()
    sizes, classes = picture.axes
    assert [bar.get_height() for bar in sizes.patches] == [7, 1, 3]  # type: ignore[attr-defined]
    assert sizes.get_title(loc="left") == "11 rows of 3 clients, 1 to 7 each"
    (dots,) = classes.collections
    areas = np.zeros((3, 3))
    for (client, number), area in zip(np.asarray(dots.get_offsets()).astype(int), dots.get_sizes(), strict=True):  # type: ignore[attr-defined]
        areas[number, client] = area
    np.testing.assert_allclose(areas / areas.max(), COUNTS / 4)
    assert [tick.get_text() for tick in classes.get_yticklabels()] == ["0", "1", "2"]


def test_of_many_clients_there_is_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", 2)
    picture = of_clients([*LABELS, *LABELS[:2]]).plot()
    np.testing.assert_array_equal(picture.axes[1].images[0].get_array(), COUNTS[:, [0, 1, 2, 0, 1]])
    (stairs,) = picture.axes[0].patches
    np.testing.assert_array_equal(stairs.get_data()[0], [7, 1, 3, 7, 1])  # type: ignore[attr-defined]


def test_targets_have_ranges_and_quartiles() -> None:
    targets = ([0.5, 1.5, 9.5, 3.25], [-1.5, 2.5])
    picture = of_clients(targets).plot("column")
    assert picture.get_figwidth() == 3.4
    ranges, middle = (collection.get_segments() for collection in picture.axes[1].collections)  # type: ignore[attr-defined]
    for client, values in enumerate(targets):
        np.testing.assert_allclose(ranges[client], [[client, min(values)], [client, max(values)]])
        np.testing.assert_allclose(middle[client][:, 1], np.quantile(values, [0.25, 0.75]))
    np.testing.assert_allclose(picture.axes[1].lines[0].get_ydata(), [np.median(values) for values in targets])


def test_of_clients_with_other_columns_these_are_counted() -> None:
    rng = np.random.default_rng(0)
    data = mf.FederatedDataset.from_arrays(
        rng.normal(size=(8, 3)), rng.normal(size=8), clients=2, split="columns", names=["age", "$height$", "income"]
    )
    picture = data.plot()
    assert [[bar.get_height() for bar in axes.patches] for axes in picture.axes] == [[8, 8], [2, 1]]  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="size = 'a4'"):
        data.plot("a4")  # type: ignore[arg-type]


def test_the_command_draws_data(tmp_path: Path) -> None:
    data = of_clients(LABELS, out=tmp_path / "data")
    ended = CliRunner().invoke(main, ["plot", str(data.path), "--out", str(tmp_path / "f.png"), "--size", "column"])
    assert ended.exit_code == 0 and (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG"), ended.output
