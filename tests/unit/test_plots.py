"""The lines of a figure are those of the runs' histories."""

from __future__ import annotations

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

import mpifed as mf
from mpifed.cli import main
from mpifed.plots.curves import curve, lines_of

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
            "objective": 1 + 2.0**-index,
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
    picture = mf.plot([write_run(tmp_path / "run")], x=())
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
    picture = mf.plot(runs)
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
        (axes, _) = mf.plot(runs, x=["elapsed_s"]).axes
    np.testing.assert_allclose(lines(axes)["job"][0], [0, 1])


def test_other_runs_are_lines_labelled_by_what_sets_them_apart(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", batch=10),
        write_run(tmp_path / "b", batch=100),
        write_run(tmp_path / "c", name="other", batch=20),
    ]
    picture = mf.plot(runs, x=())
    labels = ["job, batch_size = 10", "job, batch_size = 100", "other"]
    assert list(lines(picture.axes[0])) == labels == legend(picture)
    assert picture.legends[0].get_title().get_text() == ""
    assert len({line.get_color() for line in picture.axes[0].lines}) == 3


def test_private_runs_are_drawn_against_epsilon_too(tmp_path: Path) -> None:
    picture = mf.plot(
        [write_run(tmp_path / "a"), write_run(tmp_path / "b", name="private", private=True, batch=20)], x=()
    )
    loss = picture.axes[3]
    assert picture.axes[7].get_xlabel().startswith("epsilon")
    assert lines(loss)["job"].shape == (2, 0)
    np.testing.assert_allclose(lines(loss)["private"], [np.array(ROUNDS) / 5, 2.0 ** -np.array(ROUNDS)])


def test_the_objective_relative_to_the_optimum(tmp_path: Path) -> None:
    relative, _ = mf.plot([write_run(tmp_path / "run")], relative_to=1.0).axes
    np.testing.assert_allclose(lines(relative)["job"], [ROUNDS, 2.0 ** -np.array(ROUNDS)])
    assert relative.get_yscale() == "log" and relative.get_ylabel().startswith("objective above the optimum")


@pytest.mark.parametrize(("name", "start"), [("f.png", b"\x89PNG"), ("f.pdf", b"%PDF"), ("f.SVG", b"<?xml")])
def test_the_suffix_chooses_the_format(tmp_path: Path, name: str, start: bytes) -> None:
    run, figure = str(write_run(tmp_path / "run")), str(tmp_path / name)
    assert CliRunner().invoke(main, ["plot", run, "--x", "round", "--y", "train_loss", "--out", figure]).exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(start)


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
    picture = mf.plot(runs)
    assert [axes.get_ylabel() for axes in picture.axes] == [
        "training loss", "largest excess over a limit", "KKT residual",
    ]  # fmt: skip
    excess, residual = lines(picture.axes[1]), lines(picture.axes[2])
    assert {"limit = 0.1", "limit = 0.2"} < excess.keys()
    for label in ("limit = 0.1", "limit = 0.2"):
        np.testing.assert_allclose(excess[label][1], 2.0 ** -np.array(ROUNDS))
    np.testing.assert_allclose(residual["limit = 0.1"][1], 1 / (1 + np.array(ROUNDS)))
    assert residual["limit = 0.2"].shape == (2, 1)


# --- sweeps, joined runs, and bands -------------------------------------------------------------------------------


def write_sweep(folder: Path, points: Sequence[dict[str, Any]]) -> Path:
    """A sweep with a label and a seed of each point; what has `rounds` = () has not begun."""
    lines = [",".join(["point", "label", "algorithm.batch_size", "seed", *SUMMARY])]
    for number, point in enumerate(points):
        name = f"point-{number:04d}"
        lines.append(
            ",".join(
                [name, point.pop("label"), str(point.get("batch", 1)), str(point.get("seed", 1)), *[""] * len(SUMMARY)]
            )
        )
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
        picture = mf.plot([sweep], "train_loss")
    assert legend(picture) == ["FedAvg", r"\$SSCA_"]
    assert picture.legends[0].get_title().get_text() == "mean and range of 3 seeds"
    (axes,) = picture.axes
    np.testing.assert_allclose(lines(axes)["FedAvg"][1], 10 * (1 + 4 + 9) / 3 * 2.0 ** -np.array(ROUNDS))


@pytest.mark.parametrize("band", ["range", "deviation", "interval", "none"])
def test_bands_are_what_they_are_said_to_be(sweep: Path, band: Any) -> None:
    """Against scipy and numpy, of the values 10, 40, 90 times 2^-round."""
    with pytest.warns(UserWarning, match="point-0006"):
        history = lines_of([sweep])[0]["FedAvg"]
    drawn = curve(history, "round", "train_loss", band)
    values = np.outer([10, 40, 90], 2.0 ** -np.array(ROUNDS))
    mean = values.mean(axis=0)
    interval = scipy.stats.t.interval(0.95, 2, loc=mean, scale=scipy.stats.sem(values, axis=0))
    deviation = values.std(axis=0, ddof=1)
    low, high = {
        "range": (values.min(axis=0), values.max(axis=0)), "deviation": (mean - deviation, mean + deviation),
        "interval": interval, "none": (mean, mean),
    }[band]  # fmt: skip
    np.testing.assert_allclose(drawn.T, [ROUNDS, mean, low, high])
    alone = curve(history[history["seed"] == 1], "round", "train_loss", band)
    np.testing.assert_array_equal(alone["low"], alone["high"])


# --- the command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "code", "message"), [
    ([], 2, "give folders of runs or sweeps, or of data"),
    (["run"], 2, "give --out FIGURE"),
    (["run", "--out", "f.png", "--relative-to", "0"], 2, "relative-to"),
    (["run", "--out", "f.png", "--label", "A"], 2, "expected NAME=FOLDER or NAME=FOLDER,FOLDER"),
    (["run", "--out", "f.png", "--label", "=run"], 2, "expected NAME=FOLDER"),
    (["--out", "f.png", "--label", "A=nowhere"], 2, "nowhere: no such folder"),
    (["run", "data", "--out", "f.png"], 2, "data are drawn one folder at a time"),
    (["data", "--out", "f.png", "--y", "train_loss"], 2, "data are drawn one folder at a time"),
    (["run", "--x", "round", "--out", "run/job.toml/f.png"], 3, "run/job.toml/f.png: Not a directory; name a f"),
    (["empty", "--out", "f.png"], 3, "point-0000: nothing was measured yet"),
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


def test_a_matplotlibrc_that_asks_for_tex_changes_no_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it need TeX."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    run = write_run(tmp_path / "a_b")
    ended = CliRunner().invoke(main, ["plot", str(run), "--out", str(tmp_path / "f.svg")])
    assert ended.exit_code == 0 and (tmp_path / "f.svg").exists(), (ended.output, ended.exception)
