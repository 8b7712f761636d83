"""Settings are read in one way, from whatever face: objects, tables and files say the same, and so do their errors."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_in_python import in_text, job_table
from package_sources import FILES, nodes

import mpifed as mf
from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.job.schema import ALGORITHM, CLIENT, SERVER
from mpifed.job.settings import key_of
from mpifed.maths.adaptive import CLIENT_OPTIMIZERS, SERVER_OPTIMIZERS
from mpifed.maths.objectives import OBJECTIVES
from mpifed.maths.optimizers import ClientOptimizer, ServerOptimizer
from mpifed.maths.regularizers import REGULARIZERS
from mpifed.maths.terms import TERMS
from mpifed.observers import OBSERVERS
from mpifed.python.calls import job as described
from mpifed.testing import ALGORITHMS, Job

# the tables that name a class of a registry
REGISTRIES: dict[str, Any] = {
    "algorithm": ALGORITHMS, "model": OBJECTIVES, "minimize": TERMS, "constraint": TERMS, "regularizer": REGULARIZERS,
    "server_optimizer": SERVER_OPTIMIZERS, "observe": OBSERVERS,
}  # fmt: skip
EVERY = [(table, name) for table, known in REGISTRIES.items() for name in known]
SPLITS = ("rows", "columns", "grid")
AVERAGING = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1))


# --- objects of every class -------------------------------------------------------------------------------------------


def objects(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Objects of a class of settings, with values that its annotations allow."""
    hints, given_values = get_type_hints(kind, localns={"Problem": object}, include_extras=True), {}
    for field in fields(kind):
        if field.name not in ("problem", "name"):
            of_type = st.from_type(hints[field.name])
            given_values[field.name] = of_type if field.default is MISSING else st.just(field.default) | of_type
    return st.builds(kind, **given_values)


st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(str, st.text("abc. é'\"\\", max_size=5))
st.register_type_strategy(ClientOptimizer, st.one_of(list(map(objects, CLIENT_OPTIMIZERS.values()))))
st.register_type_strategy(ServerOptimizer, st.one_of(list(map(objects, SERVER_OPTIMIZERS.values()))))


def in_a_job(table: str, part: Any) -> dict[str, Any]:
    """The tables that Python makes of a call with this object in one place."""
    taken: dict[str, Any] = {"algorithm": AVERAGING, "model": mf.Softmax(), "rounds": 3}
    if table == "server_optimizer":
        taken["algorithm"] = replace(AVERAGING, server_optimizer=part)
    elif table == "constraint":
        taken |= {"algorithm": mf.SSCA(batch_size=4), "constraints": [mf.constraint(part, 0.5, margin=0.25)]}
    elif table == "observe":
        taken["observers"] = [part]
    else:
        taken[table] = part
    return described(taken.pop("algorithm"), "data", taken.pop("model"), **taken)


def made_by(job: Job, table: str, kind: type[Any]) -> Any:
    """The object that a job makes in one place."""
    if table in ("algorithm", "server_optimizer"):
        optimizers = {}
        for marked, part in ((CLIENT, job.client_optimizer), (SERVER, job.server_optimizer)):
            if part and (known := marked.of(job.method)):
                optimizers[marked.table] = known.make(part)
        split = next((split for split in SPLITS if job.method.for_split(split) is kind), "rows")
        found: Any = ALGORITHM.make(job.algorithm, split, **optimizers)
        return found if table == "algorithm" else found.server_optimizer
    makers = {
        "model": job.make_objective, "minimize": job.make_minimize, "regularizer": job.make_regularizer,
        "constraint": lambda: job.make_constraints()[0].term, "observe": lambda: job.make_observers()[0],
    }  # fmt: skip
    return makers[table]()


@pytest.mark.parametrize(("table", "name"), EVERY)
def test_an_object_its_table_and_its_file_say_the_same(table: str, name: str) -> None:
    kind = REGISTRIES[table][name]
    if table == "algorithm":
        kind = next(part for part in map(kind.for_split, SPLITS) if not inspect.isabstract(part))

    @settings(max_examples=10)
    @given(objects(kind))
    def holds(part: Any) -> None:
        job = Job.check(in_a_job(table, part))
        again = Job.check(in_text(job.text()))
        assert again.text() == job.text() and again.table() == job.table() and Job.check(again.table()) == again
        if getattr(part, "bias", True) is None:  # which the algorithm says
            part = replace(part, bias=True)
        assert made_by(again, table, kind) == part

    holds()


