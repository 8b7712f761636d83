"""Runs and sweeps as frames of pandas: a row a run, and a row a measured round.

Runs whose jobs differ in their seed, or in what changes no result, are one setting. What sets settings apart is their
name, in tables and figures alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from os.path import realpath
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.tables import ReadOnlyTable, Table, dotted
from mpifed.files.ends import FINISHED
from mpifed.files.history import history_so_far
from mpifed.files.run_folder import JOB, RUN, job_of, read_run, summary
from mpifed.job.schema import free_in, is_free
from mpifed.job.sweep import LABEL
from mpifed.privacy.ledger_file import spent
from mpifed.results.objectives import objective_of
from mpifed.results.points import is_sweep, point_settings
from mpifed.results.run_warnings import run_warnings
from mpifed.results.text import is_number, meaning, toml_text
from mpifed.text import leads_to

FAILED = NumericalError.exit_code
_NAMING = (LABEL, "name", "algorithm.name", "model.name", "data")  # values that say enough without their keys
_HAS = "has "  # before the name of a table that only some jobs have


class RunFrames(NamedTuple):
    """What is in folders of runs and sweeps.

    `runs` has a row for each: `run` (its name), `folder`, `setting` (what sets its job apart), `seed`, `label`, `exit`
    (nan: none), `end` (in words), `finished`, `ended` (finished, or failed numerically), `limits_met`, `loss` and
    `objective_of` (what it minimizes), `private`, `job`, `swept` (what its sweep has set), `warnings` (a list),
    `model_sha256`, the numbers of its summary as columns, and its settings as columns `job.table.key`. `histories` has
    a row for each measured round: `folder`, `run`, `setting`, `seed` and the columns of history.csv, with `bytes`, of
    both directions, and `excess`, the largest over a limit.
    """

    runs: DataFrame
    histories: DataFrame
    numbers: list[str]  # columns of numbers that a finished run has
    settings: list[str]
    grid: list[Table]  # what each point of a single sweep has set; empty of several, and of runs
    waiting: list[str]  # names of points that have not begun, of which there are no rows


def read(*folders: Path) -> RunFrames:
    """All runs of these folders, each once.

    Raises
    ------
    UsageError
        when a folder is of neither a run nor a sweep, or none has begun.
    DataError
        when files in it are damaged.
    """
    members: dict[Path, _Member] = {}
    for member in (member for folder in folders for member in _members(folder)):
        place = Path(realpath(member.folder))  # `Path.resolve` raises for a link to itself
        before = members.setdefault(place, member)
        if not before.label:
            members[place] = before._replace(label=member.label, swept=member.swept)
    single = len(folders) == 1 and is_sweep(folders[0])
    grid = [member.swept for member in members.values()] if single else []

    def name_of(folder: Path) -> str:
        return folder.name if single else str(folder)

    begun = [member for member in members.values() if member.job]
    waiting = [name_of(member.folder) for member in members.values() if not member.job]
    if not begun:
        raise UsageError(f"{listed(waiting)}: not run yet; run the sweep, or go on with --resume")
    facts, numbers = zip(*map(_row, begun), strict=True)
    runs, measured = DataFrame(facts), DataFrame(numbers, dtype=float)
    runs["data"] = _data(runs)
    jobs = [_keys(member.job) for member in begun]
    free = {"seed", "data.path"}.union(set.intersection(*(free_in(member.job) for member in begun)))
    texts = DataFrame([{key: toml_text(job[key]) for key in job if not is_free(key, free)} for job in jobs]).fillna("")
    number = texts.assign(data=runs["data"]).groupby([*texts, "data"], sort=False).ngroup()
    labels = runs[LABEL].groupby(number).transform("max")  # empty where none has one
    naming = texts.assign(**{LABEL: labels, "name": runs["name"], "data": runs["data"]}, **_tables_of_some(texts))
    names = _names(naming[~number.duplicated()])
    names = names.where(names != "", labels.where(labels != "", runs["name"])[names.index])
    runs["run"] = runs["folder"].map(name_of)
    names = names.where(~names.duplicated(), names + ": " + runs["run"])
    runs.insert(0, "setting", number.map(dict(enumerate(names))))
    runs = pd.concat([runs, measured, DataFrame(jobs, dtype=object).add_prefix("job.")], axis=1)
    histories = [_history(member.folder, member.job) for member in begun]
    joined = pd.concat([DataFrame({"folder": []}, dtype=object), *histories], ignore_index=True)
    joined = joined.merge(runs[["folder", "run", "setting", "seed"]], on="folder", how="left")
    known = list(measured[runs["finished"]].dropna(axis=1, how="all"))
    return RunFrames(runs, joined, known, list(names), grid, waiting)


class _Member(NamedTuple):
    folder: Path
    label: str
    swept: Table  # by "table.key", of a point
    job: Table  # empty of one that has not begun


def _members(folder: Path) -> Iterator[_Member]:
    """A run, or the points of a sweep."""
    if not is_sweep(folder):
        if not (folder / JOB).exists():
            there = "no folder of a run, a sweep or data" if folder.is_dir() else f"no such folder{leads_to(folder)}"
            raise UsageError(f"{folder}: {there} (it has no {JOB}, and no sweep.csv)")
        yield _Member(folder, "", {}, job_of(folder))
        return
    for name, settings in point_settings(folder):
        job = job_of(folder / name)
        tables = {"": job} | {key: part for key, part in job.items() if isinstance(part, dict)}
        label, swept = str(settings.pop(LABEL, "")), {}
        for key, cell in settings.items():  # the value in the type that the job has
            table, _, inner = key.rpartition(".")
            swept[key] = tables.get(table, {}).get(inner, cell)
        swept.pop("seed", None)
        yield _Member(folder / name, label, swept, job)


def _keys(job: ReadOnlyTable) -> Table:
    """The settings of a job by "table.key", and "constraint.1.limit"."""
    lists = {
        key: {str(place): part for place, part in enumerate(value, 1)}
        for key, value in job.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    return dict(dotted({**job, **lists}))


def _row(member: _Member) -> tuple[Table, Table]:
    """(what a run is, the numbers that can be averaged)."""
    folder, job = member.folder, member.job
    begun = (folder / RUN).exists()
    epsilons = spent(folder) if begun else None
    about = summary(folder, epsilons) if begun else {}
    values: list[float | None] = about.get("constraint_values") or []
    limits = [constraint["limit"] for constraint in job.get("constraint", [])]
    met = [value <= limit for value, limit in zip(values, limits, strict=False) if value is not None]
    numbers = {name: value for name, value in about.items() if is_number(value) and name != "exit"}
    if epsilons is not None:
        name = "epsilon" if job["privacy"].get("noise", "secure") == "secure" else "epsilon_if_secret"
        numbers.setdefault(name, math.inf)
    numbers |= {f"constraint_{m}": value for m, value in enumerate(values, 1) if value is not None}
    if {"up_bytes", "down_bytes"} <= {*numbers}:
        numbers["bytes"] = numbers["up_bytes"] + numbers["down_bytes"]
    code = about.get("exit")
    end = meaning(code) + ("" if code is None else f" (exit {code})")
    objective = objective_of(job)
    return {
        "folder": folder,
        "name": str(job.get("name", "")),
        LABEL: member.label,
        "seed": job.get("seed", 1),
        "exit": math.nan if code is None else code,
        "end": end if begun else "ended before the first round",
        "finished": code in FINISHED,
        "ended": code in FINISHED or code == FAILED,
        "limits_met": all(met) if limits and len(met) == len(limits) == len(values) else None,
        "loss": objective[0],
        "objective_of": ", ".join(objective),
        "private": "privacy" in job,
        "model_sha256": about.get("model_sha256") or "",
        "swept": member.swept,
        "job": job,
        "data": (job.get("data") or {}).get("path", ""),
        "data_sha256": read_run(folder).get("data_sha256") if begun else None,  # None of private ones
        "warnings": run_warnings(folder, job) if begun else [],
    }, numbers


def _data(runs: DataFrame) -> Series:
    """What data each run had: the same wherever they lay, and others where they were made anew at one path."""
    digest = runs["data_sha256"]
    path = runs.groupby("data_sha256")["data"].transform("first").where(digest.notna(), runs["data"])
    last = path.map(lambda text: Path(text).name)
    short = last if last.nunique() == path.nunique() else path
    return short.where(digest.groupby(path).transform("nunique") < 2, short + " " + digest.fillna("").str[:12])


def _tables_of_some(texts: DataFrame) -> dict[str, Series]:
    """A column for each table that only some have, such as privacy."""
    tables = dict.fromkeys(key.partition(".")[0] for key in texts if "." in key)
    having = {table: (texts.filter(regex=rf"^{table}\.") != "").any(axis=1) for table in tables}
    return {
        f"{_HAS}{table}": has.map({True: table, False: f"no {table}"})
        for table, has in having.items()
        if has.nunique() > 1
    }


def _names(rows: DataFrame) -> Series:
    """What sets each row apart: names where these differ, then, among the rows of one name, other keys that do."""
    varying = [key for key in rows if rows[key].nunique() > 1]
    naming = [key for key in _NAMING if key in varying]
    naming += [key for key in varying if key.endswith(".name") or key.startswith(_HAS)]
    if naming:
        groups = [
            Series([", ".join(filter(None, (value.strip('"'), rest))) for rest in _names(group)], group.index)
            if value or naming[0] != LABEL  # a point that [sweep] no longer has has lost its label
            else _names(rows.drop(columns=naming[0]))[group.index]
            for value, group in rows.groupby(naming[0], sort=False)
        ]
        return pd.concat(groups).reindex(rows.index)
    short = Series({key: key.rpartition(".")[2] for key in varying})
    short = short.where(~short.duplicated(keep=False), varying)
    named = (", ".join(f"{short[key]} = {row[key]}" for key in varying if row[key]) for _, row in rows.iterrows())
    return Series(list(named), rows.index)


def _history(folder: Path, job: ReadOnlyTable) -> DataFrame:
    columns = history_so_far(folder)
    history = DataFrame({name: values.astype(np.float64) for name, values in columns.items()})
    if history.empty:
        return history
    history["bytes"] = history["up_bytes"] + history["down_bytes"]
    limits = {f"constraint_{m}": constraint["limit"] for m, constraint in enumerate(job.get("constraint", []), 1)}
    if limits and {*limits} <= {*history}:
        history["excess"] = (history[[*limits]] - Series(limits)).max(axis=1, skipna=False)
    return history.assign(folder=folder)


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def table_text(cells: DataFrame, width: int | None) -> str:
    """Rows of texts; where they are wider than the terminal, columns go on below."""
    return str(cells.rename_axis(index=None, columns=None).to_string(line_width=width, na_rep="")).rstrip()
