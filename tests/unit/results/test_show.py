"""How runs and sweeps are told: tables, the best setting, constraints; on folders written here."""

from __future__ import annotations

import csv
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner
from written_files import FIRST, LEDGER, SUMMARY, write_json

from mpifed.cli import main
from mpifed.job.job import read_table
from mpifed.results.text import toml_text

Settings = dict[str, Any]


def mpifed(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def best_of(*arguments: Any) -> dict[str, Any]:
    """The choice of `mpifed compare`."""
    found: dict[str, Any] = json.loads(mpifed("compare", "--select", "best", "--json", *arguments).output)
    return found


def shown(run: Path, *options: str) -> str:
    """What `mpifed show` says."""
    return str(mpifed("show", run, *options).output)


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
        "[2.0, 0.0]": [{"objective": 0.2}, {"code": 68}],
        "[4.0, 0.0]": [{"code": 68}, {"code": 75, "objective": 0.01}],
    }
    return write_sweep(tmp_path / "sweep", grid("algorithm.step", values))


def test_one_line_for_each_setting(steps: Path) -> None:
    header, *lines = mpifed("compare", steps).output.splitlines()
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
        "  numerical trouble: it would fail the same way again (exit 68): point-0007 to point-0008",
        "  interrupted; go on with --resume (exit 75): point-0009",
    ]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    of_sizes = [{"train_loss": 0.5, "code": 69}, {"code": None}, None, {"code": 2}]
    values: dict[Any, Any] = {"1": of_sizes, "2": [None] * 4}
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))
    (folder / "point-0007").mkdir()
    assert mpifed("compare", folder).output.splitlines()[3:] == [
        "Included in the means:",
        "  a limit is not met, or what [stop] asks for not reached (exit 69): point-0000",
        "Not in the means:",
        "  killed or still running: point-0001",
        "  not run: point-0002, point-0004 to point-0006",
        "  invalid job or command line (exit 2): point-0003",
        "  ended before the first round: point-0007",
    ]


def test_the_list_of_points(steps: Path) -> None:
    listed = json.loads(mpifed("compare", steps, "--json").output)["runs"]
    assert len(listed) == 10
    assert list(listed[4]) == ["point", "label", "settings", *SUMMARY, "warnings"]
    assert listed[4]["settings"] == {"algorithm.step": [2.0, 0.3], "seed": 1}


# --- the best ----------------------------------------------------------------------------------------------------


def test_the_best_setting(steps: Path) -> None:
    found = best_of(steps)
    assert list(found) == ["settings", "points", "mean", "by", "ties", "edges", "warnings"]
    assert found["settings"] == {"algorithm.step": [2.0, 0.3]}
    assert found["points"] == ["point-0004", "point-0005"]
    assert found["mean"]["objective"] == pytest.approx(0.4)
    assert found["edges"] == [
        "algorithm.step = [2.0, 0.3] is at the edge of its grid: widen it (component 2: 0.3 is the largest)"
    ]


def test_the_best_setting_for_a_person(steps: Path) -> None:
    text = mpifed("compare", steps, "--select", "best").output
    assert "--set 'algorithm.step=[2.0, 0.3]'\n" in text
    assert "least objective" in text
    assert f"{'objective':30} 0.4 +- {statistics.stdev([0.3, 0.5]):.2g}\n" in text
    assert "at the edge of its grid: widen it" in text
    assert "failed numerically (exit 68): point-0007 to point-0008\n" in text
    assert "have not finished: point-0009\n" in text


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
    assert best_of(folder)["edges"] == ([said] if hit else [])


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
    assert best_of(folder)["settings"] == {"algorithm.batch_size": 2}
    assert best_of(folder)["mean"]["constraint_1"] == pytest.approx(0.125)
    assert best_of(folder, "--max")["settings"] == {"algorithm.batch_size": 3}  # of those that meet them
    assert best_of(folder, "--by", "objective")["settings"] == {"algorithm.batch_size": 4}
    header, *lines = mpifed("compare", folder).output.splitlines()
    assert header.split()[4:6] == ["constraint_1", "constraint_2"]
    met = header.index("limits met")
    assert [line[met : met + 10].strip() for line in lines[:4]] == ["1 of 2", "2 of 2", "2 of 2", "1 of 2"]


def test_without_feasible_settings_the_least_infeasible_is_the_best(tmp_path: Path) -> None:
    values = {"1": [constrained(1.0, 0.2, 0.21)], "2": [constrained(9.0, 0.14, 0.1)], "3": [constrained(0.0, 0.9, 0.1)]}
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))
    found = best_of(folder)
    assert found["settings"] == {"algorithm.batch_size": 2}
    assert found["mean"]["feasibility"] == pytest.approx(0.01 / 0.13)
    text = mpifed("compare", folder, "--select", "best").output
    assert "least feasibility, then least objective" in text
    assert f"{'limits met':30} 0 of 1" in text


def test_a_number_that_is_not_finite_is_infinitely_bad(tmp_path: Path) -> None:
    values = {"1": [{"train_loss": float("nan")}, {"train_loss": 0.1}], "2": [{"train_loss": 0.5}, {"train_loss": 0.5}]}
    folder = write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))
    assert best_of(folder)["settings"] == {"algorithm.batch_size": 2}
    assert best_of(folder, "--by", "train_loss", "--max")["settings"] == {"algorithm.batch_size": 2}


