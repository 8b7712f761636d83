"""Runs and sweeps compared: against brute force, numbers by hand and scipy."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame, Series
from scipy import stats
from written_runs import JOB, KIB, at_end, mpifed, write_points, write_run

import mpifed as mf
from jobs.hyfdca.selection import coefficients, selected
from mpifed.core.errors import UsageError
from mpifed.files.run_folder import job_of
from mpifed.job.reading import put_key
from mpifed.plots.curves import lines_of
from mpifed.results.choose import choose, edges, front, groups
from mpifed.results.compare import compare, holm
from mpifed.results.frames import read
from mpifed.run.folder import same_job
from mpifed.testing import Job

SIZE, EQUAL, FAILED = "algorithm.batch_size", "equal within the tolerance", "failed numerically (exit 68)"
METHODS = [{"label": label, "algorithm": {"name": "fedavg", "batch_size": size}}
           for label, size in zip("ABC", (4, 8, 2), strict=True)]  # fmt: skip
ACCURACY = {"A": [0.80, 0.84, 0.79, 0.86, 0.83], "B": [0.83, 0.85, 0.84, 0.87, 0.88], "C": [0.5, 0.52, 0.51, 0.5, 0.56]}


def methods(folder: Path, values: dict[str, list[Any]]) -> Path:
    """A run for each label and seed, None: it failed."""
    each = [value for several in values.values() for value in several]
    runs = [68 if value is None else at_end(test_accuracy=value, train_loss=1.0) for value in each]
    return write_points(folder, {"methods": METHODS[: len(values)], "seeds": len(values["A"])}, runs)


def grid(folder: Path, values: dict[Any, Any], key: str = SIZE, **tables: Any) -> Path:
    """A sweep along one axis; of each run its columns at its end, an exit code, or None."""
    runs = [ran if ran is None or isinstance(ran, int) else at_end(**ran) for runs in values.values() for ran in runs]
    seeds = len(next(iter(values.values())))
    return write_points(folder, {key: [*values], **({"seeds": seeds} if seeds > 1 else {})}, runs, **tables)


def t_test(x: list[float], y: list[float]) -> list[float]:
    test = stats.ttest_rel(x, y)
    return [float(np.mean(x) - np.mean(y)), *test.confidence_interval(0.95), test.pvalue]


def pair(folder: Any, label: str, column: str = "test_accuracy", **how: Any) -> Series:
    return compare(*folder, **how).frame.set_index(["label", "column"]).loc[(label, column)]


def of_pair(row: Series) -> list[float]:
    return [float(row[name]) for name in ("difference", "low", "high", "p")]


# --- what is one row, and what it is called -------------------------------------------------------------------------


def test_rows_are_called_by_what_sets_them_apart(tmp_path: Path) -> None:
    """One more seed of a setting joins it, and takes its label; a run that is named twice counts once."""
    sweep = methods(tmp_path / "s", {"A": [0.5, 0.6], "B": [0.5, 0.6]})
    job = job_of(sweep / "point-0000") | {"seed": 3}
    third = write_run(tmp_path / "third", at_end(test_accuracy=0.7), job=job)
    other = write_run(tmp_path / "other", at_end(test_accuracy=0.2), job=JOB | {"name": "other", "rounds": 9})
    runs = read(sweep, third, sweep / "point-0001", other, sweep).runs
    assert runs.groupby("setting", sort=False).size().to_dict() == {"A": 3, "B": 2, "other": 1}
    gone = write_run(tmp_path / "gone", job=job | {"model": {**job["model"], "l2": 0.25}})  # has no label
    assert "l2 = 0.25" in read(sweep, gone).settings[2]
    rates = [{"initial": 1.0, "exponent": exponent} for exponent in (0.5, 0.25)]
    axes = {"client_optimizer.learning_rate": rates, "model.l2": [0, 1]}
    names = read(write_points(tmp_path / "t", axes, [at_end(objective=1.0)] * 4)).settings
    assert {*names[1].split(", ")} == {"exponent = 0.5", "l2 = 1.0"}


FREE = {"record.evaluate_every": 5, "data.verify": False, "server.dedicated": True, "observe": [{"name": "mlflow"}]}
BOUND = {SIZE: 8, "model.l2": 0.5, "compute.dtype": "float64", "record.certify_every": 3}


@pytest.mark.parametrize(("key", "value"), [*FREE.items(), *BOUND.items()])
def test_one_list_says_which_keys_set_runs_apart(key: str, value: object, tmp_path: Path) -> None:
    """Whoever compares, plots or resumes reads it."""
    tables = []
    for seed in (1, 2):
        table = {name: dict(part) if isinstance(part, dict) else part for name, part in JOB.items()} | {"seed": seed}
        if seed == 2:
            put_key(table, key, value)
        tables.append(Job.check(table).table())
    rows = [{"round": 0, "train_loss": 1.0}, {"round": 100, "train_loss": 0.5}]
    runs = [write_run(tmp_path / name, rows, job=table) for name, table in zip("ab", tables, strict=True)]
    assert len(read(*runs).settings) == len(lines_of(runs)[0]) == 1 + (key in BOUND)
    if key in FREE:
        same_job(runs[0], *({**table, "seed": 1} for table in tables))


@pytest.mark.parametrize(("first", "second", "rows"), [("1", "1", 1), ("1", "2", 2), ("1", None, 2), (None, None, 2)])
def test_data_that_differ_are_never_joined(tmp_path: Path, first: Any, second: Any, rows: int) -> None:
    """One folder by two paths is the same; what was made anew at one path is not."""
    for k, paths in enumerate((("data/digits", "/home/digits2"), ("same", "same"))):
        runs = [
            write_run(tmp_path / f"{k}{name}", at_end(objective=0.5), job=JOB | {"data": {"path": path}},
                      **({"data_sha256": digest * 64} if digest else {}))
            for name, path, digest in zip("ab", paths, (first, second), strict=True)
        ]  # fmt: skip
        assert len(read(*runs).settings) == (1 if k == 1 and None in (first, second) else rows)


PRINTED = """\
                 seeds rounds    objective elapsed_s      bytes
