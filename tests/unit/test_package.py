"""What the sources may not have, what commands load, what mypy proves for authors; imports: `lint-imports`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT, blocks
from mypy import api
from package_sources import FILES, nodes

# --- no file that somebody is given may execute code when mpifed reads it ----------------------------------------

MODULES = {"joblib", "shelve", "marshal", "dill", "cloudpickle", "yaml", "jsonpickle", "dbm", "runpy", "code", "imp"}
CALLS = {"eval", "exec", "execfile", "__import__"}
# torch.load may unpickle, np.load where it is not forbidden, and so does what scikit-learn keeps of its downloads
NAMES = {"Unpickler", "read_pickle", "fromregex", "extractall", "unpack_archive", "exec_module"}
LOADERS = {"pickle", "np", "numpy", "torch", "cupy", "pd", "pandas"}
LOADS = {"load", "loads"}
PLAIN = "np.load(path, allow_pickle=False)"


def executing(source: Iterable[ast.AST]) -> Iterator[str]:
    """What in a source may execute what a file holds."""
    whole = list(source)
    calls = [node for node in whole if isinstance(node, ast.Call) and ast.unparse(node) == PLAIN]
    plain = [inner for call in calls for inner in ast.walk(call)]
    for node in whole:
        if node in plain:
            continue
        match node:
            case ast.Import(names):
                yield from (each.name for each in names if each.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module, names):
                named = {each.name for each in names}
                yield from {(module or "").partition(".")[0]} & MODULES
                yield from named & (NAMES | LOADS if module in LOADERS else NAMES)
                yield from (name for name in named if name.startswith("fetch_"))
            case ast.Attribute(ast.Name(whose), name) if whose in LOADERS and name in LOADS:
                yield name
            case ast.Attribute(_, name) if name in NAMES or name.startswith("fetch_"):
                yield name
            case ast.Call(ast.Name(name)) if name in CALLS:
                yield name
            case ast.keyword("allow_pickle"):
                yield "allow_pickle"


def test_nothing_executes_what_a_file_holds() -> None:
    assert {str(path): found for path in FILES if (found := list(executing(nodes(path))))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import joblib", "from joblib import load", "pickle.loads(b'')", "from pickle import loads", "np.load('x')",
        "np.load('x', allow_pickle=True)", "np.load(path, allow_pickle=flag)", "load = np.load", f"{PLAIN}\nnp.load(p)",
        "torch.load('x')", "pickle.Unpickler(f)", "from yaml import load", "eval('x')", "exec('x')",
        "datasets.fetch_covtype()", "from sklearn.datasets import fetch_covtype", "tar.extractall('x')",
        "def f():\n    import shelve",
    ],
)  # fmt: skip
def test_it_would_be_found(source: str) -> None:
    assert list(executing(ast.walk(ast.parse(source))))
    assert not list(executing(ast.walk(ast.parse(PLAIN))))


# --- names and types ---------------------------------------------------------------------------------------------


def test_no_two_classes_share_a_name() -> None:
    names = Counter(node.name for path in FILES for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert max(names.values()) == 1, names.most_common(3)


def test_few_types_are_any_and_each_says_why() -> None:
    """In a comment on its line or above it, or in the docstring of its module."""
    count = 0
    for path in FILES:
        lines = (ROOT / "mpifed" / path).read_text(encoding="utf-8").splitlines()
        places = [node.lineno for node in nodes(path) if isinstance(node, ast.Name) and node.id == "Any"]
        count += len(places)
        (module, *_) = nodes(path)
        assert isinstance(module, ast.Module)
        if "Any" not in (ast.get_docstring(module) or ""):
            silent = [n for n in places if "  # " not in lines[n - 1] and not lines[n - 2].strip().startswith("#")]
            assert not silent, f"{path.name}: lines {silent}"
    assert 0 < count <= 150


EXCHANGES = """
from typing import NamedTuple

from mpifed.algorithms.measure import Measure
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.problem import fields_like

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

def ask_other(server: State, now: Round) -> Other:
    return Other(server.model)

def answer(clients: tuple[()], broadcast: Broadcast, block: Block, now: Round) -> tuple[tuple[()], Upload]:
    return clients, Upload(broadcast.model)

def absorb(server: State, total: Upload, now: Round) -> State:
    return State(server.model + total.change)

def absorb_other(server: State, total: Other, now: Round) -> State:
    return State(total.step)

def keep(clients: State, total: Upload, block: Block, now: Round) -> State:
    return clients

