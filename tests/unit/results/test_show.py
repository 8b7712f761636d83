"""How runs and sweeps are told: tables, the best setting, constraints; on folders written here."""

from __future__ import annotations

import csv
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner
from written_files import FIRST, LEDGER, SUMMARY, write_json

from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.job.job import read_table
from mpifed.results.best import select
from mpifed.results.compare import compare_text
from mpifed.results.points import read_points, settings_of
from mpifed.results.show import run_summary, run_text
from mpifed.results.text import toml_text

Settings = dict[str, Any]


def mpifed(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def write_run(folder: Path, code: int | None = 0, job: Settings | None = None, **columns: float | None) -> Path:
    """The files of a run whose last measured row has these columns."""
    folder.mkdir(parents=True)
    (folder / "job.toml").write_text(tomli_w.dumps(job or {}))
    row = {**dict.fromkeys(FIRST), "round": 9, **columns}
    row = {name: row.pop(name) for name in list(row) if name not in LEDGER} | {name: row.get(name) for name in LEDGER}
    cells = ["" if value is None else repr(value) for value in row.values()]
    (folder / "history.csv").write_text(f"{','.join(row)}\n{','.join(cells)}\n")
    write_json(
        folder / "run.json",
        {"exit": code, "rounds": 9, "elapsed_s": 1.5, "up_bytes": 1024, "down_bytes": 1024, "seconds_per_round": 0.1},
    )
    return folder


def write_sweep(folder: Path, points: list[tuple[Settings, Settings | None]]) -> Path:
    """A sweep of (settings, what `write_run` takes; None: not run)."""
    folder.mkdir()
    with open(folder / "sweep.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["point", *points[0][0], *SUMMARY])
        for k, (settings, ran) in enumerate(points):
            rows.writerow([f"point-{k:04d}", *settings.values(), *[""] * len(SUMMARY)])
            if ran is not None:
                write_run(folder / f"point-{k:04d}", **ran)
    return folder


def grid(key: str, values: dict[Any, list[dict[str, Any] | None]]) -> list[tuple[Settings, Settings | None]]:
    """Points of one axis and so many seeds."""
    return [({key: eval(v), "seed": s}, ran) for v, runs in values.items() for s, ran in enumerate(runs, 1)]


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Steps [a, alpha], two seeds each: the third is the best on the mean, the second has the single best seed."""
    values = {
        "[0.5, 0.0]": [{"objective": 0.9}, {"objective": 0.7}],
        "[1.0, 0.0]": [{"objective": 0.1}, {"objective": 0.8}],
        "[2.0, 0.3]": [{"objective": 0.3, "test_accuracy": 0.9}, {"objective": 0.5, "test_accuracy": 0.8}],
        "[2.0, 0.0]": [{"objective": 0.2}, {"code": 4}],
        "[4.0, 0.0]": [{"code": 4}, {"code": 75, "objective": 0.01}],
    }
    return write_sweep(tmp_path / "sweep", grid("algorithm.step", values))


def test_one_line_for_each_setting(steps: Path) -> None:
    header, *lines = compare_text(steps).splitlines()
    assert header.split() == [
        "points", "algorithm.step", "seeds", "rounds", "objective", "test_accuracy", "elapsed_s", "bytes"
    ]  # fmt: skip
    deviation = statistics.stdev([0.9, 0.7])
    assert lines[0].split("  ")[1] == "[0.5, 0.0]"
    assert f"0.8 +- {deviation:.2g}" in lines[0]
    assert "2.0 KiB" in lines[0]
    assert lines[0].startswith("point-0000 to point-0001  ")
    assert "85.00% +- 7.07%" in lines[2]
    assert " 1 of 2 " in lines[3]
    assert " 0.2 " in lines[3]
    assert lines[4].endswith(" 0 of 2")
    assert lines[5:] == [
        "+-: standard deviation over seeds",
        "Not in the means:",
        "  numerical trouble: it would fail the same way again (exit 4): point-0007 to point-0008",
        "  interrupted; go on with --resume (exit 75): point-0009",
    ]


def test_a_column_that_some_seeds_lack_says_of_how_many_it_is(tmp_path: Path) -> None:
    values = {"1": [{"train_loss": 0.5, "kkt_residual": 0.25}, {"train_loss": 0.5}]}
    shown = compare_text(write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values)))
    assert "0.25 (1 of 2)" in shown
    assert "algorithm.batch_size" not in shown  # it does not vary
    assert "+-" not in shown  # nor does anything else


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    values: dict[Any, Any] = {"1": [{"train_loss": 0.5, "code": 5}, {"code": None}, None, {"code": 2}], "2": [None] * 4}
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))
    (folder / "point-0007").mkdir()
    assert compare_text(folder).splitlines()[3:] == [
        "Included in the means:",
        "  a limit is not met, or a certificate asked for not reached (exit 5): point-0000",
        "Not in the means:",
        "  killed or still running: point-0001",
        "  not run: point-0002, point-0004 to point-0006",
        "  invalid job or command line (exit 2): point-0003",
        "  ended before the first round: point-0007",
    ]


def test_a_pipe_gets_every_digit(tmp_path: Path) -> None:
    axes = {f"my_module.a_setting_with_a_long_name_{k}": k for k in range(30)}
    points = [({**axes, "algorithm.batch_size": batch}, {"train_loss": 1 / 3}) for batch in (123456789, 2)]
    for settings, _ in points:
        settings.update({key: value * settings["algorithm.batch_size"] for key, value in axes.items()})
    folder = write_sweep(tmp_path / "sweep", points)
    ended = subprocess.run(
        [sys.executable, "-m", "mpifed", "compare", folder], capture_output=True, text=True, check=True
    )
    lines = ended.stdout.splitlines()
    assert all(len(line) <= 120 for line in lines)
    assert lines[1].startswith("point-0000 ") and lines[2].startswith("point-0001 ")
    assert "train_loss 0.333333" in lines[3]
    below = lines.index("my_module.a_setting_with_a_long_name_29:")  # what does not fit beside the rest
    assert lines[below + 1 : below + 3] == [f"  point-0000: {29 * 123456789}", "  point-0001: 58"]
    assert not any("\u2500" <= letter <= "\u257f" for letter in ended.stdout)


def test_rows_become_taller_before_a_terminal_is_too_narrow(steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for screen, height in ((120, 2 + 5), (110, 2 + 2 * 5)):
        monkeypatch.setenv("COLUMNS", str(screen))
        shown = re.sub("\x1b\\[[0-9;]*m", "", compare_text(steps, terminal=True))  # without the colours
        lines = shown[: shown.index("+-: standard")].strip().splitlines()
        assert max(map(len, lines)) <= screen
        assert len(lines) == height
        assert "\u2500" in lines[1]
        assert "[0.5, 0.0]" in shown  # and not taken for markup


def test_the_list_of_points(steps: Path) -> None:
    listed = json.loads(mpifed("compare", steps, "--json").output)["runs"]
    assert len(listed) == 10
    assert list(listed[4]) == ["point", "label", "settings", *SUMMARY, "warnings"]
    assert listed[4]["settings"] == {"algorithm.step": [2.0, 0.3], "seed": 1}


def test_settings_keep_their_kinds(tmp_path: Path) -> None:
    settings = {
        "algorithm.start": "exact", "server.dedicated": True, "data": {"path": "a b", "block": 3},
        "algorithm.step": [1, 0.5], "model.l2": 1e-05,
    }  # fmt: skip
    (point,) = read_points(write_sweep(tmp_path / "sweep", [(settings, None)]))
    assert point.settings == settings
    assert [type(value) for value in point.settings.values()] == [str, bool, dict, list, float]


# --- the best ----------------------------------------------------------------------------------------------------


def test_the_best_setting(steps: Path) -> None:
    found = json.loads(mpifed("compare", steps, "--select", "best", "--json").output)
    assert found == select(steps)
    assert list(found) == ["settings", "points", "mean", "by", "ties", "edges", "warnings"]
    assert found["settings"] == {"algorithm.step": [2.0, 0.3]}
    assert found["points"] == ["point-0004", "point-0005"]
    assert found["mean"]["objective"] == pytest.approx(0.4)
    assert found["edges"] == [
        "algorithm.step = [2.0, 0.3] is at the edge of its grid: widen it (component 2: 0.3 is the largest)"
    ]


def test_the_best_setting_for_a_person(steps: Path) -> None:
    shown = mpifed("compare", steps, "--select", "best").output
    assert "--set 'algorithm.step=[2.0, 0.3]'\n" in shown
    assert "least objective" in shown
    assert f"{'objective':30} 0.4 +- {statistics.stdev([0.3, 0.5]):.2g}\n" in shown
    assert "at the edge of its grid: widen it" in shown
    assert "failed numerically (exit 4): point-0007 to point-0008\n" in shown
    assert "have not finished: point-0009\n" in shown


def test_by_another_column(steps: Path) -> None:
    assert select(steps, by="objective", maximize=True)["settings"] == {"algorithm.step": [0.5, 0.0]}
    assert select(steps, by="test_accuracy")["settings"] == {"algorithm.step": [2.0, 0.3]}
    shown = mpifed("compare", steps, "--select", "best", "--by", "objective", "--max").output
    assert "largest objective" in shown
    assert "component 1: 0.5 is the smallest; component 2: 0.0 is the smallest" in shown


def test_an_accuracy_is_maximized(tmp_path: Path) -> None:
    values = {str(k): [{"test_accuracy": a}] for k, a in enumerate((0.5, 0.9, 0.7))}
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))
    assert select(folder, by="test_accuracy")["settings"] == {"algorithm.batch_size": 1}
    assert select(folder, by="test_accuracy")["edges"] == []
    assert select(folder, by="test_accuracy", maximize=False)["settings"] == {"algorithm.batch_size": 0}


@pytest.mark.parametrize(
    ("values", "hit"),
    [
        (["1", "2", "10"], None),  # in order of numbers, not of text: 2 lies inside
        (["2", "1"], "2 is the largest"),
        (["0.1", "1", "2"], None),
        (["2"], None),
        (["True", "2"], None),
        (["[2, 5]", "[1, 5]", "[3, 5]"], None),
        (["[2, 5]", "[3, 7]"], "component 1: 2 is the smallest; component 2: 5 is the smallest"),
        (["[2, 5]", "[3]"], None),
        (["[2, 5]", "3"], None),
        (['"a"', '"b"'], None),
    ],
)
def test_edges(tmp_path: Path, values: list[str], hit: str | None) -> None:
    best = "1" if values[0] == "0.1" else next((v for v in values if "2" in v and "0" not in v), values[0])
    runs: dict[Any, Any] = {value: [{"objective": float(value != best)}] for value in values}
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.step", runs))
    said = f"algorithm.step = {best} is at the edge of its grid: widen it ({hit})"
    assert select(folder)["edges"] == ([said] if hit else [])


def constrained(objective: float, *values: float) -> dict[str, Any]:
    job = {"constraint": [{"name": "loss", "limit": 0.13}, {"name": "loss", "limit": 0.2}][: len(values)]}
    excess = [max(v - one["limit"], 0) / one["limit"] for v, one in zip(values, job["constraint"], strict=True)]
    columns = {f"constraint_{m}": v for m, v in enumerate(values, 1)}
    return {"job": job, "objective": objective, **columns, "feasibility": max(excess)}


def test_with_constraints_the_best_meets_its_limits(tmp_path: Path) -> None:
    values = {
        "1": [constrained(1.0, 0.15, 0.1), constrained(1.0, 0.12, 0.1)],  # not on every seed
        "2": [constrained(3.0, 0.13, 0.2), constrained(3.0, 0.12, 0.1)],
        "3": [constrained(2.0, 0.1, 0.1), constrained(5.0, 0.1, 0.1)],
        "4": [constrained(0.1, 0.1, 0.21), constrained(0.1, 0.12, 0.1)],
    }
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))
    assert select(folder)["settings"] == {"algorithm.batch_size": 2}
    assert select(folder)["mean"]["constraint_1"] == pytest.approx(0.125)
    assert select(folder, maximize=True)["settings"] == {"algorithm.batch_size": 3}  # of those that meet them
    assert select(folder, by="objective")["settings"] == {"algorithm.batch_size": 4}
    header, *lines = compare_text(folder).splitlines()
    assert header.split()[4:6] == ["constraint_1", "constraint_2"]
    met = header.index("limits met")
    assert [line[met : met + 10].strip() for line in lines[:4]] == ["1 of 2", "2 of 2", "2 of 2", "1 of 2"]


def test_without_feasible_settings_the_least_infeasible_is_the_best(tmp_path: Path) -> None:
    values = {"1": [constrained(1.0, 0.2, 0.21)], "2": [constrained(9.0, 0.14, 0.1)], "3": [constrained(0.0, 0.9, 0.1)]}
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))
    found = select(folder)
    assert found["settings"] == {"algorithm.batch_size": 2}
    assert found["mean"]["feasibility"] == pytest.approx(0.01 / 0.13)
    shown = mpifed("compare", folder, "--select", "best").output
    assert "least feasibility, then least objective" in shown
    assert f"{'limits met':30} 0 of 1" in shown


def test_limits_that_vary(tmp_path: Path) -> None:
    """Limits are those of each point's own job."""
    points = []
    for limit, value in ((0.1, 0.12), (0.3, 0.2)):
        ran = constrained(1.0, value)
        ran["job"]["constraint"][0]["limit"] = limit
        ran["feasibility"] = max(value - limit, 0) / limit
        points.append(({"constraint": ran["job"]["constraint"]}, ran))
    found = select(write_sweep(tmp_path / "sweep", points))
    assert found["settings"] == {"constraint": [{"name": "loss", "limit": 0.3}]}
    assert found["edges"] == []


def test_a_number_that_is_not_finite_is_infinitely_bad(tmp_path: Path) -> None:
    values = {"1": [{"train_loss": float("nan")}, {"train_loss": 0.1}], "2": [{"train_loss": 0.5}, {"train_loss": 0.5}]}
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))
    assert select(folder)["settings"] == {"algorithm.batch_size": 2}
    assert select(folder, by="train_loss", maximize=True)["settings"] == {"algorithm.batch_size": 2}