batch_size = 4       2    100  0.8 +- 0.14       100  200.0 KiB
batch_size = 8  1 of 2    100          0.2       100  200.0 KiB
batch_size = 16 0 of 1
batch_size = 32 1 of 2      0                      0        0 B
+-: standard deviation over seeds
Not in the means, numerical trouble: it would fail the same way again (exit 68): point-0003
Not in the means, interrupted; go on with --resume (exit 75): point-0004
In the means, a limit is not met, or what [stop] asks for not reached (exit 69): point-0006
Not in the means, invalid job or command line (exit 2): point-0007
Not run: point-0005"""


def test_what_is_printed(tmp_path: Path) -> None:
    """The same by the command and from Python; what a stranger's job says steers no terminal."""
    values = {4: [{"objective": 0.9}, {"objective": 0.7}], 8: [{"objective": 0.2}, 68], 16: [75, None], 32: [69, 2]}
    folder = grid(tmp_path / "s", values)
    text = mpifed("compare", folder).output
    assert [line.split() for line in text.splitlines()] == [line.split() for line in PRINTED.splitlines()], text
    shown = json.loads(mpifed("compare", folder, "--json").output)
    assert shown["runs"][0]["job.algorithm.batch_size"] == 4 and len(shown["runs"]) == 7
    assert str(mf.compare(folder)) + "\n" == text and json.loads(json.dumps(mf.compare(folder).table())) == shown
    going = write_run(tmp_path / "going", history(r0=0.5), None)
    strange = write_run(tmp_path / "strange", at_end(train_loss=1.0), job=JOB | {"\x1b[31m": 1})
    said = mpifed("compare", going, strange, "--to", "test_accuracy>=0.4").output
    assert "To test_accuracy >= 40%" in said and "\\x1b[31m" in said and "\x1b" not in said


# --- pairs ----------------------------------------------------------------------------------------------------------