# --- errors -----------------------------------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "model": mf.MLP(hidden=-1, l2="0"),  # type: ignore[arg-type]
    "algorithm": mf.FedAvg(
        batch_size=True, local_steps=0,
        client_optimizer=mf.SGD(mf.StepDecay(-1.0, factor=2.0, every=1)), server_optimizer=mf.ServerAdam(beta1=1.0),
    ),
    "rounds": 2.5, "seed": -1, "minimize": mf.Loss(classes=(0.5,)),  # type: ignore[arg-type]
    "constraints": [mf.constraint(mf.Norm(), "low")],  # type: ignore[arg-type]
    "regularizer": mf.L1(-1.0), "observers": [{"name": "tensorbord"}],
    "record": mf.Record(evaluate_every=-1), "aggregation": {"securty": "masked"}, "privacy": mf.Privacy(delta=1.0),
    "stop": mf.Stop(seconds="1"),  # type: ignore[arg-type]
}  # fmt: skip
KEYS = [
    "rounds", "model.l2", "model.hidden", "algorithm.batch_size", "algorithm.local_steps",
    "client_optimizer.learning_rate.initial", "client_optimizer.learning_rate.factor", "server_optimizer.beta1",
    "minimize.classes 1", "constraint 1.limit", "regularizer.weight", "seed", "aggregation.securty",
    "record.evaluate_every", "stop.seconds", "privacy.delta", "observe 1.name",
]  # fmt: skip


def said(text: str) -> list[tuple[str, str]]:
    """(key, what is wrong with it) of each error of a message."""
    found = []
    for line in text.splitlines()[1:]:
        where, _, what = line.strip().partition(": ")
        key = re.sub(r"\[(\d+)\]", lambda m: f" {int(m[1]) + 1}", where.partition(" = ")[0])  # of Python, from 0
        found.append((re.sub(r"^\[(.+)\] ", r"\1.", key).replace(", value", ""), what))
    return found


def test_both_faces_tell_the_same_errors_at_once(tmp_path: Path) -> None:
    more = {name: value for name, value in WRONG.items() if name not in ("model", "algorithm")}
    table = described(WRONG["algorithm"], "data", WRONG["model"], **more)
    (tmp_path / "job.toml").write_text(tomli_w.dumps(table))
    with pytest.raises(UsageError) as of_file:
        Job.read(tmp_path / "job.toml")
    with pytest.raises(UsageError) as of_call:
        mf.check(data="data", **WRONG)
    assert sorted(said(str(of_file.value))) == sorted(said(str(of_call.value)))
    assert sorted(key for key, _ in said(str(of_file.value))) == sorted(KEYS)
    assert "[algorithm] batch_size = true: expected an integer" in str(of_file.value)
    assert "algorithm.batch_size = True: expected an integer" in str(of_call.value)


def test_a_mark_of_the_byte_order_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b"\xef\xbb\xbf" + tomli_w.dumps(job_table() | {"algorithm": {}}).encode())
    with pytest.raises(UsageError, match=r"\[algorithm\] name: missing"):
        Job.read(tmp_path / "job.toml")


# --- the schema -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> Any:
    """What `mpifed explain --json-schema` prints."""
    return json.loads(CliRunner().invoke(main, ["explain", "--json-schema"]).output)


def keys_of(schema: Any, part: Any) -> dict[str, Any]:
    """All keys that a table may have, by name."""
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    forms = [
        *part.get("anyOf", ()),
        *part.get("allOf", ()),
        *(part[name] for name in ("then", "items") if name in part),
    ]
    return {key: value for form in forms for key, value in keys_of(schema, form).items()} | part.get("properties", {})


@pytest.mark.parametrize(("table", "name"), EVERY)
def test_an_editor_learns_every_key_of_every_class(table: str, name: str, schema: Any) -> None:
    known = keys_of(schema, schema["properties"][table])
    own = [key_of(field) for field in fields(REGISTRIES[table][name]) if field.name != "problem"]
    for key in own:
        described_key = known.get(key) or schema["properties"][key]  # an optimizer is a table of its own
        assert len(described_key["description"]) > 8, key


def literals() -> Iterator[tuple[str, str, str, bool]]:
    """(file, table, key, whether it must be one) of what texts of the package say of keys, as files write them."""
    for path in FILES:
        for node in nodes(path):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
            for table, key, after in re.findall(r"\[([a-z_]+)\]+ ([a-z_0-9]+)( = |:|, [a-z_]+:|)", text):
                yield str(path), table, key, bool(after)


def test_every_key_that_a_message_names_is_there(schema: Any) -> None:
    tables = {name: keys_of(schema, part) | {"name": 0} for name, part in schema["properties"].items()}
    tables["run"] = {}  # which there was once
    known = {key for keys in tables.values() for key in keys}
    named = {each for each in literals() if each[1] in tables and (each[3] or each[2] in known)}
    assert len(named) > 100
    assert {each for each in named if each[2] not in tables[each[1]]} == set()
