"""Mutated and made-up job files: `show`, `run` and `submit` end with one message, whatever stands in them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import date, datetime, time, timezone
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
import tomli_w
from fuzzing import Ended, check, ended, examples, mutated, seeds
from hypothesis import given
from hypothesis import strategies as st
from laws.registry import CASES, Case, table
from methods import private

from mpifed import SGD, Privacy, ServerSGD
from mpifed.job.settings import tables_in
from mpifed.maths.objectives import OBJECTIVES
from mpifed.maths.optimizers import OPTIMIZERS
from mpifed.maths.regularizers import REGULARIZERS
from mpifed.maths.terms import TERMS
from mpifed.testing import ALGORITHMS, Job

pytestmark = pytest.mark.long

_number = itertools.count()
SPLITS = {
    "rows": ("rows", "multiclass"), "columns": ("columns", "multiclass"), "halves": ("rows", "even-odd"),
    "cells": ("grid", "even-odd"),
}  # fmt: skip


class Area(NamedTuple):
    """Where commands are tried."""

    folder: Path
    data: dict[str, Path]  # by split

    def call(self, content: bytes, command: str, *arguments: object) -> Ended:
        """How a command with this job file ends."""
        number = next(_number)
        job = self.folder / f"job-{number}.toml"
        job.write_bytes(content)
        return ended([command, job.name, *arguments], self.folder)


@pytest.fixture(scope="module")
def area(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Iterator[Area]:
    folder, data = tmp_path_factory.mktemp("jobs"), {}
    for name, (split, labels) in SPLITS.items():
        held = ["--grid", "2x2"] if split == "grid" else ["--clients", "4"]
        more = ["--labels", "even-odd", "--scale", "unit-rows"] if labels == "even-odd" else []
        data[name] = make_data(folder / name, "digits", "--split", split, *held, *more, "--test-fraction", "0.2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder))  # without Slurm
        yield Area(folder, data)


# --- values that a reader of jobs may stumble over --------------------------------------------------------------

INTEGERS = [
    0, 1, 2, 3, 7, -1, 10**3, 10**5, 10**6, 10**9, 2**31, 2**32 + 1, 10**12, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30,
    10**400, -(10**400),
]  # fmt: skip
FLOATS = [
    0.0, -0.0, 5e-324, 1e-300, 1e-38, 1e-12, 0.5, 1.0, 3.0, 1e3, 1e8, 1e15, 3.4e38, 3.5e38, 1e100, 1e300, 1.7e308,
    float("inf"), float("-inf"), float("nan"), -1.0,
]  # fmt: skip
TEXTS = [
    "", " ", "a", "A b", "é", "\U0001f600", "x" * 300, ".", "..", "../../x", "/", "/abs/olute", "a/b", "-x",
    "--wrap=id", "a\nb", "a\n#SBATCH --wrap=id", "a\rb", "a\tb", "a\x1b[31mb", "a\x7f", "a\u2028b", "a\u0085b",
    "a\0b", "#", '"', "'", "$(id)", "`id`", "%j", "%s%n", "{x}", "nan", "1", "true", "auto", "loss", "norm",
    "no_such_module:Class", ":", "os:", ":x", "os:system", "json:JSONDecoder", "a:b:c", "..os:x", "os.:x", "os\0:x",
    "mpifed.algorithms.fedavg:FedAvg", "mpifed.maths.terms:Norm", "mpifed.maths.objectives:Softmax",
    "dataclasses:Field", "fractions:Fraction", *OBJECTIVES, *ALGORITHMS, *TERMS, *REGULARIZERS,
]  # fmt: skip
TIMES = [date(2024, 1, 1), datetime(1, 1, 1, tzinfo=timezone.utc), time(23, 59, 59, 1)]
simple = st.one_of(
    st.sampled_from(INTEGERS), st.sampled_from(FLOATS), st.sampled_from(TEXTS), st.sampled_from(TIMES), st.booleans(),
    st.floats(), st.text(max_size=8),
)  # fmt: skip
keys = st.sampled_from(["name", "a", "x y", "a.b", "", "é", "\n", "limit", "problem", "x" * 200, "__class__", "self"])
values: st.SearchStrategy[Any] = st.one_of(
    st.recursive(
        simple, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
    ),
    st.sampled_from([2, 15, 60]).map(lambda depth: _nested(depth)),
)


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


CLASSES: dict[str, Any] = {"privacy": Privacy, "client_optimizer": SGD, "server_optimizer": ServerSGD}
PARTS = {"model": OBJECTIVES, "algorithm": ALGORITHMS, "minimize": TERMS, "regularizer": REGULARIZERS}
MORE: dict[str, Any] = {
    "regularizer": {"name": "l1", "weight": 1e-3}, "simulated_network": {"name": "lte"},
    "stop": {"reached": ["kkt_residual<=1e-2"]},
    "participation": {"clients_per_round": 3}, "sweep": {"seeds": 2}, "constraint": [{"name": "loss", "limit": 1.5}],
    "server": {"dedicated": True}, "compute": {"dtype": "float64"}, **private(),
}  # fmt: skip


def fields_of(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """The keys that a table of a job knows, and their types."""
    if name in PARTS or name == "constraint":
        known = PARTS.get(name, TERMS)
        chosen = table.get("name")
        kind: Any = known[chosen if isinstance(chosen, str) and chosen in known else next(iter(known))]
        beside = {"limit": float, "margin": float} if name == "constraint" else {}
        hints = get_type_hints(kind, localns={"Problem": object}, include_extras=True)
        names = [field.name for field in fields(kind) if field.name not in ("problem", *OPTIMIZERS)]
        return {"name": str, **{key: hints[key] for key in names}, **beside}
    if name in CLASSES:
        hints = get_type_hints(CLASSES[name], localns={"Problem": object}, include_extras=True)
        return {field.name: hints[field.name] for field in fields(CLASSES[name])}
    if name == "sweep":
        return {
            "seeds": int,
            "seed": list[int],
            "algorithm.batch_size": list[int],
            "rounds": list[int],
            "name": list[str],
        }
    if name in OPTIMIZERS:
        return {"name": str, **get_type_hints(SGD if name == "client_optimizer" else ServerSGD, include_extras=True)}
    return get_type_hints(tables_in(Job)[name], include_extras=True)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, extreme ones among them."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return of_type(inner[0])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.one_of([of_type(one) for one in inner if one is not type(None)])
    if origin in (list, tuple):
        return st.lists(of_type(inner[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.sampled_from(["changes", "changes.value", "statistics.value"]), of_type(float))
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.sampled_from(INTEGERS) | st.integers(-2, 40)
    if hint is float:
        return st.sampled_from(FLOATS) | st.floats(0, 10)
    if hint is str:
        return st.sampled_from(TEXTS)
    if hasattr(hint, "_fields"):
        return st.lists(of_type(float), min_size=1, max_size=len(hint._fields))
    return values


@st.composite
def tables(draw: st.DrawFn, data: dict[str, Path], typed: bool) -> dict[str, Any]:
    """A job with one to three keys that hold something else, of their own type if `typed`."""
    case: Case = draw(st.sampled_from(CASES))
    found = table(Path(data[case.split].name), case.algorithm, **(case.tables | {"rounds": 2}))
    for key in draw(st.lists(st.sampled_from(sorted(MORE)), max_size=1)):
        found[key] = MORE[key]
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted({*found, *MORE, "audit", "seed"})))
        inner = found.get(name)
        if name in ("name", "rounds", "seed") or (not typed and draw(st.integers(0, 3)) == 0):
            found[name] = draw(of_type({"name": str}.get(name, int)) if typed else values)
            continue
        inner = inner if isinstance(inner, (dict, list)) and inner else MORE.get(name, {})
        inner = inner[0] if isinstance(inner, list) else inner
        inner = inner if isinstance(inner, dict) else {}
        known = fields_of(name, inner)
        key = draw(st.sampled_from(sorted(known)))
        value = draw(of_type(known[key]) if typed else values)
        found[name] = [{**inner, key: value}] if name == "constraint" else {**inner, key: value}
    if "privacy" in found:  # whose epsilon is of every single round: what is right and long takes long
        found["rounds"] = _few(found["rounds"])
        sweep = found.get("sweep")
        if isinstance(sweep, dict) and isinstance(sweep.get("rounds"), list):
            sweep["rounds"] = [_few(one) for one in sweep["rounds"]]
    return found


def _few(rounds: Any) -> Any:
    return 50 if isinstance(rounds, int) and 50 < rounds < 10**8 else rounds


def jobs(data: dict[str, Path]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly of the right types: what gets further than to the checks."""
    return tables(data, True) | tables(data, True) | tables(data, True) | tables(data, False)