fields: Array
def right() -> tuple[Exchange, ...]: return (Exchange("sum", Upload(fields), ask, answer, absorb),)
def same(model: Parameters) -> Parameters: return map_leaves(abs, fields_like(model))
"""
WRONG = [
    'def broadcasts() -> tuple[Exchange, ...]: return (Exchange("a", Upload(fields), ask_other, answer, absorb),)',
    'def uploads() -> tuple[Exchange, ...]: return (Exchange("b", Upload(fields), ask, answer, absorb_other),)',
    'def forms() -> tuple[Exchange, ...]: return (Exchange("c", Other(fields), ask, answer, absorb),)',
    'def states() -> tuple[Exchange, ...]: return (Exchange("d", Upload(fields), ask, answer, hear=keep),)',
    "def measures() -> tuple[Measure, ...]: return (Measure((), lambda server: server, lambda a, b: {}),)",
    "def other(model: Parameters) -> State: return map_leaves(abs, model)",
]


@pytest.mark.long  # mypy reads the package and its libraries
def test_types_prove_that_records_fit_and_the_tutorials_classes_have_them(tmp_path: Path) -> None:
    """`mypy --strict` over exchanges, and over what a tutorial has its readers write."""
    lines = [*EXCHANGES.splitlines(), *WRONG]
    (tmp_path / "algorithm.py").write_text("\n".join(lines))
    written = [block.text for block in blocks(ROOT / "docs/tutorials/write-a-method.ipynb", "python")]
    pages = [text for text in written if "\nclass " in text]
    for number, text in enumerate(pages):
        (tmp_path / f"page_{number}.py").write_text(text)
    # by the settings of `make check`: either finds the cache of the other, which saves some seconds
    settings = ["--cache-dir", str(ROOT / ".mypy_cache"), "--config-file", str(ROOT / "setup.cfg")]
    out, trouble, _ = api.run([*settings, *map(str, sorted(tmp_path.glob("*.py")))])
    told = [line.split(":") for line in out.splitlines() if " error: " in line]
    first = len(lines) - len(WRONG) + 1
    assert pages and {int(number) for _, number, *_ in told} == {*range(first, len(lines) + 1)}, out + trouble
    assert {Path(path).name for path, *_ in told} == {"algorithm.py"}


# --- what a command loads ----------------------------------------------------------------------------------------

PROBE = """
import json, sys
from mpifed.cli import main
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as end:
        assert not end.code, command
print(json.dumps(sorted(sys.modules)))
"""


def loaded(*commands: list[object]) -> set[str]:
    """The modules that are loaded after commands, in one process."""
    words = [sys.executable, "-c", PROBE, json.dumps(commands, default=str)]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return set(json.loads(ended.stdout.splitlines()[-1]))


HEAVY = {"scipy", "h5py", "mpi4py", "pydantic", "sklearn", "matplotlib", "pandas", "rich"}


def test_help_loads_next_to_nothing() -> None:
    """Texts of sources of data are those of their classes, which need NumPy."""
    names = ("run", "check", "show", "compare", "explain", "plot", "submit", "doctor")
    assert not (HEAVY | {"numpy"}) & loaded(["--help"], ["--version"], *([name, "--help"] for name in names))
    assert not HEAVY & loaded(["data", "--help"], ["data", "csv", "--help"])


@pytest.fixture
def job(tmp_path: Path, write_job: Callable[..., Path]) -> Path:
    made = "synthetic --split rows --clients 4 --out"
    loaded(["data", *made.split(), tmp_path / "data"])
    return write_job(tmp_path / "job.toml", {
        "name": "loads", "rounds": 2, "data": {"path": "data"}, "model": {"name": "least-squares"},
        "algorithm": {"name": "fedavg", "batch_size": 2}, "client_optimizer": {"learning_rate": 0.1},
    })  # fmt: skip


RANK = """
import sys
from pathlib import Path
from mpifed.cli import main
from mpifed.comm.mpi import launched_rank
try:
    main()
finally:
    Path(f"modules-{launched_rank()}").write_text(" ".join(sys.modules))
"""


@pytest.mark.launch
def test_ranks_import_what_their_clients_need_alone(job: Path, tmp_path: Path, launch: Any) -> None:
    """Rank 0 reads and writes, and tells the others: a thousand ranks ask a parallel file system for little."""
    of_rank_0 = {
        "pydantic", "pydantic_core", "h5py", "safetensors", "filelock", "tomli_w", "importlib.metadata", "email",
        "subprocess", "rich", "scipy", "pandas", "sklearn", "matplotlib", "cryptography", "asyncio", "xml", "http",
        "difflib", "dp_accounting", "mpifed.files.schemas", "mpifed.files.run_folder", "mpifed.run.folder",
        "mpifed.run.output", "mpifed.run.observation", "mpifed.run.identity", "mpifed.job.own_sources",
        "mpifed.privacy.ledger_file", "mpifed.results.show", "mpifed.laws",
    }  # fmt: skip
    ended = launch(2, "run", job, cwd=tmp_path, program=("-c", RANK))
    assert ended.code == 0, ended.text
    first, other = (set((tmp_path / f"modules-{rank}").read_text().split()) for rank in range(2))
    allowed = {"subprocess"} if sys.version_info < (3, 11) else set()  # which `platform` imports there
    assert sorted(of_rank_0 & other - allowed) == []
    assert {"pydantic", "mpifed.run.output"} <= first and not {"pandas", "scipy.stats", "matplotlib"} & first
    assert len({name for name in other if name.startswith("mpifed.")}) < 132 and len(other) < 410


def test_what_runs_in_one_process_does_not_load_mpi(job: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "run", f"data.path={tmp_path / 'data'}"
    shown = (["show", out], ["show", out, "--json"], ["plot", out, "--out", tmp_path / "figure.png"])
    commands = (["run", job, "--out", out, "--set", data], *shown, ["check", job, "--set", data])
    assert "mpi4py.MPI" not in loaded(*commands)
