"""`mpifed new`: the text of a job with every key that its algorithm and model read, each with its meaning."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from mpifed.algorithms import ALGORITHMS
from mpifed.core.contract import own_class, own_module
from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.core.text import shown, wrong_name
from mpifed.data import store
from mpifed.explain.answers import plain_text
from mpifed.explain.entries import Explanation, Key, entries, entry_of, own_entry
from mpifed.explain.step_sizes import curvature, learning_rate, tau
from mpifed.job.job import Job
from mpifed.job.schema import ALGORITHM, CLIENT, MODEL, SERVER
from mpifed.job.settings import Kind, tables_in

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_WIDTH = 120  # characters of a comment
_BATCH, _ROUNDS = 32, 100
_FIRST_MODEL = {"hyfdca": "hinge", "cocoa": "hinge", "bundle": "hinge"}  # two classes; others: softmax
_L2 = {"hyfdca": "0.001", "cocoa": "0.001", "bundle": "0.001"}  # their duals need it
# values of keys that have no default, by table and key
_VALUES = {
    "algorithm.mu": "0.01", "algorithm.rho": "1.0", "model.build": '"my_module:build"',
}  # fmt: skip


_SWITCHES = ("privacy", "simulated_network")  # tables that change a run by being there


class _Data(NamedTuple):
    """What a job depends on of its data."""

    path: str
    smallest: int  # rows of the smallest shard
    classes: int | None  # 0 of a regression; None where there are no data yet
    rate: str = "0.1"  # a learning rate
    tau: str = ""  # SSCA's; empty where its default does


def new_job(name: str, algorithm: str, data: str, model: str | None = None) -> str:
    """The text of a job that runs as it is, once its data are there.

    Parameters
    ----------
    name : of the job
    algorithm, model : names that a job can give, also "module:Class"; by default a model for this algorithm and data
    data : folder that `mpifed data` made, or is to make

    Raises
    ------
    UsageError
        when there is no such algorithm or model, or they do not go together.
    """
    known = {(entry.kind, entry.name): entry for entry in entries()}
    facts = _facts(data)
    model = model or ("least-squares" if facts.classes == 0 else _FIRST_MODEL.get(algorithm, "softmax"))
    method = _named(ALGORITHM, "algorithm", algorithm, known)
    text = "\n".join(_lines(name, method, _named(MODEL, "model", model, known), facts, known)) + "\n"
    Job.check(tomllib.loads(text), "new job")
    return text


def _facts(path: str) -> _Data:
    if not (Path(path) / store.ABOUT).exists():
        return _Data(path, _BATCH, None)
    data = store.open_federation(path)
    smallest, classes = int(data.counts.min()), int(data.classes or 0)
    curved = curvature(data, min(_BATCH, smallest))
    return _Data(path, smallest, classes, learning_rate(curved), tau(curved, classes))


def _named(
    kind: Kind[Any],  # of any class
    table: str,
    name: str,
    known: dict[tuple[str, str], Explanation],
) -> Explanation:
    """The entry of an algorithm or a model."""
    if own_module(name) is not None:
        own_class(name, kind.base, f'[{table}] name = "{name}"')
        return own_entry(name)
    if (table, name) not in known:
        meant = nearest(name, kind.known)
        raise UsageError(f"--{table} {shown(name)}: is not known{meant}; give one of {', '.join(kind.known)}")
    return known[table, name]


def _lines(
    name: str, method: Explanation, model: Explanation, data: _Data, known: dict[tuple[str, str], Explanation]
) -> Iterator[str]:
    yield f"# {method.name}, on {model.name}. `mpifed check` says what it sends, `mpifed run` runs it."
    yield "# A key behind a # without a space has its default; take the # away to change it."
    yield "# `mpifed explain NAME` says more of a key, a table, an algorithm or a model."
    values = {"name": json.dumps(name, ensure_ascii=False), "rounds": str(_ROUNDS)}
    yield from _keys([key for key in known["job", "job"].keys if "table" not in key.type], values)
    yield from _table(known["table", "data"], {"path": json.dumps(data.path, ensure_ascii=False)})
    yield from _part("model", model, _given("model", model, data, {"l2": _L2.get(method.name, "")}))
    tau_of = {"tau": data.tau} if method.name == "ssca" else {}
    yield from _part("algorithm", method, _given("algorithm", method, data, tau_of))
    for marked in (CLIENT, SERVER):
        if (optimizer := marked.of(ALGORITHM.part(method.name))) is not None:
            entry = entry_of("table", marked.table, optimizer.known["sgd"])
            yield from _table(entry, _given(marked.table, entry, data, {}))
    kind: Any = ALGORITHMS.get(method.name)  # of a class, whose properties have no values
    if kind is not None and kind.constrained is True:
        yield from _choice("[minimize]", "What is minimized", "loss")
        yield from _choice("[[constraint]]", "A bound on a term, as often as there are bounds", "norm", ("limit",))
    if kind is not None and kind.regularized is True:
        yield from _choice("[regularizer]", "A penalty or a set, by its proximal operator", "l1", ("weight",))
    private = kind is None or kind.accounts()
    for table in tables_in(Job):
        if table != "data" and (private or table != "privacy"):
            yield from _table(known["table", table], {}, off=table in _SWITCHES)
    yield from _choice("[[observe]]", "Who gets each measured row, as often as there are observers", "tensorboard")


def _given(table: str, entry: Explanation, data: _Data, more: dict[str, str]) -> dict[str, str]:
    """The values of an entry's keys that a job has to give, and `more` of those that it has."""
    values = {"batch_size": str(min(_BATCH, data.smallest)), "learning_rate": data.rate}
    required = [key for key in entry.keys if not key.default]
    given = {key.name: values.get(key.name) or _VALUES.get(f"{table}.{key.name}") or _example(key) for key in required}
    return given | {key.name: more[key.name] for key in entry.keys if more.get(key.name)}


