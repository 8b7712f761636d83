"""The lines of a figure are those of the runs' histories."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner
from numpy.typing import NDArray
from written_files import SUMMARY, History, write_json

from mpifed.cli import main
from mpifed.core.errors import DataError, UsageError
from mpifed.plots.convergence import MOST_LINES, draw, figure
from mpifed.plots.labels import labels_of
from mpifed.plots.lines import PlottedLines, curve, read_lines
from mpifed.plots.style import COLOURS, DASHES, MARKERS, save

ROUNDS = (0, 10, 20, 30)


def write_run(
    run: Path,
    name: str = "job",
    seed: int = 1,
    batch: int = 10,
    rounds: Sequence[int] = ROUNDS,
    scale: float = 1.0,
    unknown: Sequence[str] = (),
    private: bool = False,
    more: str = "",
) -> Path:
    """A run directory with a loss of `scale` * 2^-round, a second every ten rounds, and 100 bytes up and 50 down.

    A private one has an epsilon of a fifth of the rounds.
    """
    run.mkdir(parents=True)
    algorithm = f'[algorithm]\nname = "fedavg"\nbatch_size = {batch}\n'
    (run / "job.toml").write_text(f'name = "{name}"\nseed = {seed}\n{algorithm}{more}')
    write_json(run / "run.json", {"name": name, "exit": 0})
    history = History(run)
    for index in rounds:
        row: dict[str, float | int | None] = {
            "round": index,
            "elapsed_s": index / 10,
            "train_loss": scale * 2.0**-index,
            "test_accuracy": index / 100,
            "up_bytes": 100 * index,
            "down_bytes": 50 * index,
        }
        row |= {"epsilon": index / 5} if private else {}
        history.append(row | dict.fromkeys(unknown))
    return run


def lines(axes: Any) -> dict[str, NDArray[np.float64]]:
    """By label, [2, points]."""
    return {str(line.get_label()): np.array(line.get_data()) for line in axes.lines}


def legend(picture: Any) -> list[str]:
    return [text.get_text() for text in picture.legends[0].get_texts()]


def test_one_run_is_one_line_in_every_panel(tmp_path: Path) -> None:
    picture = figure([write_run(tmp_path / "run")])
    rounds = np.array(ROUNDS)
    x, y = [rounds, rounds / 10, rounds * 150], [2.0**-rounds, rounds / 100]
    assert len(picture.axes) == 6
    for number, axes in enumerate(picture.axes):
        assert lines(axes).keys() == {"job"}
        np.testing.assert_allclose(lines(axes)["job"], np.stack([x[number % 3], y[number // 3]]))
    assert [axes.get_ylabel() for axes in picture.axes] == ["training loss", "", "", "test accuracy", "", ""]
    assert [axes.get_xlabel() for axes in picture.axes[3:]] == ["round", "training time", "sent, up and down"]


def test_runs_that_differ_in_seed_are_a_mean_and_a_range(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), seed=seed, scale=seed) for seed in (1, 2, 6)]
    picture = figure(runs, x="round")
    assert picture.legends[0].get_title().get_text() == "mean and range of 3 seeds"
    (axes, _) = picture.axes
    halved = 2.0 ** -np.array(ROUNDS)
    np.testing.assert_allclose(lines(axes)["job"], np.stack([ROUNDS, 3 * halved]))
    (band,) = axes.collections
    low, high = 1 * halved, 6 * halved
    corners: Any = band.get_paths()[0].vertices
    for edge in (low, high):
        assert {*zip(ROUNDS, edge, strict=True)} <= {(x, y) for x, y in corners}


def test_seeds_are_compared_at_the_rounds_that_all_have_measured(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "1", seed=1), write_run(tmp_path / "2", seed=2, rounds=(0, 5, 10))]
    with pytest.warns(UserWarning, match="job: drawn up to round 10, the last that all 2 runs have measured"):
        (axes, _) = figure(runs, x=["elapsed_s"]).axes
    np.testing.assert_allclose(lines(axes)["job"][0], [0, 1])


def test_other_runs_are_lines_labelled_by_what_sets_them_apart(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", batch=10),
        write_run(tmp_path / "b", batch=100),
        write_run(tmp_path / "c", name="other"),
    ]
    picture = figure(runs)
    labels = ["job, batch_size = 10", "job, batch_size = 100", "other"]
    assert list(lines(picture.axes[0])) == labels == legend(picture)
    assert picture.legends[0].get_title().get_text() == ""
    assert len({line.get_color() for line in picture.axes[0].lines}) == 3


def test_what_no_run_has_measured_has_no_panel(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "a", unknown=["test_accuracy", "down_bytes"])
    assert [axes.get_xlabel() for axes in figure([plain]).axes] == ["round", "training time"]
    scored = write_run(tmp_path / "b", name="other")
    picture = figure([plain, scored])
    assert len(picture.axes) == 6
    assert lines(picture.axes[2])["job"].shape == (2, 0)


def test_private_runs_are_drawn_against_epsilon_too(tmp_path: Path) -> None:
    picture = figure([write_run(tmp_path / "a"), write_run(tmp_path / "b", name="private", private=True)])
    loss = picture.axes[3]
    assert picture.axes[7].get_xlabel().startswith("epsilon")
    assert lines(loss)["job"].shape == (2, 0)
    np.testing.assert_allclose(lines(loss)["private"], [np.array(ROUNDS) / 5, 2.0 ** -np.array(ROUNDS)])


@pytest.mark.parametrize(("rounds", "scale"), [(ROUNDS, "log"), ((0, 1, 2, 3), "linear")])
def test_the_loss_is_logarithmic_where_it_spreads(tmp_path: Path, rounds: Sequence[int], scale: str) -> None:
    loss, accuracy = figure([write_run(tmp_path / "run", rounds=rounds)], x=["round"]).axes
    assert (loss.get_yscale(), accuracy.get_yscale()) == (scale, "linear")


@pytest.mark.parametrize(("last", "label"), [(900, "0 s"), (6000, "0 min"), (90000, "0 h")])
def test_time_is_shown_in_a_unit_that_can_be_read(tmp_path: Path, last: int, label: str) -> None:
    (axes, _) = figure([write_run(tmp_path / "run", rounds=(0, last))], x=["elapsed_s"]).axes
    assert axes.figure.axes[-1].get_xticklabels()[0].get_text() == label
    assert lines(axes)["job"][0, -1] == last / 10


@pytest.mark.parametrize(("name", "start"), [("f.png", b"\x89PNG"), ("f.pdf", b"%PDF"), ("f.SVG", b"<?xml")])
def test_the_suffix_chooses_the_format(tmp_path: Path, name: str, start: bytes) -> None:
    save(figure([write_run(tmp_path / "run")], x="round", y="train_loss"), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_what_is_not_a_run_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run, sweep or data here"):
        figure([tmp_path])
    with pytest.raises(DataError, match="nothing was measured"):
        figure([write_run(tmp_path / "run", unknown=["train_loss", "test_accuracy"])])


def write_constrained(run: Path, limit: float, certified: Sequence[int]) -> Path:
    """A run with two constraints, of which the first is limit + 2^-round, and certificates in some rounds."""
    run.mkdir()
    tables = f'[[constraint]]\nname = "loss"\nlimit = {limit}\n[[constraint]]\nname = "norm"\nlimit = 9\n'
    (run / "job.toml").write_text(f'name = "job"\nseed = 1\n{tables}')
    write_json(run / "run.json", {"name": "job", "exit": 0})
    history = History(run)
    for index in ROUNDS:
        row = {"round": index, "elapsed_s": index, "train_loss": 1.0, "up_bytes": index, "down_bytes": index}
        found = {"constraint_1": limit + 2.0**-index, "constraint_2": 4.0}
        history.append({**row, **found, "kkt_residual": 1.0 / (1 + index) if index in certified else None})
    return run


def test_constraints_are_drawn_against_their_limits(tmp_path: Path) -> None:
    runs = [write_constrained(tmp_path / "one", 0.1, ROUNDS), write_constrained(tmp_path / "two", 0.2, [30])]
    picture = figure(runs, x=["round"])
    assert [axes.get_ylabel() for axes in picture.axes] == [
        "training loss", "largest excess over a limit", "KKT residual",
    ]  # fmt: skip
    excess, residual = lines(picture.axes[1]), lines(picture.axes[2])
    assert {"limit = 0.1", "limit = 0.2"} < excess.keys()
    for label in ("limit = 0.1", "limit = 0.2"):
        np.testing.assert_allclose(excess[label][1], 2.0 ** -np.array(ROUNDS))
    np.testing.assert_allclose(residual["limit = 0.1"][1], 1 / (1 + np.array(ROUNDS)))
    assert residual["limit = 0.2"].shape == (2, 1)


def test_a_certificate_of_the_end_alone_gets_no_panel(tmp_path: Path) -> None:
    picture = figure([write_constrained(tmp_path / "run", 0.1, [30])], x=["round"])
    assert "KKT residual" not in [axes.get_ylabel() for axes in picture.axes]


# --- simulated time, and the distance from the optimum -----------------------------------------------------------


def write_certified(run: Path, name: str, optimum: float, network: bool = True) -> Path:
    """A run whose objective is (1 + 10^-t) times an optimum in measured round t, and not above it in the last."""
    run.mkdir()
    (run / "job.toml").write_text(f'name = "{name}"\n[algorithm]\nname = "hyfdca"\n')
    write_json(run / "run.json", {"name": name, "exit": 0})
    history = History(run)
    for t in range(4):
        objective = optimum * (1 + 10.0**-t if t < 3 else 1 - 1e-16)
        row = {"round": t, "elapsed_s": t / 10, "train_loss": 0.5, "objective": objective, "duality_gap": 4.0**-t}
        row |= {"simulated_s": 3000.0 * t} if network else {}
        history.append(row | {"up_bytes": t, "down_bytes": t})
    return run


def test_simulated_time_stands_beside_real_time(tmp_path: Path) -> None:
    runs = [write_certified(tmp_path / "a", "a", 0.2), write_certified(tmp_path / "b", "b", 0.2, network=False)]
    loss = figure(runs).axes[:4]
    simulated = lines(loss[2])
    np.testing.assert_allclose(simulated["a"][0], [0, 3000, 6000, 9000])
    assert simulated["b"].shape == (2, 0)
    last = figure(runs, x=["elapsed_s", "simulated_s"]).axes[-1]
    assert last.get_xlabel() == "simulated time of a deployment"
    assert last.get_xticklabels()[0].get_text() == "0 h"
    with pytest.raises(UsageError, match="no run has measured 'simulated_s'; columns are bytes, "):
        figure(runs[1:], x=["simulated_s"])


def test_the_objective_relative_to_the_optimum(tmp_path: Path) -> None:
    run = write_certified(tmp_path / "run", "a", 0.2)
    relative, gap = figure([run], x=["round"], relative_to=0.2).axes
    assert relative.get_ylabel().replace("\n", " ") == "objective above the optimum, relative"
    assert relative.get_yscale() == "log"
    np.testing.assert_allclose(lines(relative)["a"], [[0, 1, 2], [1, 0.1, 0.01]])  # below the optimum there is no log
    assert gap.get_ylabel() == "duality gap"
    np.testing.assert_allclose(lines(gap)["a"][1], [1, 0.25, 0.0625, 0.015625])
    with pytest.raises(DataError, match="no column objective"):
        figure([write_run(tmp_path / "plain")], x=["round"], relative_to=0.2)


def test_what_is_minimized_is_drawn(tmp_path: Path) -> None:
    """Beside the loss, where it is something else."""
    run = write_certified(tmp_path / "run", "a", 100.0)
    assert "objective" not in [axes.get_ylabel() for axes in figure([run], x=["round"]).axes]
    with open(run / "job.toml", "a") as file:
        file.write('[minimize]\nname = "norm"\n')
    loss, objective, _ = figure([run], x=["round"]).axes
    assert (loss.get_ylabel(), objective.get_ylabel()) == ("training loss", "objective")
    np.testing.assert_allclose(lines(objective)["a"][1], [200, 110, 101, 100])
    assert "objective" not in [axes.get_ylabel() for axes in figure([run], x=["round"], relative_to=99.0).axes]


def test_bytes_are_in_the_units_of_tables(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=range(0, 200_001, 50_000))  # 150 bytes a round
    (axes,) = [one for one in figure([run], x=["bytes"]).axes if one.get_xlabel()]
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert shown[0] == "0 MiB" and "15 MiB" in shown
    assert axes.get_xticks()[shown.index("15 MiB")] == 15 * 2**20


# --- sweeps, joined runs, and bands -------------------------------------------------------------------------------


def write_sweep(folder: Path, points: Sequence[dict[str, Any]]) -> Path:
    """A sweep with a label and a seed of each point; what has `rounds` = () has not begun."""
    lines = [",".join(["point", "label", "seed", *SUMMARY])]
    for number, point in enumerate(points):
        name = f"point-{number:04d}"
        lines.append(",".join([name, point.pop("label"), str(point.get("seed", 1)), *[""] * len(SUMMARY)]))
        if point.get("rounds", ROUNDS):
            write_run(folder / name, **point)
    (folder / "sweep.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    points = [
        {"label": label, "seed": seed, "batch": batch, "scale": seed**2 * batch}
        for label, batch in (("FedAvg", 10), ("$SSCA_", 20))
        for seed in (1, 2, 3)
    ]
    return write_sweep(tmp_path / "sweep", [*points, {"label": "late", "rounds": ()}])


def test_a_sweep_is_a_line_for_each_setting_with_its_label(sweep: Path) -> None:
    with pytest.warns(UserWarning, match="left out, since nothing was measured yet: point-0006"):
        picture = figure([sweep], x="round", y="train_loss")
    assert legend(picture) == ["FedAvg", r"\$SSCA_"]
    assert picture.legends[0].get_title().get_text() == "mean and range of 3 seeds"
    (axes,) = picture.axes
    np.testing.assert_allclose(lines(axes)["FedAvg"][1], 10 * (1 + 4 + 9) / 3 * 2.0 ** -np.array(ROUNDS))


@pytest.mark.parametrize("band", ["range", "deviation", "interval", "none"])
def test_bands_are_what_they_are_said_to_be(sweep: Path, band: Any) -> None:
    """Against scipy and numpy, of the values 10, 40, 90 times 2^-round."""
    line = read_lines([sweep]).lines[0]
    drawn = curve(line.runs, "round", "train_loss", band)
    values = np.outer([10, 40, 90], 2.0 ** -np.array(ROUNDS))
    mean = values.mean(axis=0)
    interval = scipy.stats.t.interval(0.95, 2, loc=mean, scale=scipy.stats.sem(values, axis=0))
    deviation = values.std(axis=0, ddof=1)
    low, high = {
        "range": (values.min(axis=0), values.max(axis=0)), "deviation": (mean - deviation, mean + deviation),
        "interval": interval, "none": (mean, mean),
    }[band]  # fmt: skip
    np.testing.assert_allclose(drawn, [ROUNDS, mean, low, high])
    alone = curve(line.runs[:1], "round", "train_loss", band)
    np.testing.assert_array_equal(alone.low, alone.high)


def test_the_legend_says_what_bands_are(sweep: Path, tmp_path: Path) -> None:
    read = read_lines([sweep])
    titles = {band: draw(read, x="round", y="train_loss", band=band).legends[0].get_title().get_text()  # type: ignore
              for band in ("deviation", "interval", "none")}  # fmt: skip
    assert titles == {
        "deviation": "mean and standard deviation of 3 seeds",
        "interval": "mean and 95 % interval of the mean of 3 seeds", "none": "mean of 3 seeds",
    }  # fmt: skip
    joined = figure(
        [sweep / "point-0004"],
        joined={"both": [sweep / "point-0000", sweep / "point-0003"], "two": [sweep / "point-0004"]},
        x="round", y="train_loss",
    )  # fmt: skip
    assert legend(joined) == ["both", "two"]  # what is joined is not drawn twice
    assert joined.legends[0].get_title().get_text() == "mean and range of 1 to 2 runs"  # which differ in their batch
    np.testing.assert_allclose(lines(joined.axes[0])["both"][1][0], (10 + 20) / 2)


def test_any_column_can_be_an_axis_and_unknown_ones_list_the_known(sweep: Path) -> None:
    read = read_lines([sweep])
    picture = draw(read, x=["bytes", "up_bytes"], y=["elapsed_s", "test_accuracy"], log="x")
    assert [axes.get_ylabel() for axes in picture.axes] == ["training time", "", "test accuracy", ""]
    assert {axes.get_xscale() for axes in picture.axes} == {"log"}
    assert {axes.get_yscale() for axes in picture.axes} == {"linear"}
    np.testing.assert_allclose(lines(picture.axes[1])["FedAvg"], [[1000, 2000, 3000], [1, 2, 3]])  # 0 has no logarithm
    for log, scale in (("y", "log"), ("none", "linear")):
        assert draw(read, x="round", y="train_loss", log=log).axes[0].get_yscale() == scale  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no run has measured 'loss'; columns are bytes, .*train_loss, up_bytes"):
        draw(read, y="loss")
    private = write_run(sweep / "private", private=True, unknown=["train_loss"])
    with pytest.raises(DataError, match="nothing of train_loss was measured against epsilon"):
        figure([private, sweep / "point-0000"], x="epsilon", y="train_loss")
    with pytest.raises(
        UsageError, match=r"no run has measured 'train_loss'; columns are bytes, down_bytes, elapsed_s, "
    ):
        figure([private], y="train_loss")


def test_more_lines_than_can_be_told_apart_are_refused(tmp_path: Path) -> None:
    read = read_lines([write_run(tmp_path / "run")])
    many = PlottedLines([read.lines[0]._replace(label=str(number)) for number in range(MOST_LINES + 1)], [])
    with pytest.raises(UsageError, match=r"31 lines; a figure shows 30, .* single points of the sweep"):
        draw(many)
    (axes,) = draw(many._replace(lines=many.lines[:-1]), x="round", y="train_loss").axes
    looks = {(line.get_color(), line.get_marker(), str(line._unscaled_dash_pattern)) for line in axes.lines}  # type: ignore[attr-defined]
    assert len(looks) == MOST_LINES
    for number in range(0, 28, 7):  # any seven that follow each other, in grey too
        seven = axes.lines[number : number + 7]
        assert len({str(line._unscaled_dash_pattern) for line in seven}) == 7  # type: ignore[attr-defined]
        assert len({line.get_marker() for line in seven}) == 7
    assert len(COLOURS) == len(DASHES) == 7 and len(set(MARKERS)) == 9


@pytest.mark.parametrize(("size", "inches", "panels"), [("column", 3.4, 1), ("page", 7.0, 3)])
def test_figures_for_print(sweep: Path, size: Any, inches: float, panels: int) -> None:
    picture = draw(read_lines([sweep]), y=["train_loss"], size=size)
    assert picture.get_figwidth() == inches and len(picture.axes) == panels
    (legend,) = picture.legends
    texts = [*legend.get_texts(), legend.get_title(), *picture.axes[0].get_xticklabels()]
    assert {text.get_fontsize() for text in [*texts, *(axes.xaxis.label for axes in picture.axes)]} == {8}


@pytest.mark.parametrize("size", ["screen", "column", "page"])
@pytest.mark.parametrize("title", ["of one line", "of\ntwo lines"])
def test_a_title_stands_above_the_legend_and_this_above_the_panels(sweep: Path, size: Any, title: str) -> None:
    read = read_lines([sweep])
    named = [line._replace(label=f"{line.label} " * (1 + 3 * title.count("\n"))) for line in read.lines]
    picture = draw(PlottedLines(named, []), x="round", y="train_loss", size=size)
    text = picture.suptitle(title)
    picture.draw_without_rendering()
    boxes = [text.get_window_extent(), picture.legends[0].get_window_extent(), picture.axes[0].get_window_extent()]
    for upper, lower in itertools.pairwise(boxes):
        assert upper.y0 >= lower.y1
    assert boxes[0].y1 <= picture.bbox.y1 and boxes[2].height > 0.3 * picture.bbox.height


def test_the_legend_is_outside_of_the_axes(sweep: Path) -> None:
    """And no text of the figure is cut off."""
    read = read_lines([sweep])
    long = PlottedLines([read.lines[0]._replace(label="a long label of several words " * 4), *read.lines[1:]], [])
    picture = draw(long, x="round", y="train_loss", size="column")
    picture.draw_without_rendering()
    box = picture.legends[0].get_window_extent()
    assert all(not box.overlaps(axes.get_tightbbox()) for axes in picture.axes)
    assert box.x0 >= 0 and box.x1 <= picture.bbox.x1 and box.y1 <= picture.bbox.y1


# --- labels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "labels"), [
    ([{"name": "job"}], ["job"]),
    ([{"name": "mnist-fedavg-b10"}, {"name": "mnist-ssca-b10"}], ["fedavg", "ssca"]),
    ([{"name": "fedavg"}, {"name": "fedavg-momentum"}], ["fedavg", "fedavg-momentum"]),
    ([{"name": "paper-fedpdm-10"}, {"name": "paper-fedpdm-20"}], ["fedpdm-10", "fedpdm-20"]),
    ([{"name": "a", "algorithm.mu": 1}, {"name": "a", "algorithm.mu": 0.1 + 0.2}], ["mu = 1", "mu = 0.3"]),
    ([{"name": "a", "algorithm.name": "x", "algorithm.mu": 1}, {"name": "a", "algorithm.name": "x"}],
     ["mu = 1", "default mu"]),
    ([{"name": "a", "x.rate": 1, "y.rate": 2}, {"name": "a", "x.rate": 2, "y.rate": 1}],
     ["x.rate = 1, y.rate = 2", "x.rate = 2, y.rate = 1"]),
    ([{"name": "a", "algorithm.name": "fedavg", "algorithm.steps": 5}, {"name": "a", "algorithm.name": "ssca"}],
     ["fedavg", "ssca"]),
    ([{"name": "a", "privacy.clip": 1, "privacy.delta": 1}, {"name": "a", "privacy.clip": 2, "privacy.delta": 1},
      {"name": "a"}], ["privacy, clip = 1", "privacy, clip = 2", "no privacy"]),
    ([{"name": "a", "data.path": "data/x"}, {"name": "a", "data.path": "data/y/"}], ["x", "y"]),
    ([{"label": "FedAvg", "name": "s", "data.path": "x"}, {"label": "FedAvg", "name": "s", "data.path": "y"},
      {"name": "job", "data.path": "x"}], ["FedAvg, x", "FedAvg, y", "job"]),
    ([{"name": "a", "c.rate.initial": 1}, {"name": "a", "c.rate.initial": 2}],
     ["rate.initial = 1", "rate.initial = 2"]),
    ([{"name": "x" * 70 + "a"}, {"name": "y" * 70 + "b"}], [f"{'x' * 40}…{'x' * 18}a", f"{'y' * 40}…{'y' * 18}b"]),
    ([{"name": "x" * 41 + "1" + "x" * 30}, {"name": "x" * 41 + "2" + "x" * 30}],
     ["x" * 41 + "1" + "x" * 30, "x" * 41 + "2" + "x" * 30]),
])  # fmt: skip
def test_labels_hold_what_differs(settings: Any, labels: list[str]) -> None:
    assert labels_of(settings) == labels


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_draws_what_it_is_asked_for(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, drawn = sweep.parent / "f.png", list[Any]()
    monkeypatch.setattr("mpifed.plots.convergence.draw", lambda read, **given: drawn.append((read, given)))
    monkeypatch.setattr("mpifed.plots.style.save", lambda picture, path: None)
    one, two = sweep / "point-0000", sweep / "point-0003"
    joined = ["--label", f"A={one},{two}", "--label", f"B={sweep / 'point-0001'}"]
    ended = CliRunner().invoke(main, [
        "plot", str(sweep), *joined, "--out", str(out), "--x", "round", "--x", "bytes", "--y", "train_loss", "--band",
        "interval", "--log", "both", "--size", "column",
    ])  # fmt: skip
    assert ended.exit_code == 0, ended.output
    assert f"figure: {out}" in ended.output and "left out, since nothing was measured yet: point-0006" in ended.output
    ((read, given),) = drawn
    assert [line.label for line in read.lines] == ["A", "B", "FedAvg", "$SSCA_"]
    assert [len(line.runs) for line in read.lines] == [2, 1, 1, 2]
    assert given == {
        "x": ("round", "bytes"), "y": ("train_loss",), "band": "interval", "log": "both", "size": "column",
    }  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "message"), [
    ([], 2, "give folders of runs or sweeps, or of data"),
    (["run"], 2, "give --out FIGURE"),
    (["run", "--out", "f.png", "--relative-to", "0"], 2, "relative-to"),
    (["run", "--out", "f.png", "--label", "A"], 2, "expected NAME=FOLDER or NAME=FOLDER,FOLDER"),
    (["run", "--out", "f.png", "--label", "=run"], 2, "expected NAME=FOLDER"),
    (["--out", "f.png", "--label", "A=nowhere"], 3, "nowhere: no such folder"),
    (["run", "data", "--out", "f.png"], 2, "data are drawn one folder at a time"),
    (["data", "--out", "f.png", "--y", "train_loss"], 2, "data are drawn one folder at a time"),
    (["run", "--x", "round", "--out", "run/job.toml/f.png"], 3, "run/job.toml/f.png: Not a directory; name a f"),
    (["empty", "--out", "f.png"], 3, "no run of this sweep has measured anything yet"),
])  # fmt: skip
def test_the_command_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"))
    Path("data").mkdir()
    Path("data/federation.h5").touch()
    Path("empty").mkdir()
    write_sweep(Path("empty"), [{"label": "late", "rounds": ()}])
    ended = CliRunner().invoke(main, ["plot", *arguments])
    assert ended.exit_code == code, ended.output
    assert re.search(message, " ".join(ended.output.split()))
