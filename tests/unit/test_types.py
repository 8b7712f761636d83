"""What mypy proves for authors: exchanges whose records fit each other, and classes of `mpifed.maths` as protocols."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from documents import blocks
from mypy import api
from package_sources import FILES, nodes

import mpifed

ROOT = Path(mpifed.__file__).parents[1]
PRELUDE = """
from typing import NamedTuple

from mpifed.algorithms.functions import Constraint
from mpifed.data.block import Block
from mpifed.algorithms.measure import Measure
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import Round
from mpifed.maths.objectives import Objective, Parameters
from mpifed.maths.problem import Problem, fields_like
from mpifed.maths.privacy.settings import Privacy
from mpifed.maths.regularizers import Regularizer
from mpifed.maths.terms import Term

class State(NamedTuple):
    model: Array

class Broadcast(NamedTuple):
    model: Array

class Other(NamedTuple):
    step: Array

class Upload(NamedTuple):
    change: Array

def ask(server: State, now: Round) -> Broadcast:
    return Broadcast(server.model)

def answer(clients: tuple[()], broadcast: Broadcast, block: Block, now: Round) -> tuple[tuple[()], Upload]:
    return clients, Upload(broadcast.model)

def absorb(server: State, total: Upload, now: Round) -> State:
    return State(server.model + total.change)

def ask_other(server: State, now: Round) -> Other:
    return Other(server.model)

def absorb_other(server: State, total: Other, now: Round) -> State:
    return State(total.step)

def keep(clients: State, total: Upload, block: Block, now: Round) -> State:
    return clients

def report(server: State, total: Upload, first: dict[str, object]) -> dict[str, float | None]:
    return {}
"""
RIGHT = [
    'def right() -> tuple[Exchange, ...]: return (Exchange("sum", Upload(fields), ask, answer, absorb),)',
    "def same(model: Parameters) -> Parameters: return map_leaves(abs, fields_like(model))",
    "def task(o: Objective, t: Term, r: Regularizer, p: Privacy, c: Constraint) -> Problem: "
    'return Problem(o, "rows", fields, 1, 1, 1, minimize=t, constraints=(c,), regularizer=r, privacy=p)',
]
WRONG = [
    'def broadcasts() -> tuple[Exchange, ...]: return (Exchange("a", Upload(fields), ask_other, answer, absorb),)',
    'def uploads() -> tuple[Exchange, ...]: return (Exchange("b", Upload(fields), ask, answer, absorb_other),)',
    'def forms() -> tuple[Exchange, ...]: return (Exchange("c", Other(fields), ask, answer, absorb),)',
    'def states() -> tuple[Exchange, ...]: return (Exchange("d", Upload(fields), ask, answer, hear=keep),)',
    "def measures() -> tuple[Measure, ...]: return (Measure((), lambda server: server, lambda a, b: {}),)",
    "def other(model: Parameters) -> State: return map_leaves(abs, model)",
]


@pytest.mark.long  # mypy reads the package and its libraries
def test_records_of_an_exchange_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    lines = [*PRELUDE.splitlines(), "fields: Array", *RIGHT, *WRONG]
    (tmp_path / "algorithm.py").write_text("\n".join(lines))
    # by the settings of `make check`, strict: either finds the cache of the other, which saves some seconds
    settings = ["--cache-dir", str(ROOT / ".mypy_cache"), "--config-file", str(ROOT / "setup.cfg")]
    out, trouble, _ = api.run([*settings, str(tmp_path / "algorithm.py")])
    found = {int(line.split(":")[1]) for line in out.splitlines() if "algorithm.py:" in line and " error: " in line}
    assert found == set(range(len(lines) - len(WRONG) + 1, len(lines) + 1)), out + trouble


@pytest.mark.long
def test_tutorials_are_typed(tmp_path: Path) -> None:
    """`mypy --strict` over the classes that the tutorial has its readers write; it reads `jobs/examples` as well."""
    written = [block.text for block in blocks(ROOT / "docs/tutorials/write-an-algorithm.md", "python")]
    files = [tmp_path / f"page_{i}.py" for i, text in enumerate(written) if "\nclass " in text]
    for path in files:
        path.write_text(written[int(path.stem.removeprefix("page_"))])
    settings = ["--cache-dir", str(ROOT / ".mypy_cache"), "--config-file", str(ROOT / "setup.cfg")]
    out, trouble, code = api.run([*settings, *map(str, files)])
    assert len(files) >= 2 and code == 0, out + trouble


def test_few_types_are_any_and_each_says_why() -> None:
    """In a comment on its line or above it, or in the docstring of its module."""
    count = 0
    for path in FILES:
        lines = (ROOT / "mpifed" / path).read_text(encoding="utf-8").splitlines()
        places = [node.lineno for node in nodes(path) if isinstance(node, ast.Name) and node.id == "Any"]
        count += len(places)
        (module, *_) = nodes(path)
        assert isinstance(module, ast.Module)
        if "Any" in (ast.get_docstring(module) or ""):
            continue
        silent = [n for n in places if "  # " not in lines[n - 1] and not lines[n - 2].strip().startswith("#")]
        assert not silent, f"{path.name}: lines {silent}"
    assert 0 < count <= 150