def test_interval_and_p_are_those_of_scipy(tmp_path: Path) -> None:
    """Against the best, which is B; of two p values the smaller is doubled by Holm. Then against A."""
    folder = methods(tmp_path / "s", ACCURACY)
    for label, factor in (("A", 1), ("C", 2)):
        row, (*interval, p) = pair([folder], label), t_test(ACCURACY[label], ACCURACY["B"])
        np.testing.assert_allclose(of_pair(row), [*interval, factor * p], rtol=1e-9)
        assert (row["against"], row["pairs"]) == ("B", 5)
    assert "B was chosen as the best by the same numbers of test_accuracy" in str(compare(folder))
    for against in ("A", "point-0003", str(folder / "point-0003"), f"{folder / 'point-0000'}/"):
        difference = pair([folder], "B", against=against)["difference"]
        assert difference == pytest.approx(t_test(ACCURACY["B"], ACCURACY["A"])[0])
    # A failed in seed 2, and of seed 4 nothing was measured: it is never the best, and compared over the rest
    row = pair([methods(tmp_path / "t", {"A": [0.9, None, 0.91, math.nan, 0.93], "B": ACCURACY["B"]})], "A")
    np.testing.assert_allclose(of_pair(row), t_test([0.9, 0.91, 0.93], [0.83, 0.84, 0.88]))
    assert (row["against"], row["pairs"]) == ("B", 3)
    # runs of one job and seed are their mean: a copy makes no deviation smaller, and no further degree of freedom
    values = {4: [{"test_accuracy": v} for v in (0.8, 0.9, 0.85)], 8: [{"test_accuracy": v} for v in (0.7, 0.75, 0.72)]}
    folder = grid(tmp_path / "u", values)
    again = write_run(tmp_path / "again", at_end(test_accuracy=0.72), job=job_of(folder / "point-0003"))
    row = pair([folder, again], "batch_size = 8")
    np.testing.assert_allclose(of_pair(row), t_test([0.71, 0.75, 0.72], [0.8, 0.9, 0.85]), rtol=1e-9)
    assert row[["n", "of", "std"]].tolist() == [3, 3, pytest.approx(np.std([0.71, 0.75, 0.72], ddof=1))]
    # 0.01 * 4; 0.02 * 3; 0.03 * 2, not below that before; 0.9 * 1
    np.testing.assert_allclose(holm(Series([0.03, 0.01, 0.9, 0.02, math.nan])), [0.06, 0.04, 0.9, 0.06, math.nan])


def test_what_is_not_compared_in_pairs_is_said(tmp_path: Path) -> None:
    """Two seeds; 21 rows; the same difference in every seed but for rounding, which a t test would divide by 0."""
    two = methods(tmp_path / "few", {"A": [0.5, 0.6], "B": [0.6, 0.7]})
    few = compare(two)
    assert "Not compared in pairs: no other row shares 3 finished seeds with that of the best test_acc" in str(few)
    assert re.search("A +2 +3 equal seeds are needed", str(compare(two, by=["test_accuracy"])))
    gone = two / "point-0000"
    shutil.rmtree(gone)
    gone.symlink_to(gone)
    assert "Not run: point-0000" in str(compare(two))
    many = compare(grid(tmp_path / "many", {k: [{"objective": k + s / 9} for s in range(3)] for k in range(1, 22)}))
    assert "Not compared in pairs: 21 rows, more than 20" in str(many)
    same = methods(tmp_path / "same", {"A": ACCURACY["A"], "B": [value + 0.1 for value in ACCURACY["A"]]})
    difference, low, high, p = of_pair(pair([same], "A"))
    assert low == high == difference == pytest.approx(-0.1) and np.isnan(p)
    assert "the same for all seeds" in str(compare(same))


OBJECTIVES: list[tuple[list[dict[str, Any]], str, str]] = [
    ([{"model": {"name": "softmax", "l2": 0.1}}, {"model": {"name": "softmax", "l2": 0.2}}], "objective",
     r"a has .*\[model\] l2 = 0.1; .*b has .*\[model\] l2 = 0.2"),
    ([{"model": {"name": "softmax"}}, {"model": {"name": "hinge"}}], "train_loss", "losses differ"),
    ([{}, {"regularizer": {"name": "l1", "weight": 0.1}}], "objective", r"\[regularizer\] = "),
    ([{}, {"minimize": {"name": "norm"}}], "objective", r"\[minimize\] = "),
    ([{"model": {"name": "m:Own", "scale": 2}}, {"model": {"name": "m:Own"}}], "objective", r"\[model\] scale = 2"),
]  # fmt: skip


