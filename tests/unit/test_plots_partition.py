"""A picture of a partition shows the rows, classes, targets and cells that its clients hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mpifed as mf
from mpifed.cli import main
from mpifed.core.errors import DataError, UsageError
from mpifed.data.prepare import Options, prepare
from mpifed.data.sources import Synthetic
from mpifed.data.store import open_federation
from mpifed.plots import partition as module
from mpifed.plots.partition import partition

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


def test_of_many_clients_neighbours_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [*LABELS, *LABELS[:2]]
    data = of_clients(labels)
    monkeypatch.setattr(module, "_FEW", 2)
    image = data.plot().axes[1].images[0].get_array()
    np.testing.assert_array_equal(image[:: len(image) // 3], COUNTS[:, [0, 1, 2, 0, 1]])
    monkeypatch.setattr(module, "_BINS", 3)
    picture = data.plot()
    image = picture.axes[1].images[0].get_array()
    means = np.stack([COUNTS[:, [0, 1]].mean(axis=1), COUNTS[:, [2, 0]].mean(axis=1), COUNTS[:, 1]], axis=1)
    np.testing.assert_array_equal(image[:: len(image) // 3], means)
    (stairs,) = picture.axes[0].patches
    np.testing.assert_array_equal(stairs.get_data()[0], [4, 5, 1])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(stairs.get_data()[1], [-0.5, 1.5, 3.5, 4.5])  # type: ignore[attr-defined]
    assert picture.axes[1].get_xlabel() == "client, in bins of 2"


def test_targets_have_ranges_and_quartiles() -> None:
    targets = ([0.5, 1.5, 9.5, 3.25], [-1.5, 2.5])
    picture = of_clients(targets).plot("column")
    assert picture.get_figwidth() == 3.4
    ranges, middle = (collection.get_segments() for collection in picture.axes[1].collections)  # type: ignore[attr-defined]
    for client, values in enumerate(targets):
        np.testing.assert_allclose(ranges[client], [[client, min(values)], [client, max(values)]])
        np.testing.assert_allclose(middle[client][:, 1], np.quantile(values, [0.25, 0.75]))
    np.testing.assert_allclose(picture.axes[1].lines[0].get_ydata(), [np.median(values) for values in targets])


# --- rows and columns --------------------------------------------------------------------------------------------

MAP = """client,rows,columns
0,0-9 15,0-2
1,0-4,3-4
2,5-9 15,3
3,10-14 16-19,0-3
"""


def rectangles(picture: Any) -> list[tuple[float, float, float, float]]:
    """(width, height, left, top) of each."""
    (collection,) = picture.axes[0].collections
    corners = [path.vertices for path in collection.get_paths()]
    return [(*np.ptp(v, axis=0), *v.min(axis=0)) for v in corners]


def test_rectangles_are_what_clients_hold(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text(MAP)
    prepare(Options(name="synthetic", source=Synthetic(samples=20, features=5), out=tmp_path / "data", split="grid",
                    map=tmp_path / "map.csv", missing="zero"))  # fmt: skip
    picture = partition(open_federation(tmp_path / "data"))
    held = np.zeros((20, 5), int)
    for width, height, left, top in rectangles(picture):
        held[round(top) : round(top + height), round(left) : round(left + width)] += 1
    assert held.max() == 1 and held.sum() == 11 * 3 + 5 * 2 + 6 * 1 + 9 * 4
    assert "15.0% of the cells with nobody" in picture.axes[0].get_title(loc="left")
    assert {text.get_text() for text in picture.axes[0].texts} == {"0", "1", "2", "3"}
    assert picture.axes[0].get_ylabel().startswith("rows, in groups") and picture.axes[0].get_xlabel() == "column"


def test_columns_have_their_names_and_too_many_pieces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    data = mf.FederatedDataset.from_arrays(
        rng.normal(size=(8, 3)), rng.normal(size=8), clients=2, split="columns", names=["age", "$height$", "income"]
    )
    picture = data.plot()
    assert sorted(rectangles(picture)) == [(1, 8, 2, 0), (2, 8, 0, 0)]
    assert [tick.get_text() for tick in picture.axes[0].get_xticklabels()] == ["age", r"\$height\$", "income"]
    monkeypatch.setattr(module, "_RECTANGLES", 1)
    with pytest.raises(DataError, match="hold 2 rectangles of rows and columns, of which a picture shows 1"):
        data.plot()
    with pytest.raises(UsageError, match="size = 'a4'"):
        data.plot("a4")  # type: ignore[arg-type]


def test_the_command_draws_data(tmp_path: Path) -> None:
    data = of_clients(LABELS, out=tmp_path / "data")
    ended = CliRunner().invoke(main, ["plot", str(data.path), "--out", str(tmp_path / "f.png"), "--size", "column"])
    assert ended.exit_code == 0 and (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG"), ended.output
