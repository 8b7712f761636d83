"""Settings compared: means over seeds, differences in pairs over equal seeds, what targets take, and warnings.

Runs of one seed have the same data, initial model and draws of clients, so that differences by seed vary less than the
runs themselves. The test is the paired t test: interval and p value belong together, and it can tell something from 3
seeds on, where Wilcoxon's cannot below 6. Over several comparisons p values are corrected by S. Holm (Scand. J.
Statist. 6, 1979), whatever their dependence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.core.tables import Table
from mpifed.files.columns import HistoryTarget, column_of, of_kind, shown, target_of
from mpifed.privacy.protection import SWEPT
from mpifed.results.frames import FAILED, RunFrames, listed, read
from mpifed.results.run_warnings import DIVERGED
from mpifed.results.text import value_of
from mpifed.text import shown as printable

LEAST = 3  # seeds: with 2 an interval is 13 times as wide as the standard deviation of differences
LEVEL = 0.95
_MOST = 20  # settings that are compared in pairs though nobody asks: a grid of more is searched, not compared
_ROUNDING = 1e-12  # relative: differences by seed that are the same but for rounding
_COSTS = ("round", "bytes", "elapsed_s", "simulated_s", "gradients")  # what a target takes
_PAIR = ["against", "difference", "low", "high", "p", "pairs"]
_OF_OBJECTIVE = ("objective", "lower_bound", "dual", "duality_gap")  # columns in units of what is minimized
_OF_LOSS = ("train_loss", "test_loss")
_DIGITS = 12  # of a SHA-256: enough to tell models apart


@dataclass(frozen=True, repr=False)
class Comparison:
    """Sweeps and runs compared; printed, it is what `mpifed compare` prints.

    Attributes
    ----------
    frame : a row for each setting and column: `label`, `column`, `mean`, `std` (standard deviation, nan of one run)
        over `n` of `of` runs; where it was compared in pairs also `against`, `difference` (the mean of label less
        baseline), `low` and `high` of its 95 % interval, `p` of the paired t test, by Holm over the settings, and
        `pairs`, the number of equal seeds. `best` is the mean over runs of the best measured value of the column that
        decides, and `best_round` of its round. What a target takes are the columns "round to ...", "bytes to ...",
        whose `n` is the number of runs that reached it; others are in no mean.
    runs : a row for each run, with its settings as columns `job.table.key`
    notes : what was not compared, and why
    """

    frame: DataFrame
    runs: DataFrame
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The tables and what is to be said of them, for a terminal of `width` characters if that is given."""
        return "\n".join(_lines(self, width))

    def table(self) -> Table:
        """What `mpifed compare --json` prints: the rows of `runs` and `frame`, and the notes; null where absent."""
        warnings = [list(map(str, warnings)) for warnings in self.runs["warnings"]]
        runs = self.runs.assign(warnings=warnings, exit=self.runs["exit"].astype("Int64"))
        plain = runs.drop(columns=["swept", "job"]).astype({"folder": str})
        return {"runs": _records(plain), "compared": _records(self.frame), "notes": list(self.notes)}


def _records(frame: DataFrame) -> list[Table]:
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
            for row in rows]  # fmt: skip