def test_what_the_last_model_has_not_is_not_that_of_drawn_rows(tmp_path: Path) -> None:
    """The history's last row is of some rows, by which the limit was not met; run.json is of all, by which it is."""
    job = {"constraint": [{"name": "loss", "limit": 0.5}]}
    drawn = {"constraint_1": 0.9, "margin_1": 0.1, "slack": 0.3, "duality_gap": 0.25, "feasibility": 0.8}
    run = write_run(tmp_path / "run", job=job, objective=1.0, **drawn)
    assert "missed limits too, by 0.3: they contradict each other, slack costs too little" in shown(run)
    told = json.loads((run / "run.json").read_text())
    late = {"constraint_1": 0.5, "margin_1": 0.0, "slack": 0.3, "duality_gap": None, "feasibility": 0.0}
    write_json(run / "run.json", told | late)
    text = shown(run)
    assert "0.5, limit 0.5: met" in text
    assert "contradict" not in text and "duality gap" not in text
    found = json.loads(shown(run, "--json"))
    assert found["duality_gap"] is None and found["constraint_values"] == [0.5]
    write_json(run / "run.json", told | late | {"constraint_1": 0.5 + 1e-12})
    assert "limit 0.5: NOT met, by 1e-12" in shown(run)


def test_selections_that_cannot_be(tmp_path: Path, steps: Path) -> None:
    none = write_sweep(tmp_path / "none", grid("algorithm.batch_size", {"1": [{"code": 68}, None]}))
    bad = {"1": [{"train_loss": 0.5}, {"code": 68}]}
    failed = write_sweep(tmp_path / "failed", grid("algorithm.batch_size", bad))
    for folder, by, said in (
        (tmp_path / "nothing", None, "no folder of a run or a sweep"),
        (tmp_path / "job.toml", None, "no folder of a run or a sweep"),
        (none, None, "none of 2 runs has finished"),
        (steps, "loss", "no column loss; there are rounds, objective, elapsed_s, seconds_per_round, up_bytes"),
        (steps, "exit", "no column exit"),
        (failed, None, "no setting has a finite train_loss; 1 point failed numerically"),
    ):
        ended = mpifed("compare", folder, "--select", "best", *(["--by", by] if by else []))
        assert ended.exit_code == 2 and said in ended.output


@pytest.mark.parametrize(
    "value",
    [1, -2.5, 1e-05, 1e300, float("inf"), True, 'a "quoted" \\ path', [1.0, 0.3], ["a", [1, 2]], {"x.y": [1], "b": {}}],
)
def test_values_can_be_pasted(value: Any, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    assert read_table(tmp_path / "job.toml", [f"algorithm.x={toml_text(value)}"]) == {"algorithm": {"x": value}}


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
    lines = shown(write_run(tmp_path / "run", job=job, **columns)).splitlines()
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
    asked = shown(write_run(tmp_path / "asked", code=69, job={"stop": stop}, **columns))
    assert f"{'KKT residual':30} 0.00123456, asked for 0.001 or less\n" in asked
    assert f"{'  complementarity':30} 0.0002, asked for 0.01 or less\n" in asked
    assert "a limit is not met, or what [stop] asks for not reached (exit 69)" in asked
    assert f"{text}\n" in shown(write_run(tmp_path / "run", **columns))
    none = write_run(tmp_path / "none", **dict.fromkeys(columns))
    assert "KKT" not in shown(none)
    # that of a last model whose row was written before
    write_json(none / "run.json", json.loads((none / "run.json").read_text()) | columns)
    assert f"{text}\n" in shown(none)


def test_costs_by_exchange(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", train_loss=0.5)
    about = json.loads((run / "run.json").read_text())

    def costs(**exchanges: tuple[int, int, float]) -> list[str]:
        named = {
            name: {"played": 9, "up_bytes": up, "down_bytes": down, "crypto_s": seconds}
            for name, (up, down, seconds) in exchanges.items()
        }
        write_json(run / "run.json", about | {"exchanges": named})
        assert json.loads(shown(run, "--json"))["exchanges"] == named
        return [line for line in shown(run).splitlines() if line.startswith("  ")]

    _, *rows = costs(keys=(592, 2048, 0.03), gradients=(3 << 20, 1 << 20, 75.0))
    assert [row.split() for row in rows] == [
        ["keys", "592", "B", "2.0", "KiB", "30", "ms"], ["gradients", "3.0", "MiB", "1.0", "MiB", "1.25", "min"],
    ]  # fmt: skip
    assert costs(keys=(0, 0, 3e-6), gradients=(1024, 1024, 0.0)) == []  # the totals say it


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """Its run.json is as at the start: the last measured row tells how far it has come."""
    folder = write_run(
        tmp_path / "run", code=None, round=150, train_loss=0.25, elapsed_s=3.0, up_bytes=64, down_bytes=32
    )
    begun = {"exit": None, "rounds": 0, "elapsed_s": 0.0, "up_bytes": 0, "down_bytes": 0, "seconds_per_round": None}
    write_json(folder / "run.json", begun)
    found = json.loads(shown(folder, "--json"))
    assert [found[name] for name in ("rounds", "elapsed_s", "up_bytes", "down_bytes")] == [150, 3.0, 64, 32]
    lines = shown(folder).splitlines()
    assert lines[0].split(maxsplit=1)[1] == (
        "killed or still running after round 150; resume it with --resume if it is not running"
    )
    assert re.search(r"^rounds +150$", "\n".join(lines), re.MULTILINE)
