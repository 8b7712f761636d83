"""The lines of a figure are those of the runs' histories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from mpifed.cli import main, plot
from mpifed.core.errors import DataError, UsageError
from mpifed.files.history import History
from mpifed.files.json_file import write_json
from mpifed.plots import HORIZONTAL, convergence, figure, terminal

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
) -> Path:
    """A run directory with a loss of `scale` * 2^-round, a second every ten rounds, and 100 bytes up and 50 down.

    A private one has an epsilon of a fifth of the rounds.
    """
    run.mkdir()
    algorithm = f'[algorithm]\nname = "fedavg"\nbatch_size = {batch}\n'
    (run / "job.toml").write_text(f'name = "{name}"\nseed = {seed}\n{algorithm}')
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
    (axes, _) = figure(runs, x=["round"]).axes
    halved = 2.0 ** -np.array(ROUNDS)
    np.testing.assert_allclose(lines(axes)["job (mean and range of 3 seeds)"], np.stack([ROUNDS, 3 * halved]))
    (band,) = axes.collections
    low, high = 1 * halved, 6 * halved
    corners: Any = band.get_paths()[0].vertices
    for edge in (low, high):
        assert {*zip(ROUNDS, edge, strict=True)} <= {(x, y) for x, y in corners}


def test_seeds_are_compared_at_the_rounds_that_all_have_measured(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "1", seed=1), write_run(tmp_path / "2", seed=2, rounds=(0, 5, 10))]
    (axes, _) = figure(runs, x=["elapsed_s"]).axes
    np.testing.assert_allclose(lines(axes)["job (mean and range of 2 seeds)"][0], [0, 1])


def test_other_runs_are_lines_labelled_by_what_sets_them_apart(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", batch=10),
        write_run(tmp_path / "b", batch=100),
        write_run(tmp_path / "c", name="other"),
    ]
    picture = figure(runs)
    labels = ["job, batch_size = 10", "job, batch_size = 100", "other"]
    assert list(lines(picture.axes[0])) == labels
    assert [text.get_text() for text in picture.legends[0].get_texts()] == labels
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
    convergence([write_run(tmp_path / "run")], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"figure\.text: .*'\.text'.*\.pdf.*\.svg"):
        convergence([write_run(tmp_path / "run")], tmp_path / "figure.text")


def test_what_is_not_a_run_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"job\.toml: cannot be read"):
        figure([tmp_path])
    with pytest.raises(DataError, match="nothing was measured"):
        figure([write_run(tmp_path / "run", unknown=["train_loss", "test_accuracy"])])


def test_the_terminal_shows_the_loss_in_eighty_columns(tmp_path: Path) -> None:
    pytest.importorskip("plotext")
    picture = terminal(write_run(tmp_path / "run")).splitlines()
    assert "job: training loss" in picture[0] and picture[-1].strip() == "round"
    assert max(map(len, picture)) <= 80 and "\x1b" not in "".join(picture)
    drawn = [line for line in picture if any("\u2800" < character <= "\u28ff" for character in line)]
    assert len(drawn) > 8, picture


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
    assert {"job, limit = 0.1", "job, limit = 0.2"} < excess.keys()
    for label in ("job, limit = 0.1", "job, limit = 0.2"):
        np.testing.assert_allclose(excess[label][1], 2.0 ** -np.array(ROUNDS))
    np.testing.assert_allclose(residual["job, limit = 0.1"][1], 1 / (1 + np.array(ROUNDS)))
    assert residual["job, limit = 0.2"].shape == (2, 1)


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
    with pytest.raises(DataError, match="nothing was measured"):
        figure(runs[1:], x=["simulated_s"])


def test_the_objective_relative_to_the_optimum(tmp_path: Path) -> None:
    run = write_certified(tmp_path / "run", "a", 0.2)
    relative, gap = figure([run], ["round"], relative_to=0.2).axes
    assert relative.get_ylabel() == "objective above the optimum, relative" and relative.get_yscale() == "log"
    np.testing.assert_allclose(lines(relative)["a"], [[0, 1, 2], [1, 0.1, 0.01]])  # below the optimum there is no log
    assert gap.get_ylabel() == "duality gap"
    np.testing.assert_allclose(lines(gap)["a"][1], [1, 0.25, 0.0625, 0.015625])
    with pytest.raises(DataError, match="no column objective"):
        figure([write_run(tmp_path / "plain")], ["round"], relative_to=0.2)


def test_what_is_minimized_is_drawn(tmp_path: Path) -> None:
    """Beside the loss, where it is something else."""
    run = write_certified(tmp_path / "run", "a", 100.0)
    assert "objective" not in [axes.get_ylabel() for axes in figure([run], ["round"]).axes]
    with open(run / "job.toml", "a") as file:
        file.write('[minimize]\nname = "norm"\n')
    loss, objective, _ = figure([run], ["round"]).axes
    assert (loss.get_ylabel(), objective.get_ylabel()) == ("training loss", "objective")
    np.testing.assert_allclose(lines(objective)["a"][1], [200, 110, 101, 100])
    assert "objective" not in [axes.get_ylabel() for axes in figure([run], ["round"], relative_to=99.0).axes]


def test_bytes_are_in_the_units_of_tables(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=range(0, 200_001, 50_000))  # 150 bytes a round
    (axes,) = [one for one in figure([run], ["bytes"]).axes if one.get_xlabel()]
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert shown[0] == "0 MiB" and "16 MiB" in shown
    assert axes.get_xticks()[shown.index("16 MiB")] == 16 * 2**20


def test_the_command_draws_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (option,) = [one for one in plot.params if one.name == "across"]
    assert option.type.choices == tuple(HORIZONTAL)  # type: ignore[attr-defined]
    run, out, drawn = write_certified(tmp_path / "run", "a", 0.2), tmp_path / "f.png", []
    monkeypatch.setattr("mpifed.plots.figure", lambda *given: drawn.append(given) or figure(*given))
    arguments = ["plot", str(run), "--out", str(out), "--x", "round", "--x", "simulated_s", "--relative-to", "0.2"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert drawn == [((run,), ("round", "simulated_s"), 0.2)] and out.exists()
    assert CliRunner().invoke(main, ["plot", str(run), "--terminal", "--x", "round"]).exit_code == 2
    assert CliRunner().invoke(main, ["plot", str(run), "--out", str(out), "--relative-to", "0"]).exit_code == 2