def test_what_the_last_model_has_not_is_not_that_of_drawn_rows(tmp_path: Path) -> None:
    """The history's last row is of some rows, by which the limit was not met; run.json is of all, by which it is."""
    job = {"constraint": [{"name": "loss", "limit": 0.5}]}
    drawn = {"constraint_1": 0.9, "margin_1": 0.1, "feasible_direction": 0.01, "duality_gap": 0.25, "feasibility": 0.8}
    run = write_run(tmp_path / "run", job=job, objective=1.0, **drawn)
    assert "the limits contradict each other" in run_text(run)
    told = json.loads((run / "run.json").read_text())
    late = {"constraint_1": 0.5, "margin_1": 0.0, "feasible_direction": None, "duality_gap": None, "feasibility": 0.0}
    write_json(run / "run.json", told | late)
    text = run_text(run)
    assert "0.5, limit 0.5: met" in text
    assert "contradict" not in text and "duality gap" not in text
    assert run_summary(run)["duality_gap"] is None and run_summary(run)["constraint_values"] == [0.5]
    write_json(run / "run.json", told | late | {"constraint_1": 0.5 + 1e-12})
    assert "limit 0.5: NOT met, by 1e-12" in run_text(run)


@pytest.mark.parametrize("text", ["[]", "{", "3"])
def test_a_damaged_file(text: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", objective=1.0)
    (run / "run.json").write_text(text)
    for more in ([], ["--json"]):
        ended = mpifed("show", run, *more)
        assert ended.exit_code == 3 and "run.json: cannot be read as JSON" in ended.output


def test_selections_that_cannot_be(tmp_path: Path, steps: Path) -> None:
    none = write_sweep(tmp_path / "none", grid("algorithm.batch_size", {"1": [{"code": 4}, None]}))
    bad = {"1": [{"train_loss": 0.5}, {"code": 4}]}
    failed = write_sweep(tmp_path / "failed", grid("algorithm.batch_size", bad))
    for folder, by, said in (
        (tmp_path / "nothing", None, "no folder of a run or a sweep"),
        (tmp_path / "job.toml", None, "no folder of a run or a sweep"),
        (none, None, "none of 2 runs has finished"),
        (steps, "loss", "no column loss; there are rounds, objective, elapsed_s, seconds_per_round, up_bytes"),
        (steps, "exit", "no column exit"),
        (failed, None, r"no setting has a finite train_loss; 1 point failed numerically"),
    ):
        with pytest.raises(UsageError, match=said):
            select(folder, by)
        assert mpifed("compare", folder, "--select", "best", *(["--by", by] if by else [])).exit_code == 2


@pytest.mark.parametrize(
    "value",
    [1, -2.5, 1e-05, 1e300, float("inf"), True, 'a "quoted" \\ path', [1.0, 0.3], ["a", [1, 2]], {"x.y": [1], "b": {}}],
)
def test_values_can_be_pasted(value: Any, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    assert read_table(tmp_path / "job.toml", [f"algorithm.x={toml_text(value)}"]) == {"algorithm": {"x": value}}


def test_points_without_seeds_are_settings_of_their_own(tmp_path: Path) -> None:
    points = [({"algorithm.batch_size": batch}, {"train_loss": 0.5}) for batch in (1, 2)]
    found = settings_of(read_points(write_sweep(tmp_path / "sweep", points)))
    assert [len(one.points) for one in found] == [1, 1]


# --- one run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "margin", "said"),
    [
        (0.1287, 0.0011, "0.1287 +- 0.0011, limit 0.13: met"),
        (0.13, None, "0.13, limit 0.13: met"),
        (0.1295, 0.0011,
         "0.1295 +- 0.0011, limit 0.13: met on the training rows; so near the limit that it may not be on new samples"),
        (0.1304, 0.0011, "0.1304 +- 0.0011, limit 0.13: NOT met, by 0.0004"),
        (0.1304, None, "0.1304, limit 0.13: NOT met, by 0.0004"),
    ],
)  # fmt: skip
def test_constraints_of_a_run(tmp_path: Path, value: float, margin: float | None, said: str) -> None:
    job = {
        "constraint": [
            {"name": "loss", "limit": 0.13, "margin": 0.0},
            {"name": "error-rate", "classes": [0, 7], "limit": 0.5, "margin": 0.0},
        ]
    }
    columns = {"constraint_1": value, "constraint_2": 0.25, "margin_1": margin, "margin_2": 0.01}
    lines = run_text(write_run(tmp_path / "run", job=job, **columns)).splitlines()
    assert f"{'constraint 1 (loss)':30} {said}" in lines
    assert "constraint 2 (error-rate of classes 0, 7) 0.25 +- 0.01, limit 0.5: met" in lines


def test_the_certificate_of_a_run(tmp_path: Path) -> None:
    columns = {"kkt_residual": 0.00123456, "stationarity": 0.00123456, "feasibility": 0.0, "complementarity": 2e-4}
    text = "\n".join(
        f"{label:30} {number}" for label, number in (
            ("KKT residual", "0.00123456"), ("  stationarity", "0.00123456"), ("  feasibility", "0"),
            ("  complementarity", "0.0002"),
        )
    )  # fmt: skip
    stop = {"kkt_residual": 1e-3, "complementarity": 0.01}
    asked = run_text(write_run(tmp_path / "asked", code=5, job={"stop": stop}, **columns))
    assert f"{'KKT residual':30} 0.00123456, asked for 0.001 or less\n" in asked
    assert f"{'  complementarity':30} 0.0002, asked for 0.01 or less\n" in asked
    assert "a limit is not met, or a certificate asked for not reached (exit 5)" in asked
    assert f"{text}\n" in run_text(write_run(tmp_path / "run", **columns))
    none = write_run(tmp_path / "none", **dict.fromkeys(columns))
    assert "KKT" not in run_text(none)
    # that of a last model whose row was written before
    write_json(none / "run.json", json.loads((none / "run.json").read_text()) | columns)
    assert f"{text}\n" in run_text(none)


def test_the_duality_gap_of_a_run(tmp_path: Path) -> None:
    asked = write_run(tmp_path / "asked", job={"stop": {"duality_gap": 1e-2}}, duality_gap=0.00727388)
    assert f"{'duality gap':30} 0.00727388, asked for 0.01 or less\n" in run_text(asked)
    run = write_run(tmp_path / "run", duality_gap=0.5, objective=20.0, lower_bound=19.5)
    assert f"{'lower bound, by this model':30} 19.5\n{'duality gap':30} 0.5 (2.50% of the objective)\n" in run_text(run)


def test_multipliers_and_contradictions_of_a_run(tmp_path: Path) -> None:
    job = {"constraint": [{"name": "loss", "limit": 0.5}, {"name": "norm", "limit": 0.1}]}
    columns = {"constraint_1": 0.75, "constraint_2": 0.2, "multiplier_1": 96.4321, "multiplier_2": 0.0}
    columns |= {"subproblem_multiplier_1": 300.0, "feasible_direction": 0.01}
    shown = run_text(write_run(tmp_path / "run", code=5, job=job, **columns))
    assert "0.75, limit 0.5: NOT met, by 0.25; multiplier 96.43, in the last subproblem 300\n" in shown
    assert "0.2, limit 0.1: NOT met, by 0.1; multiplier 0\n" in shown
    assert "to first order from this model no step shorter than 100 times its norm does" in shown
    fine = write_run(tmp_path / "fine", job=job, **columns | {"feasible_direction": 5.0})
    assert "contradict" not in run_text(fine)


def test_warnings_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", train_loss=0.5)
    assert "\nwarning" not in run_text(run)
    about = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", about | {"exit": 6, "warnings": ["slack is large", "raise slack_cost"]})
    shown = run_text(run)
    assert f"{'warning':30} slack is large\n{'warning':30} raise slack_cost\n" in shown
    assert "the privacy budget is reached (exit 6)" in shown


def test_costs_by_exchange(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", train_loss=0.5)
    about = json.loads((run / "run.json").read_text())

    def shown(**exchanges: tuple[int, int, float]) -> list[str]:
        named = {
            name: {"played": 9, "up_bytes": up, "down_bytes": down, "crypto_s": seconds}
            for name, (up, down, seconds) in exchanges.items()
        }
        write_json(run / "run.json", about | {"exchanges": named})
        assert run_summary(run)["exchanges"] == named
        return [line for line in run_text(run).splitlines() if line.startswith("  ")]

    assert shown(keys=(592, 2048, 0.03), gradients=(3 << 20, 1 << 20, 75.0)) == [
        "  by exchange          up        down  cryptography, all ranks together",
        "  keys              592 B     2.0 KiB  30 ms",
        "  gradients       3.0 MiB     1.0 MiB  1.25 min",
    ]
    assert shown(keys=(0, 0, 3e-6), scores=(1024, 0, 0.0), the_gradients=(2048, 512, 0.0)) == [
        "  by exchange            up        down",
        "  scores            1.0 KiB         0 B",
        "  the_gradients     2.0 KiB       512 B",
    ]
    assert shown(keys=(0, 0, 3e-6), gradients=(1024, 1024, 0.0)) == []  # the totals say it


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """Its run.json is as at the start: the last measured row tells how far it has come."""
    folder = write_run(
        tmp_path / "run", code=None, round=150, train_loss=0.25, elapsed_s=3.0, up_bytes=64, down_bytes=32
    )
    begun = {"exit": None, "rounds": 0, "elapsed_s": 0.0, "up_bytes": 0, "down_bytes": 0, "seconds_per_round": None}
    write_json(folder / "run.json", begun)
    found = run_summary(folder)
    assert [found[name] for name in ("rounds", "elapsed_s", "up_bytes", "down_bytes")] == [150, 3.0, 64, 32]
    lines = run_text(folder).splitlines()
    assert lines[0].split(maxsplit=1)[1] == (
        "killed or still running after round 150; resume it with --resume if it is not running"
    )
    assert re.search(r"^rounds +150$", "\n".join(lines), re.MULTILINE)