def compare(*folders: Path, by: Sequence[str] = (), against: str | None = None, to: Sequence[str] = ()) -> Comparison:
    """The points of sweeps, and runs, compared.

    Parameters
    ----------
    folders : of sweeps and runs
    by : columns to compare in pairs over equal seeds; when empty the test accuracy, or else the objective, where at
        least two settings share enough seeds, and there are at most 20
    against : the name of the baseline, or one of its runs; when None the best by the column
    to : targets, as `test_accuracy>=0.95`

    Raises
    ------
    UsageError
        when there is no such column or baseline, or objectives that differ are to be compared.
    """
    frames, targets = read(*folders), list(dict.fromkeys(map(_target, to)))
    check_columns(frames, by)
    check_objectives(frames, [*by, *(target.column for target in targets)])
    baseline = None if against is None else _baseline(frames, against)
    notes = [SWEPT] if frames.runs["private"].any() else []
    default = deciding(frames) if baseline is not None or len(frames.settings) <= _MOST else []
    pairs = {
        column: paired_differences(frames, column, baseline or best_of(frames, column)) for column in by or default
    }
    if not by and baseline is None:  # nobody has asked for them
        pairs = {column: pair for column, pair in pairs.items() if pair["difference"].notna().any()}
        if why := incomparable(frames, pairs):
            pairs, notes = {}, [*notes, f"Not compared in pairs: {why}; choose a column with --by"]
    for column, pair in pairs.items():
        for setting, seeds in pair.loc[pair["pairs"] >= LEAST, "left_out"].items():
            said = ", ".join(f"{seed:g}" for seed in seeds)
            notes += [f"Seeds left out, not finished by both: {setting}: {said}"] if said else []
        if baseline is None:
            notes.append(
                f"{pair['against'].iloc[0]} was chosen as the best by the same numbers of {column}: to test a claim, "
                "name the baseline with --against"
            )
    parts = [means_of(frames), *(_reached(frames, target) for target in targets)]
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    if pairs:
        joined = pd.concat([pair.assign(column=column).rename_axis("label") for column, pair in pairs.items()])
        frame = frame.merge(joined.reset_index().drop(columns="left_out"), on=["label", "column"], how="left")
    else:
        frame = frame.assign(**dict.fromkeys(_PAIR, np.nan))
    bests = [_best_measured(frames, column) for column in by or deciding(frames)]
    frame = frame.merge(pd.concat(bests), on=["label", "column"], how="left") if bests else frame
    return Comparison(frame, frames.runs, tuple(notes))


def _target(text: str) -> HistoryTarget:
    try:
        return target_of(text)
    except ValueError as error:
        raise UsageError(f"--to {printable(text)}: {error}") from error


def check_columns(frames: RunFrames, names: Sequence[str]) -> None:
    """UsageError for a column that no finished run has."""
    if unknown := [name for name in names if name not in frames.numbers]:
        there = ", ".join(frames.numbers) or "none, since no run has finished: run them, or go on with --resume"
        raise UsageError(f"no column {unknown[0]}{nearest(unknown[0], frames.numbers)}; there are {there}")


def check_objectives(frames: RunFrames, columns: Sequence[str]) -> None:
    """UsageError where a column is in units of the objective or the loss, and these differ between the runs."""
    if why := incomparable(frames, columns):
        raise UsageError(f"{why}; choose by another column, as --by test_accuracy")


def incomparable(frames: RunFrames, columns: Sequence[str] | dict[str, DataFrame]) -> str:
    """Why one of the columns ranks nothing; empty where all can be ranked by."""
    for name, what, units in (("objective_of", "objectives", _OF_OBJECTIVE), ("loss", "losses", _OF_LOSS)):
        each = frames.runs.drop_duplicates(name)
        compared = [column for column in columns if column in units]
        if compared and len(each) > 1:
            said = "; ".join(f"{run} has {text}" for run, text in zip(each["run"][:3], each[name], strict=False))
            return f"{what} differ ({said}), so that {compared[0]} ranks nothing"
    return ""


def deciding(frames: RunFrames) -> list[str]:
    """The test accuracy where all settings have it, else the loss or objective that all have; at most one."""
    there = everywhere(frames)
    return list(filter(None, [of_kind("accuracy", there) or of_kind("loss", there)]))


def everywhere(frames: RunFrames) -> list[str]:
    """The columns that every setting of which a run has finished has."""
    having = frames.runs[frames.runs["finished"]].groupby("setting")[frames.numbers].count()
    return [name for name in frames.numbers if (having[name] > 0).all()]


def sign_of(column: str) -> int:
    """-1 of a column whose largest value is best."""
    return -1 if column_of(column).better == "more" else 1


