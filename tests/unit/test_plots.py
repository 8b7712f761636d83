"""The lines of a figure are those of the runs' histories; a picture of data shows what their clients hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner
from written_files import SUMMARY, History, write_json

import mpifed as mf
from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.plots.curves import curve, lines_of

ROUNDS = np.array([0, 10, 20, 30])
CONSTRAINED = '[[constraint]]\nname = "loss"\nlimit = 0.1\n[[constraint]]\nname = "norm"\nlimit = 9\n'


def write_run(
    run: Path, name: str = "job", seed: int = 1, batch: int = 10, rounds: Sequence[int] = (0, 10, 20, 30),
    scale: float = 1.0, code: int | None = 0, more: str = "", **columns: Any,
) -> Path:  # fmt: skip
    """A loss of `scale` * 2^-round, a second every ten rounds, 100 bytes up and 50 down; `columns` by round."""
    run.mkdir(parents=True)
    algorithm = f'[algorithm]\nname = "fedavg"\nbatch_size = {batch}\n'
    (run / "job.toml").write_text(f'name = "{name}"\nseed = {seed}\n{algorithm}{more}')
    write_json(run / "run.json", {"name": name, "exit": code, "rounds": 30})
    history = History(run)
    for r in rounds:
        row = {"round": r, "elapsed_s": r / 10, "train_loss": scale * 2.0**-r, "test_accuracy": r / 100}
        row |= {"objective": 1 + 2.0**-r, "up_bytes": 100 * r, "down_bytes": 50 * r}
        history.append(row | {column: value(r) for column, value in columns.items()})
    return run


def write_sweep(folder: Path, points: Sequence[dict[str, Any]]) -> Path:
    """A sweep with a label and a seed of each point; what has `rounds` = () has not begun."""
    lines = [",".join(["point", "label", "algorithm.batch_size", "seed", *SUMMARY])]
    for number, point in enumerate(points):
        name, label = f"point-{number:04d}", point.pop("label")
        cells = [name, label, str(point.get("batch", 1)), str(point.get("seed", 1)), *[""] * len(SUMMARY)]
        lines.append(",".join(cells))
        if point.get("rounds", (1,)):
            write_run(folder / name, **point)
    folder.mkdir(exist_ok=True)
    (folder / "sweep.csv").write_text("\n".join(lines) + "\n")
    return folder


def lines(axes: Any) -> dict[str, Any]:
    """By label, [2, points]."""
    return {str(line.get_label()): np.array(line.get_data()) for line in axes.lines}


def legend(picture: Any) -> tuple[list[str], str]:
    (only,) = picture.legends
    return [text.get_text() for text in only.get_texts()], only.get_title().get_text()


def test_one_run_is_one_line_in_every_panel_cut_at_the_second_measured_round(tmp_path: Path) -> None:
    picture = mf.plot([write_run(tmp_path / "run")], x=())
    x, y = [ROUNDS, ROUNDS / 10, ROUNDS * 150], [2.0**-ROUNDS, ROUNDS / 100]
    for number, axes in enumerate(picture.axes):
        np.testing.assert_allclose(lines(axes)["job"], np.stack([x[number % 3], y[number // 3]]))
    assert [axes.get_ylabel() for axes in picture.axes] == ["training loss", "", "", "test accuracy", "", ""]
    assert [axes.get_xlabel() for axes in picture.axes[3:]] == ["round", "training time (s)", "sent, up and down"]
    assert picture.axes[0].get_yscale() == "log" and 0.05 < picture.axes[3].get_ylim()[0] < 0.1


def test_runs_that_differ_in_seed_are_a_mean_and_a_range(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), seed=seed, scale=seed) for seed in (1, 2, 6)]
    again = write_run(tmp_path / "again", seed=6, scale=6)  # a copy counts no seed twice
    picture = mf.plot([*runs, again])
    assert legend(picture) == (["job"], "mean and range of 3 seeds")
    halved = 2.0**-ROUNDS
    np.testing.assert_allclose(lines(picture.axes[0])["job"], np.stack([ROUNDS, 3 * halved]))
    corners: Any = picture.axes[0].collections[0].get_paths()[0].vertices
    for edge in (halved, 6 * halved):
        assert {*zip(ROUNDS, edge, strict=True)} <= {(x, y) for x, y in corners}


def test_other_runs_are_lines_labelled_by_what_sets_them_apart(tmp_path: Path) -> None:
    settings = {"a": {}, "b": {"batch": 100}, "c": {"name": "other", "batch": 20, "epsilon": lambda r: r / 5}}
    picture = mf.plot([write_run(tmp_path / name, **more) for name, more in settings.items()], x=())
    labels = ["job, batch_size = 10", "job, batch_size = 100", "other"]
    assert list(lines(picture.axes[0])) == labels and legend(picture) == (labels, "")
    assert picture.axes[7].get_xlabel().startswith("epsilon")
    np.testing.assert_allclose(lines(picture.axes[3])["other"], [ROUNDS / 5, 2.0**-ROUNDS])
    assert lines(picture.axes[3])[labels[0]].shape == (2, 0)


def test_the_objective_relative_to_the_optimum(tmp_path: Path) -> None:
    relative, _ = mf.plot([write_run(tmp_path / "run")], relative_to=1.0).axes
    np.testing.assert_allclose(lines(relative)["job"], [ROUNDS, 2.0**-ROUNDS])
    assert relative.get_yscale() == "log" and relative.get_ylabel().startswith("objective above the\noptimum")


def test_constraints_are_drawn_against_their_limits(tmp_path: Path) -> None:
    """Of the first the excess is 2^-round; a certificate of one round is no curve."""
    runs = [
        write_run(tmp_path / str(limit), more=CONSTRAINED.replace("0.1", str(limit)), constraint_2=lambda r: 4.0,
                  constraint_1=lambda r, limit=limit: limit + 2.0**-r,
                  kkt_residual=lambda r, limit=limit: 1 / (1 + r) if limit == 0.1 or r == 30 else None)
        for limit in (0.1, 0.2)
    ]  # fmt: skip
    named = {axes.get_ylabel(): lines(axes) for axes in mf.plot(runs).axes}
    assert {"training loss", "KKT residual", "test accuracy"} < {*named}
    (excess,) = (each for label, each in named.items() if label.startswith("largest excess"))
    for label in ("limit = 0.1", "limit = 0.2"):
        np.testing.assert_allclose(excess[label][1], 2.0**-ROUNDS)
    assert named["KKT residual"]["limit = 0.2"].shape == (2, 1)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    points = [
        {"label": label, "seed": seed, "batch": batch, "scale": seed**2 * batch}
        for label, batch in (("FedAvg", 10), ("$SSCA_", 20))
        for seed in (1, 2, 3)
    ]
    return write_sweep(tmp_path / "sweep", points)


def test_a_sweep_is_a_line_for_each_setting_with_its_label(sweep: Path) -> None:
    picture = mf.plot([sweep], "train_loss")
    assert legend(picture) == (["FedAvg", r"\$SSCA_"], "mean and range of 3 seeds")
    np.testing.assert_allclose(lines(picture.axes[0])["FedAvg"][1], 10 * (1 + 4 + 9) / 3 * 2.0**-ROUNDS)


@pytest.mark.parametrize("band", ["range", "deviation", "interval", "none"])
def test_bands_are_what_they_are_said_to_be(sweep: Path, band: Any) -> None:
    """Against scipy and numpy, of the values 10, 40, 90 times 2^-round."""
    history = lines_of([sweep])[0]["FedAvg"]
    values = np.outer([10, 40, 90], 2.0**-ROUNDS)
    mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
    low, high = {
        "range": (values.min(axis=0), values.max(axis=0)), "deviation": (mean - deviation, mean + deviation),
        "interval": scipy.stats.t.interval(0.95, 2, loc=mean, scale=scipy.stats.sem(values, axis=0)),
        "none": (mean, mean),
    }[band]  # fmt: skip
    np.testing.assert_allclose(curve(history, "round", "train_loss", band).T, [ROUNDS, mean, low, high])
    alone = curve(history[history["seed"] == 1], "round", "train_loss", band)
    np.testing.assert_array_equal(alone["low"], alone["high"])


REMARKS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"seed": 1}, {"seed": 2, "rounds": (0, 5, 10)}], "A: drawn up to round 10, the last that all 2 runs have measur"),
    ([{"code": 68}], r"drawn as far as measured, numerical trouble: .* \(exit 68\): point-0000"),
    ([{}, {"rounds": ()}], "left out, since nothing was measured yet: point-0001"),
]


@pytest.mark.parametrize(("points", "said"), REMARKS)
def test_what_a_figure_lacks_is_said(tmp_path: Path, points: list[dict[str, Any]], said: str) -> None:
    folder = write_sweep(tmp_path / "s", [{"label": "A", **point} for point in points])
    with pytest.warns(UserWarning, match=said):
        mf.plot(folder)
    assert re.search(said, CliRunner().invoke(main, ["plot", str(folder), "--out", str(tmp_path / "f.png")]).output)


@pytest.mark.parametrize(("arguments", "code", "message"), [
    ([], 2, "give folders of runs or sweeps, or of data"),
    (["run"], 2, "give --out FIGURE"),
    (["run", "--out", "f.png", "--relative-to", "0"], 2, "relative-to"),
    (["run", "--out", "f.png", "--label", "A"], 2, "expected NAME=FOLDER or NAME=FOLDER,FOLDER"),
    (["--out", "f.png", "--label", "A=run", "--label", "A=empty"], 2, "--label A: twice"),
    (["--out", "f.png", "--label", "A=nowhere"], 2, "nowhere: no such folder"),
    (["run", "data", "--out", "f.png"], 2, "data are drawn one folder at a time"),
    (["run", "--x", "rond", "--out", "f.png"], 2, "no run has measured 'rond'; did you mean .round."),
    (["run", "--x", "round", "--out", "run/job.toml/f.png"], 3, "run/job.toml/f.png: Not a directory; name a f"),
    (["run", "--out", "f.abc"], 2, "f.abc: a figure cannot be drawn as '.abc'"),
    (["empty", "--out", "f.png"], 2, "point-0000: not run yet"),
])  # fmt: skip
def test_the_command_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"))
    Path("data").mkdir()
    Path("data/federation.h5").touch()
    write_sweep(Path("empty"), [{"label": "late", "rounds": ()}])
    ended = CliRunner().invoke(main, ["plot", *arguments])
    assert ended.exit_code == code and re.search(message, " ".join(ended.output.split())), ended.output


@pytest.mark.parametrize(("name", "start"), [("f.png", b"\x89PNG"), ("f.pdf", b"%PDF"), ("f.SVG", b"<?xml")])
def test_the_suffix_chooses_the_format_and_no_setting_of_the_user_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, start: bytes
) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)  # which would need TeX
    run, figure = str(write_run(tmp_path / "a_b")), str(tmp_path / name)
    assert CliRunner().invoke(main, ["plot", run, "--x", "round", "--y", "train_loss", "--out", figure]).exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(start)


# --- data -----------------------------------------------------------------------------------------------------------


def of_clients(labels: Any, out: Path | None = None) -> mf.FederatedDataset:
    rng = np.random.default_rng(0)
    each = {f"${name}": (rng.normal(size=(len(y), 2)), np.array(y)) for name, y in zip("abc", labels, strict=False)}
    return mf.FederatedDataset.from_clients(each, out=out)


def test_the_rows_of_clients_and_their_classes(tmp_path: Path) -> None:
    data = of_clients(([0, 0, 0, 1, 1, 1, 1], [2], [0, 2, 2]), tmp_path / "data")
    rows, classes, *_ = data.plot().axes
    np.testing.assert_array_equal(rows.patches[0].get_data()[0], [7, 1, 3])  # type: ignore[attr-defined]
    assert rows.get_title(loc="left") == "11 rows of 3 clients, 1 to 7 each"
    np.testing.assert_array_equal(classes.images[0].get_array(), [[3, 0, 1], [4, 0, 0], [0, 1, 2]])
    assert [tick.get_text() for tick in classes.get_xticklabels()] == [r"\$a", r"\$b", r"\$c"]
    ended = CliRunner().invoke(main, ["plot", str(data.path), "--out", str(tmp_path / "f.png"), "--size", "column"])
    assert ended.exit_code == 0 and (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG"), ended.output


def test_targets_have_ranges_quartiles_and_medians() -> None:
    targets = ([0.5, 1.5, 9.5, 3.25], [-1.5, 2.5])
    picture = of_clients(targets).plot("column")
    drawn = {tuple(line.get_ydata()[:2]) for line in picture.axes[1].lines}
    for values in targets:
        least, low, median, high, most = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
        assert {(low, least), (high, most), (median, median)} <= drawn and picture.get_figwidth() == 3.4


def test_of_clients_with_other_columns_these_are_counted() -> None:
    rng = np.random.default_rng(0)
    X, names = rng.normal(size=(8, 3)), ["age", "$height$", "income"]
    data = mf.FederatedDataset.from_arrays(X, rng.normal(size=8), clients=2, split="columns", names=names)
    drawn = [axes.patches[0].get_data()[0].tolist() for axes in data.plot().axes]  # type: ignore[attr-defined]
    assert drawn == [[8, 8], [2, 1]]
    with pytest.raises(UsageError, match="size = 'a4'"):
        data.plot("a4")  # type: ignore[arg-type]