def test_damaged_job_files(area: Area) -> None:
    @examples(6)
    @given(st.sampled_from(CASES), seeds, st.sampled_from(["check", "submit"]))
    def damaged(case: Case, seed: int, command: str) -> None:
        job = table(Path(area.data[case.split].name), case.algorithm, **(case.tables | {"rounds": 2}))
        options = {"check": ["--json"], "submit": ["--dry-run", "--time", "30"]}[command]
        check(area.call(mutated(tomli_w.dumps(job).encode(), seed), command, *options))

    damaged()


def test_made_up_jobs_are_shown(area: Area) -> None:
    @examples(6)
    @given(jobs(area.data))
    def shown(job: dict[str, Any]) -> None:
        end = area.call(tomli_w.dumps(job).encode(), "check", "--json")
        check(end)
        if end.code == 0 and not end.text.startswith("Imports"):
            json.loads(end.text)

    shown()


def test_made_up_jobs_are_run(area: Area) -> None:
    @examples(6)
    @given(jobs(area.data))
    def ran(job: dict[str, Any]) -> None:
        job.pop("sweep", None)  # whose points end one by one
        for table_, key in ((one, key) for one in job.values() if isinstance(one, dict) for key in one):
            if isinstance(table_[key], int) and 100 < table_[key] < 2**53:
                table_[key] = 100  # what is right and large takes long
        out = f"run-{next(_number)}"
        limits = ["--set", "rounds=2", "--set", "stop.seconds=2"]
        check(area.call(tomli_w.dumps(job).encode(), "run", "--out", out, "--progress", "none", *limits))

    ran()