def costs_of(frames: RunFrames, column: str) -> Series:
    """The mean of each setting, to be minimized; infinite where a run failed, or has no such number."""
    runs = frames.runs[frames.runs["ended"]]
    values = (sign_of(column) * runs[column]).where(runs["finished"]).astype(float)
    means = values.groupby(runs["setting"]).agg(lambda several: np.inf if several.isna().any() else several.mean())
    return means.reindex(frames.settings, fill_value=np.inf)


def best_of(frames: RunFrames, column: str) -> str:
    """The setting with the best mean; one with a run that failed is never it, unless all are."""
    return str(costs_of(frames, column)[frames.ordered()].idxmin())


def _baseline(frames: RunFrames, against: str) -> str:
    runs, wanted = frames.runs, against.rstrip("/")
    names = runs[["setting", "label", "run"]].assign(folder=runs["folder"].map(str))
    matching = runs.loc[(names == wanted).any(axis=1), "setting"].unique()
    if len(matching) != 1:
        raise UsageError(
            f"--against {against}: expected the name of one setting, or a run; there are {', '.join(frames.settings)}"
        )
    return str(matching[0])


def means_of(frames: RunFrames) -> DataFrame:
    runs = frames.runs
    long = runs[runs["finished"]].melt("setting", frames.numbers, "column").astype({"value": float})
    every = pd.MultiIndex.from_product([frames.settings, frames.numbers], names=["setting", "column"])
    means = long.groupby(["setting", "column"])["value"].agg(["mean", "std", "count"]).reindex(every)
    of = runs.groupby("setting").size()
    means = means.assign(count=means["count"].fillna(0).astype(int), of=means.index.get_level_values(0).map(of))
    return means.reset_index().rename(columns={"setting": "label", "count": "n"})


def paired_differences(frames: RunFrames, column: str, against: str) -> DataFrame:
    """Each setting less another over the seeds that both have finished; p by Holm over as many as have one."""
    from scipy.stats import ttest_rel

    runs = frames.runs
    values = runs[column].astype(float).where(runs["finished"])
    table = runs.assign(value=values).pivot_table("value", "seed", "setting").reindex(columns=frames.settings)
    seeds = runs.groupby("setting")["seed"].agg(set)
    rows = {}
    for setting in table.columns.drop(against):
        both = table[[setting, against]].dropna()
        each = both[setting] - both[against]
        row = {
            "against": against,
            "pairs": len(both),
            "left_out": sorted((seeds[setting] | seeds[against]) - {*both.index}),
        }
        if len(both) >= LEAST:
            row |= dict.fromkeys(("difference", "low", "high"), each.mean())
            if np.ptp(each) > _ROUNDING * both.abs().max(axis=None):
                test = ttest_rel(both[setting], both[against])
                low, high = test.confidence_interval(LEVEL)
                row |= {"low": low, "high": high, "p": test.pvalue}
        rows[setting] = row
    pairs = DataFrame.from_dict(rows, orient="index", columns=[*_PAIR, "left_out"])
    return pairs.assign(p=holm(pairs["p"].astype(float)))


def holm(p: Series) -> Series:
    """Holm's correction: the k-th least of m times m - k + 1, at most 1, and none below that of a lesser one."""
    least = p.dropna().sort_values()
    return (least * np.arange(len(least), 0, -1)).cummax().clip(upper=1.0).reindex(p.index)


def _reached(frames: RunFrames, target: HistoryTarget) -> DataFrame:
    """What the runs of each setting had spent in the first measured round that reached a target."""
    histories = frames.histories
    if target.column not in histories:
        known = [name for name in histories if name not in ("folder", "run", "setting", "seed")]
        raise UsageError(
            f"--to {target}: no history has a column {target.column}{nearest(target.column, known)}; there are "
            f"{', '.join(known) or 'none, as nothing was measured'}"
        )
    ended = frames.runs[frames.runs["ended"]]
    hit = histories[target.is_met(histories[target.column]) & histories["folder"].isin(ended["folder"])]
    costs = [name for name in _COSTS if name in hit and (name == "round" or hit[name].notna().any())]
    first = hit.groupby("folder", sort=False)[["setting", *costs]].first()
    means = first.melt("setting", costs, "cost").groupby(["setting", "cost"])["value"].agg(["mean", "std", "count"])
    every = pd.MultiIndex.from_product([frames.settings, costs], names=["setting", "cost"])
    means = means.reindex(every).reset_index().rename(columns={"setting": "label", "count": "n"})
    of = means["label"].map(ended.groupby("setting").size()).fillna(0).astype(int)
    column = means.pop("cost") + f" to {target}"
    return means.assign(column=column, n=means["n"].fillna(0).astype(int), of=of)


