"""The lines of a figure are those of the runs' histories; a picture of data shows what their clients hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from written_runs import JOB, KIB, Rows, mpifed, write_points, write_run

import mpifed as mf
from mpifed.core.errors import UsageError
from mpifed.plots.curves import curve, lines_of

ROUNDS = np.array([0, 10, 20, 30])
HALVED = 2.0**-ROUNDS


def rows(scale: float = 1.0, last: int = 30, **columns: Any) -> Rows:
    """A loss of `scale` * 2^-round, a second and 2 KiB a round; `columns` by round."""
    return [
        {"round": r, "train_loss": scale * 2.0**-r, "test_accuracy": r / 100, "objective": 1 + 2.0**-r}
        | {name: value(r) for name, value in columns.items()}
        for r in range(0, last + 1, 10)
    ]


def labelled(folder: Path, runs: list[Any]) -> Path:
    """A sweep of two methods, one of them by its sign, over seeds."""
    batches = {"FedAvg": 10, "$SSCA_": 20}
    methods = [{"label": label, "algorithm": JOB["algorithm"] | {"batch_size": b}} for label, b in batches.items()]
    seeds = max(1, len(runs) // 2)
    return write_points(folder, {"methods": methods[: len(runs)], "seeds": seeds}, runs)


def lines(axes: Any) -> dict[str, Any]:
    """By label, [2, points]."""
    return {str(line.get_label()): np.array(line.get_data()) for line in axes.lines}


def legend(picture: Any) -> tuple[list[str], str]:
    (only,) = picture.legends
    return [text.get_text() for text in only.get_texts()], only.get_title().get_text()


def test_one_run_is_one_line_in_every_panel_cut_at_the_second_measured_round(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows())
    picture = mf.plot([run], x=())
    x, y = [ROUNDS, ROUNDS, ROUNDS * 2 * KIB], [HALVED, ROUNDS / 100]
    for number, axes in enumerate(picture.axes):
        np.testing.assert_allclose(lines(axes)["made"], np.stack([x[number % 3], y[number // 3]]))
    assert [axes.get_ylabel() for axes in picture.axes] == ["training loss", "", "", "test accuracy", "", ""]
    assert [axes.get_xlabel() for axes in picture.axes[3:]] == ["round", "training time (s)", "sent, up and down"]
    assert picture.axes[0].get_yscale() == "log" and 0.05 < picture.axes[3].get_ylim()[0] < 0.1
    relative, _ = mf.plot([run], relative_to=1.0).axes
    np.testing.assert_allclose(lines(relative)["made"], [ROUNDS, HALVED])
    assert relative.get_yscale() == "log" and relative.get_ylabel().startswith("objective above the\noptimum")


def test_seeds_are_a_mean_and_a_range_and_other_runs_lines_with_their_names(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), rows(seed), job=JOB | {"seed": seed}) for seed in (1, 2, 6)]
    again = write_run(tmp_path / "again", rows(6), job=JOB | {"seed": 6})  # a copy counts no seed twice
    picture = mf.plot([*runs, again])
    assert legend(picture) == (["made"], "mean and range of 3 seeds")
    np.testing.assert_allclose(lines(picture.axes[0])["made"], np.stack([ROUNDS, 3 * HALVED]))
    corners: Any = picture.axes[0].collections[0].get_paths()[0].vertices
    for edge in (HALVED, 6 * HALVED):
        assert {*zip(ROUNDS, edge, strict=True)} <= {(x, y) for x, y in corners}
    large, other = (JOB | {"algorithm": JOB["algorithm"] | {"batch_size": size}} for size in (100, 20))
    others = [
        write_run(tmp_path / "large", rows(), job=large),
        write_run(tmp_path / "other", rows(epsilon=lambda r: r / 5), job=other | {"name": "other"}),
    ]
    picture = mf.plot([runs[0], *others], x=())
    labels = ["made, batch_size = 4", "made, batch_size = 100", "other"]
    assert list(lines(picture.axes[0])) == labels and legend(picture) == (labels, "")
    assert picture.axes[7].get_xlabel().startswith("epsilon")
    np.testing.assert_allclose(lines(picture.axes[3])["other"], [ROUNDS / 5, HALVED])
    assert lines(picture.axes[3])[labels[0]].shape == (2, 0)


def test_constraints_are_drawn_against_their_limits(tmp_path: Path) -> None:
    """Of the first the excess is 2^-round; a certificate of one round is no curve."""
    runs = [
        write_run(
            tmp_path / str(limit),
            rows(constraint_1=lambda r, limit=limit: limit + 2.0**-r, constraint_2=lambda r: 4.0,
                 kkt_residual=lambda r, limit=limit: 1 / (1 + r) if limit == 0.1 or r == 30 else None),
            job=JOB | {"constraint": [{"name": "loss", "limit": limit}, {"name": "norm", "limit": 9}]},
        )
        for limit in (0.1, 0.2)
    ]  # fmt: skip
    named = {axes.get_ylabel(): lines(axes) for axes in mf.plot(runs).axes}
    assert {"training loss", "KKT residual", "test accuracy"} < {*named}
    (excess,) = (each for label, each in named.items() if label.startswith("largest excess"))
    for label in ("limit = 0.1", "limit = 0.2"):
        np.testing.assert_allclose(excess[label][1], HALVED)
    assert named["KKT residual"]["limit = 0.2"].shape == (2, 1)


@pytest.mark.parametrize("band", ["range", "deviation", "interval", "none"])
def test_a_sweep_has_its_labels_and_bands_are_what_they_are_said_to_be(tmp_path: Path, band: Any) -> None:
    """Against scipy and numpy, of the values 10, 40, 90 times 2^-round."""
    sweep = labelled(tmp_path / "sweep", [rows(scale) for scale in (10, 40, 90, 20, 80, 180)])
    assert legend(mf.plot([sweep], "train_loss")) == (["FedAvg", r"\$SSCA_"], "mean and range of 3 seeds")
    history = lines_of([sweep])[0]["FedAvg"]
    values = np.outer([10, 40, 90], HALVED)
    mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
    low, high = {
        "range": (values.min(axis=0), values.max(axis=0)), "deviation": (mean - deviation, mean + deviation),
        "interval": scipy.stats.t.interval(0.95, 2, loc=mean, scale=scipy.stats.sem(values, axis=0)),
        "none": (mean, mean),
    }[band]  # fmt: skip
    np.testing.assert_allclose(curve(history, "round", "train_loss", band).T, [ROUNDS, mean, low, high])
    alone = curve(history[history["seed"] == 1], "round", "train_loss", band)
    np.testing.assert_array_equal(alone["low"], alone["high"])


REMARKS: list[tuple[list[Any], str]] = [
    ([rows(), rows(last=10), rows(), rows()], "FedAvg: drawn up to round 10, the last that all 2 runs have measured"),
    ([rows(), None], "left out, since nothing was measured yet: point-0001"),
]


@pytest.mark.parametrize(("runs", "said"), REMARKS)
def test_what_a_figure_lacks_is_said(tmp_path: Path, runs: list[Any], said: str) -> None:
    folder = labelled(tmp_path / "s", runs)
    with pytest.warns(UserWarning, match=said):
        mf.plot(folder)
    assert said in mpifed("plot", folder, "--out", tmp_path / "f.png").output


@pytest.mark.parametrize(("arguments", "code", "message"), [
    ("", 2, "give folders of runs or sweeps, or of data"), ("run", 2, "give --out FIGURE"),
    ("run --out f.png --relative-to 0", 2, "relative-to"),
    ("run --out f.png --label A", 2, "expected NAME=FOLDER or NAME=FOLDER,FOLDER"),
    ("--out f.png --label A=run --label A=empty", 2, "--label A: twice"),
    ("--out f.png --label A=nowhere", 2, "nowhere: no such folder"),
    ("run data --out f.png", 2, "data are drawn one folder at a time"),
    ("run --x rond --out f.png", 2, "no run has measured 'rond'; did you mean .round."),
    ("run --x round --out run/job.toml/f.png", 3, "run/job.toml/f.png: Not a directory; name a f"),
    ("run --out f.abc", 2, "f.abc: a figure cannot be drawn as '.abc'"),
    ("empty --out f.png", 2, "point-0000: not run yet"),
])  # fmt: skip
def test_the_command_refuses(here: Path, arguments: str, code: int, message: str) -> None:
    write_run(Path("run"), rows())
    Path("data").mkdir()
    Path("data/federation.h5").touch()
    labelled(Path("empty"), [None])
    ended = mpifed("plot", *arguments.split())
    assert ended.exit_code == code and re.search(message, " ".join(ended.output.split())), ended.output


@pytest.mark.parametrize(("name", "start"), [("f.png", b"\x89PNG"), ("f.pdf", b"%PDF"), ("f.SVG", b"<?xml")])
def test_the_suffix_chooses_the_format_and_no_setting_of_the_user_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, start: bytes
) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)  # which would need TeX
    run = write_run(tmp_path / "a_b", rows())
    assert mpifed("plot", run, "--x", "round", "--y", "train_loss", "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(start)


# --- data -----------------------------------------------------------------------------------------------------------


def of_clients(labels: Any, out: Path | None = None) -> mf.FederatedDataset:
    rng = np.random.default_rng(0)
    each = {f"${name}": (rng.normal(size=(len(y), 2)), np.array(y)) for name, y in zip("abc", labels, strict=False)}
    return mf.FederatedDataset.from_clients(each, out=out)


def test_data_are_rows_of_clients_and_their_classes_quartiles_or_columns(tmp_path: Path) -> None:
    data = of_clients(([0, 0, 0, 1, 1, 1, 1], [2], [0, 2, 2]), tmp_path / "data")
    held, classes, *_ = data.plot().axes
    np.testing.assert_array_equal(held.patches[0].get_data()[0], [7, 1, 3])  # type: ignore[attr-defined]
    assert held.get_title(loc="left") == "11 rows of 3 clients, 1 to 7 each"
    np.testing.assert_array_equal(classes.images[0].get_array(), [[3, 0, 1], [4, 0, 0], [0, 1, 2]])
    assert [tick.get_text() for tick in classes.get_xticklabels()] == [r"\$a", r"\$b", r"\$c"]
    ended = mpifed("plot", data.path, "--out", tmp_path / "f.png", "--size", "column")
    assert ended.exit_code == 0 and (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG"), ended.output
    targets = ([0.5, 1.5, 9.5, 3.25], [-1.5, 2.5])
    picture = of_clients(targets).plot("column")
    drawn = {tuple(line.get_ydata()[:2]) for line in picture.axes[1].lines}
    for values in targets:
        least, low, median, high, most = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
        assert {(low, least), (high, most), (median, median)} <= drawn and picture.get_figwidth() == 3.4
    rng, names = np.random.default_rng(0), ["age", "$height$", "income"]
    X, y = rng.normal(size=(8, 3)), rng.normal(size=8)
    columns = mf.FederatedDataset.from_arrays(X, y, clients=2, split="columns", names=names)
    held, counted = (axes.patches[0].get_data()[0].tolist() for axes in columns.plot().axes)  # type: ignore[attr-defined]
    assert (held, counted) == ([8, 8], [2, 1])
    with pytest.raises(UsageError, match="size = 'a4'"):
        columns.plot("a4")  # type: ignore[arg-type]