@pytest.mark.parametrize(("tables", "column", "said"), OBJECTIVES)
def test_different_objectives_are_not_ranked(tmp_path: Path, tables: list[Any], column: str, said: str) -> None:
    """The kind of network is none of them; where nobody has asked for a comparison it is left out, and said."""
    rows = at_end(objective=1.0, train_loss=1.0, test_accuracy=0.5)
    runs = [write_run(tmp_path / name, rows, job=JOB | of_run) for name, of_run in zip("ab", tables, strict=True)]
    for how in (["--best"], []):
        refused = mpifed("compare", *runs, *how, "--by", column).output
        assert re.search(f"{said}.*so that {column} ranks nothing; choose by another column", refused)
    assert choose(read(*runs), ["test_accuracy"]).frame["place"].tolist() == ["", EQUAL]
    hidden = [{"model": {"name": "mlp", "hidden": size, "l2": 0.1}} for size in (8, 16)]
    alike = [write_run(tmp_path / str(k), at_end(objective=1.0 - k), job=JOB | m) for k, m in enumerate(hidden)]
    assert choose(read(*alike), by=["objective"]).points == [str(alike[1])]
    folder = grid(tmp_path / "s", {k: [{"objective": 1.0}] * 3 for k in (0, 1)}, "model.l2")
    assert "Not compared in pairs: objectives differ (point-0000 has" in str(compare(folder))


# --- targets --------------------------------------------------------------------------------------------------------