def _example(key: Key) -> str:
    """A value of a key of the user's own class, from its type."""
    for start, value in (
        ("an integer", "1"),
        ("true", "false"),
        ("[", "[0.9, 0.51]"),
        ("a list", "[]"),
        ("text", '""'),
    ):
        if key.type.startswith(start):
            return value
    if key.type.startswith('"'):
        return key.type.partition(" or ")[0]
    return "0.5" if re.search(r"<=? 1\b", key.type) else "1.0"


def _table(entry: Explanation, values: dict[str, str], off: bool = False) -> Iterator[str]:
    yield ""
    yield from _comment(entry.text.partition("\n\n")[0])
    yield f"{'#' * off}[{entry.name}]"
    yield from _keys(entry.keys, values)


def _part(table: str, entry: Explanation, values: dict[str, str]) -> Iterator[str]:
    yield ""
    yield from _comment(entry.text.partition("\n\n")[0])
    yield f"[{table}]"
    yield f"name = {json.dumps(entry.name)}"
    yield from _keys(entry.keys, values)


def _choice(table: str, text: str, name: str, keys: tuple[str, ...] = ()) -> Iterator[str]:
    """A table of which there are several kinds, behind #."""
    yield ""
    yield from _comment(f"{text}; `mpifed explain {table.strip('[]')}` lists what there is.")
    yield f"#{table}"
    yield f'#name = "{name}"'
    yield from (f"#{key} =" for key in keys)


def _keys(keys: Iterable[Key], values: dict[str, str]) -> Iterator[str]:
    for key in keys:
        absent = key.default in ("", "absent")
        yield from _comment(f"{key.meaning} ({key.type}{'; absent by default' if key.default == 'absent' else ''})")
        if key.name in values:
            yield f"{key.name} = {values[key.name]}"
        else:
            yield f"#{key.name} ={'' if absent else ' ' + key.default}"


def _comment(text: str) -> Iterator[str]:
    yield from wrap(
        " ".join(plain_text(text).split()), _WIDTH, initial_indent="# ", subsequent_indent="#   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def name_for(path: Path | None, algorithm: str) -> str:
    """The name of a job, from its file's, else from its algorithm's."""
    stem = path.stem if path is not None else ""
    return stem if stem and wrong_name(stem) is None else algorithm.rpartition(":")[2]