def _best_measured(frames: RunFrames, column: str) -> DataFrame:
    """The best value that each run has measured, and its round: means over the finished runs of a setting."""
    runs = frames.runs
    histories = frames.histories
    if column not in histories:
        return DataFrame(columns=["label", "column", "best", "best_round"])
    done = histories[histories["folder"].isin(runs.loc[runs["finished"], "folder"]) & histories[column].notna()]
    order = (sign_of(column) * done[column]).sort_values(kind="stable").index
    best = done.loc[order].drop_duplicates("folder").groupby("setting")[[column, "round"]].mean()
    best.columns = ["best", "best_round"]
    return best.rename_axis("label").reset_index().assign(column=column)


# --- as text --------------------------------------------------------------------------------------------------------


def _lines(comparison: Comparison, width: int | None) -> Iterator[str]:
    frame, runs = comparison.frame, comparison.runs
    finished = runs[runs["finished"]].groupby("setting").size().reindex(runs["setting"].unique(), fill_value=0)
    repeated = runs.duplicated(["setting", "seed"]) & runs["seed"].notna()
    what = "runs" if repeated.any() else "seeds"
    yield _table({what: finished_of(runs), **_mean_cells(frame, finished), **_more(runs, bool(repeated.any()))}, width)
    if (frame["std"] > 0).any():
        yield f"+-: standard deviation over {what}"
    yield from end_lines(runs)
    yield from warning_lines(runs)
    yield from _best_lines(frame)
    for target in dict.fromkeys(column.partition(" to ")[2] for column in frame["column"] if " to " in column):
        rows = frame[frame["column"].str.endswith(f" to {target}")]
        reached = rows.groupby("label", sort=False)[["n", "of"]].first()
        cells = {"reached by": reached.apply(lambda row: f"{row['n']} of {row['of']}", axis=1)}
        for column, part in rows.groupby("column", sort=False):
            cost = column.partition(" to ")[0]
            cells[cost] = part.set_index("label").apply(lambda row: mean_text(cost, row, row["n"]), axis=1)  # noqa: B023
        yield f"\nTo {target}: the first measured round, and what was spent by then, of the runs that reached it"
        yield _table(cells, width)
    pairs = frame[frame["against"].notna()]
    for column, rows in pairs.groupby("column", sort=False):
        points = ", in percentage points" if column_of(column).unit == "%" else ""
        yield f"\n{column} less that of {rows['against'].iloc[0]}, over equal seeds{points}:"
        rows = rows.set_index("label")
        yield _table({
            "seeds": rows["pairs"].map("{:g}".format),
            "difference": rows["difference"].map(lambda value: _signed(column, value)),  # noqa: B023
            f"{LEVEL:.0%} interval": rows.apply(lambda row: _interval(column, row), axis=1),  # noqa: B023
            "p": rows["p"].map(lambda p: "" if pd.isna(p) else f"{p:.2g}"),
        }, width)  # fmt: skip
        count = int(rows["p"].notna().sum())
        yield "Paired t test" + (f"; p by Holm for {count} comparisons" if count > 1 else "")
    yield from comparison.notes


def _table(cells: dict[str, Series], width: int | None) -> str:
    """Rows of text by setting; where they are wider than the terminal, columns go on below."""
    return str(DataFrame(cells).rename_axis(None).fillna("").to_string(line_width=width)).rstrip()