def history(**of_rounds: float) -> list[dict[str, float | None]]:
    return [{"round": int(key[1:]), "test_accuracy": v, "train_loss": 1 - v} for key, v in of_rounds.items()]


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Of batch 4 two seeds reach 0.9, at rounds 20 and 40; of 8 none does, one fails and one is interrupted."""
    runs = [
        history(r0=0.1, r10=0.85, r20=0.9, r30=0.7, r40=0.95),  # and falls below it again
        history(r0=0.1, r20=0.8, r40=0.92), history(r0=0.1, r10=math.nan, r20=0.8999999), history(r0=0.1, r100=0.5),
        68, 75,
    ]  # fmt: skip
    return write_points(tmp_path / "sweep", {SIZE: [4, 8], "seeds": 3}, runs)


def test_what_a_target_takes_and_where_it_was_best(steps: Path) -> None:
    """Over the runs that reached it, in the first measured round that did; the best round is named beside the last."""
    how = {"to": ["test_accuracy>=0.9", "train_loss<=0.2"]}
    for cost, factor in (("round", 1), ("bytes", 2 * KIB), ("elapsed_s", 1)):
        row = pair([steps], "batch_size = 4", f"{cost} to test_accuracy >= 90%", **how)
        expected = [30 * factor, math.sqrt(200) * factor, 2, 3]
        assert row[["mean", "std", "n", "of"]].tolist() == pytest.approx(expected)
    none = pair([steps], "batch_size = 8", "round to test_accuracy >= 90%", **how)
    assert none[["n", "of"]].tolist() == [0, 2] and "2 of 3 30 +- 14" in " ".join(str(compare(steps, **how)).split())
    assert pair([steps], "batch_size = 4", "round to train_loss <= 0.2", **how)["mean"] == (10 + 20 + 20) / 3
    row = pair([steps], "batch_size = 4")
    assert (row["best"], row["best_round"]) == (pytest.approx((0.95 + 0.92 + 0.8999999) / 3), (40 + 40 + 20) / 3)
    fallen = str(compare(write_run(steps.parent / "fallen", history(r0=0.1, r5=0.9, r9=0.8))))
    assert "round of best test_accuracy" in fallen and "90.00% 5" in " ".join(fallen.split())


BAD = [
    *((["--to", text], "expected COLUMN>=NUMBER or COLUMN<=NUMBER, in quotes") for text in
      ("test_accuracy", "test_accuracy>0.9", ">=0.9", "train_loss<=nan", "a b<=1", "")),
    *((["--to", text], "between 0 and 1") for text in ("test_accuracy>=90", "test_accuracy<=-0.1")),
    (["--to", "accuracy>=0.9"], '--to: no column accuracy; did you mean "test_accuracy"?; there are '),
    (["--by", "loss", "--best"], "no column loss"), (["--by", "exit"], "no column exit"),
    (["--best", "--against", "a"], "--against goes without --best"),
    (["--best", "--to", "objective<=1"], "--to goes without --best"),
    (["--against", "D"], "--against D: expected the name of one setting, or a run; there are batch_size = 4; batch_s"),
]  # fmt: skip


def test_what_cannot_be_compared(steps: Path, tmp_path: Path) -> None:
    none, failed = grid(tmp_path / "none", {1: [68, None]}), grid(tmp_path / "failed", {1: [{"train_loss": 0.5}, 68]})
    for folder, options, said in (
        *((steps, *row) for row in BAD),
        (tmp_path / "nothing", [], "no such folder"), (tmp_path, [], "no folder of a run, a sweep"),
        (none, ["--best"], "no run has finished"),
        (grid(tmp_path / "waiting", {1: [None]}), [], "point-0000: not run yet; run the sw"),
        (failed, ["--best"], f"none of 1 settings can be compared by train_loss: {FAILED}"),
    ):  # fmt: skip
        ended = mpifed("compare", folder, *options)
        assert (ended.exit_code, said in ended.output) == (2, True), ended.output
    for wrong, said in (([3], "compare: a int; expected a run or a sweep"), ([], "compare: no run; give")):
        with pytest.raises(UsageError, match=said):
            mf.compare(wrong)  # type: ignore[arg-type]


# --- the best, and the front ----------------------------------------------------------------------------------------


def test_the_next_column_decides_ties_and_nothing_depends_on_the_order(tmp_path: Path) -> None:
    """Seconds that differ by 1 % tie, in no chain; what failed in a seed is never the best; a front has cheap ones."""
    for order in itertools.permutations([1.00, 1.01, 1.02]):
        assert groups(Series(order, order), 0.01).to_dict() == {1.00: 0, 1.01: 0, 1.02: 1}
    ends = ((16, 0.9, 4.0, 0), (2, 0.9, 4.02, 0), (3, 0.8, 1.0, 0), (5, 0.8, 5.0, 0), (4, 0.99, 0.1, 68))
    runs = [
        write_run(tmp_path / str(size), at_end(test_accuracy=accuracy, simulated_s=seconds), code,
                  JOB | {"algorithm": JOB["algorithm"] | {"batch_size": size}})
        for size, accuracy, seconds, code in ends
    ]  # fmt: skip
    said = ((16, ""), (2, EQUAL), (3, "on the front"), (5, ""), (4, FAILED))
    places = {f"batch_size = {size}": place for size, place in said}
    for order in (runs, runs[::-1], [*runs[2:], *runs[:2]]):
        found = choose(read(*order), ["test_accuracy", "simulated_s"]).frame
        assert found["place"].to_dict() == places and list(found.index) == list(places)
    text = mpifed("compare", *runs, "--best", "--by", "test_accuracy", "--by", "simulated_s").output
    assert "simulated_s: least is best, within 1%\n" in text and "90.00%" in text


LIMITS = {"constraint": [{"name": "loss", "limit": 0.13}, {"name": "loss", "limit": 0.2}]}


def constrained(objective: float, first: float, second: float) -> dict[str, float]:
    infeasible = max(0.0, (first - 0.13) / 0.13, (second - 0.2) / 0.2)
    return {"objective": objective, "constraint_1": first, "constraint_2": second, "feasibility": infeasible}


def test_with_constraints_the_best_meets_its_limits(tmp_path: Path) -> None:
    values = {
        1: [constrained(1.0, 0.15, 0.1), constrained(1.0, 0.12, 0.1)],  # not on every seed
        2: [constrained(3.0, 0.13, 0.2), constrained(3.0, 0.12, 0.1)],
        3: [constrained(2.0, 0.1, 0.1), constrained(5.0, 0.1, 0.1)],
        4: [constrained(0.1, 0.1, 0.21), constrained(0.1, 0.12, 0.1)],
    }
    folder = grid(tmp_path / "s", values, job=JOB | LIMITS)
    assert choose(read(folder)).settings == {SIZE: 2} and choose(read(folder), ["objective"]).settings == {SIZE: 4}
    header, *lines = mpifed("compare", folder).output.splitlines()
    assert header.split()[3:5] == ["constraint_1", "constraint_2"] and header.endswith("limits met")
    assert [line.split()[-3:] for line in lines[:4]] == [[n, "of", "2"] for n in "1221"]
    worse = grid(tmp_path / "t", {1: [constrained(1, 0.2, 0.21)], 2: [constrained(9, 0.14, 0.1)]}, job=JOB | LIMITS)
    assert choose(read(worse)).settings == {SIZE: 2}  # the least infeasible
    limits = grid(tmp_path / "u", {0.2: [values[2][0]], 0.3: [values[4][1]]}, "constraint.1.limit", job=JOB | LIMITS)
    assert read(limits).settings == ["limit = 0.2", "limit = 0.3"]


EDGES: list[tuple[list[Any], Any, str]] = [
    ([1, 2, 10], 2, ""), ([2, 1], 2, "a.b = 2 is at the edge of its grid, the largest: widen it"),
    ([2], 2, ""), ([True, 2], 2, ""), ([[2, 5], 3], [2, 5], ""), (["a", "b"], "a", ""),
    ([{"initial": 1, "exponent": 0.5}, {"initial": 2, "exponent": 0.5}], {"initial": 1, "exponent": 0.5},
     "a.b.initial = 1 is at the edge of its grid, the smallest: widen it"),
]  # fmt: skip


def test_what_is_chosen_can_be_pasted_and_may_lie_at_an_edge(tmp_path: Path) -> None:
    """Whole methods; a swept text stays a text."""
    table = {"name": "ssca", "batch_size": 4, "tau": 0.1}
    first = {name: JOB[name] for name in ("algorithm", "client_optimizer")}
    axes = {"methods": [first, {"algorithm": table, "client_optimizer": {}}]}
    folder = write_points(tmp_path / "s", axes, [at_end(objective=1.0), at_end(objective=0.5)])
    text = mpifed("compare", folder, "--best").output
    (line,) = (line for line in text.splitlines() if line.startswith("--set"))
    assert [word.partition("=")[0] for word in shlex.split(line)[1::2]] == ["algorithm", "client_optimizer"]
    assert table.items() <= choose(read(folder)).settings["algorithm"].items()
    folder = write_points(tmp_path / "t", {"data.path": ["1", "2"]}, [at_end(train_loss=k) for k in (1, 2)])
    assert choose(read(folder), ["train_loss"]).settings == {"data.path": "1"}
    for values, one, hit in EDGES:
        assert "".join(edges({"a.b": one}, [{"a.b": value} for value in values])) == hit


def test_the_front_is_that_of_brute_force() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        costs = rng.integers(0, 4, (rng.integers(1, 30), rng.integers(1, 4))).astype(float)  # many ties, many equal
        for row, inside in zip(costs, front(DataFrame(costs)), strict=True):
            assert inside == (not any((other <= row).all() and (other < row).any() for other in costs))


def test_grey_relational_grades_by_hand(tmp_path: Path) -> None:
    """Cost A runs from 10 to 50, cost B from 1 to 3: D = (0, 1), (1/4, 1/2), (1, 0). Then of three on a front."""
    for costs, expected in (
        ([[10.0, 3.0], [20.0, 2.0], [50.0, 1.0]], [[1, 1 / 2], [4 / 5, 2 / 3], [1 / 2, 1]]),
        ([[7.0, 0.0], [7.0, 1.0]], [[1, 1], [1, 1 / 2]]),
    ):
        np.testing.assert_allclose(coefficients(DataFrame(costs)), expected, rtol=1e-15)
    ends = ((0.5, 0.7, 10.0), (0.2, 0.9, 20.0), (0.1, 0.95, 100.0), (0.3, 0.9, 20.0))
    runs = [at_end(objective=o, test_accuracy=a, simulated_s=s) for o, a, s in ends]
    frames = read(write_points(tmp_path / "s", {SIZE: [1, 2, 3, 4, 5]}, [*runs, 68]))
    # 2 has (4/5 + 5/6 + 9/10) / 3; by two, 2 and 3 have (2 * 4/5 + 9/10) / 3 and (2 + 1/2) / 3: the better objective
    assert selected(frames, dict.fromkeys(("objective", "test_accuracy", "simulated_s"), 1.0)) == {SIZE: 2}
    assert selected(frames, {"objective": 2.0, "simulated_s": 1.0}) == {SIZE: 3}