def finished_of(runs: DataFrame) -> Series:
    """Of each setting 3, or 3 of 5."""
    counts = runs.groupby("setting", sort=False)["finished"].agg(["sum", "count"])
    return counts.apply(
        lambda row: f"{row['sum']} of {row['count']}" if row["sum"] < row["count"] else str(row["sum"]), axis=1
    )


def _mean_cells(frame: DataFrame, finished: Series) -> dict[str, Series]:
    names = [name for column in shown("compare") for name in frame["column"].unique() if column.means(name)]
    return {
        name: Series({row["label"]: mean_text(name, row, finished[row["label"]]) for _, row in rows.iterrows()})
        for name in names
        if len(rows := frame[frame["column"] == name])
    }


def mean_text(column: str, row: Series, whole: int) -> str:
    """0.123 +- 0.004; with the number of runs in the mean, where not all of the `whole` have the column."""
    if not row["n"]:
        return ""
    text = value_of(column, float(row["mean"]))
    if row["std"] > _ROUNDING * abs(row["mean"]):
        text += f" +- {value_of(column, float(row['std']), digits=2)}"
    return text if row["n"] == whole else f"{text} ({row['n']} of {whole})"


def _more(runs: DataFrame, repeated: bool) -> dict[str, Series]:
    """How many runs meet their limits, and the first digits of models that several runs share."""
    finished = runs[runs["finished"]]
    met = finished[finished["limits_met"].notna()].groupby("setting")["limits_met"].agg(["sum", "count"])
    models = finished[finished["model_sha256"] != ""]
    digits = (
        models["model_sha256"].str[:_DIGITS].groupby(models["setting"]).agg(lambda several: listed(several.unique()))
    )
    return {
        **({"limits met": met.apply(lambda row: f"{row['sum']} of {row['count']}", axis=1)} if len(met) else {}),
        **({"model": digits} if repeated or models["model_sha256"].duplicated().any() else {}),
    }


def end_lines(runs: DataFrame) -> Iterator[str]:
    """The runs that did not end with exit code 0, by how they ended."""
    for (finished, end), group in runs[runs["exit"] != 0].groupby(["finished", "end"], sort=False):
        yield f"{'In' if finished else 'Not in'} the means, {end}: {listed(list(group['run']))}"


def warning_lines(runs: DataFrame) -> Iterator[str]:
    """A line for each kind of warning, with the runs that have it and the numbers of the first."""
    each = runs[["run", "exit", "warnings"]].explode("warnings").dropna(subset="warnings")
    each = each.assign(kind=[warning.kind for warning in each["warnings"]])
    for kind, group in each[(each["kind"] != DIVERGED) | (each["exit"] != FAILED)].groupby("kind", sort=False):
        first = group.iloc[0]
        yield f"Warning, {kind}: {listed(list(group['run'].unique()))} ({first['run']}: {first['warnings'].text})"


def _best_lines(frame: DataFrame) -> Iterator[str]:
    """Where the best measured value is not that of the last model, which a run keeps."""
    earlier = (
        frame[(frame["best"] - frame["mean"]).abs() > _ROUNDING * frame["mean"].abs()] if "best" in frame else frame[:0]
    )
    for column, rows in earlier.groupby("column", sort=False):
        each = [f"{row['label']} {value_of(column, float(row['best']))} in round {row['best_round']:.6g}"
                for _, row in rows.iterrows()]  # fmt: skip
        yield f"{column} was best before the last round, whose model is kept: {listed(each)}"


def _signed(column: str, value: float) -> str:
    return "" if pd.isna(value) else f"{'+' * (value > 0)}{value_of(column, float(value), digits=3)}"


def _interval(column: str, row: Series) -> str:
    """The interval, or that there is none."""
    if pd.isna(row["difference"]):
        return f"{LEAST} equal seeds are needed"
    if pd.isna(row["p"]):
        return "the same for all seeds"
    return f"{_signed(column, row['low'])} to {_signed(column, row['high'])}"
