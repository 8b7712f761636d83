"""Imports run one way, MPI and HDF5 have their places, and the command line starts quickly."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from package_sources import FILES, PACKAGE, nodes

# what each package may import of the others: core <- data.block <- maths, comm; maths, data <- algorithms
_JOB = [
    "hyperparameters",
    "contract",
    "text",
    "core",
    "maths",
    "data",
    "algorithms",
    "comm",
    "files",
    "observers",
    "job",
]
MAY = {
    "core": ["core"],
    "maths": ["hyperparameters", "contract", "core", "text", "data.block", "maths"],
    "data": ["contract", "core", "files", "text", "data"],
    "algorithms": ["hyperparameters", "core", "maths", "data", "privacy.guard", "privacy.open", "algorithms"],
    "comm": ["core", "data.block", "data.roster", "comm", "maths.fixedpoint"],
    "files": ["core", "text", "files"],
    "observers": ["hyperparameters", "core", "files", "observers"],
    "job": [
        *("hyperparameters", "contract", "text", "core", "maths", "data", "algorithms", "comm"),
        *("files.columns", "files.expected", "observers", "job"),
    ],
    "privacy": [
        "core",
        "maths",
        "data.block",
        "algorithms.algorithm",
        "comm.channels.base",
        "files",
        "job",
        "privacy",
    ],
    "results": ["arguments", "text", "core", "maths", "data", "algorithms", "files", "job", "privacy", "results"],
    "explain": [
        "arguments",
        "contract",
        "text",
        "core",
        "maths",
        "data",
        "algorithms",
        "files",
        "observers",
        "job",
        "audit.findings",
        "explain",
    ],
    "run": [*_JOB, "text", "privacy", "results", "laws", "run"],
    "forecast": [*_JOB, "text", "privacy", "results", "run", "forecast"],
    "batch": ["arguments", "text", "core", "data", "comm", "files", "job", "results", "run", "batch"],
    "audit": ["arguments", "text", *_JOB, "privacy", "results.text", "run", "audit"],
    "python": [*_JOB, "text", "privacy", "results", "run", "forecast", "plots", "batch", "python"],
    "plots": ["text", "core", "data", "files", "job.reading", "job.schema", "results", "arguments", "plots"],
}


@cache
def imported(path: Path) -> list[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    return list(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if is_module(name) else str(node.module) for name in names)


@cache
def is_module(name: str) -> bool:
    parts = name.split(".")
    if parts[0] != "mpifed":
        return False
    path = PACKAGE.joinpath(*parts[1:])
    return path.is_dir() or path.with_suffix(".py").exists()


def test_imports_run_one_way() -> None:
    for path in (path for path in FILES if path.parts[0] in MAY):
        allowed = [f"mpifed.{name}." for name in MAY[path.parts[0]]]
        own = [name for name in imported(path) if name.startswith("mpifed.")]
        assert [name for name in own if not f"{name}.".startswith(tuple(allowed))] == [], path


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Wherever in a file, for type checkers included."""
    graph = {module_of(path): {name for name in imported(path) if is_module(name)} for path in FILES}
    assert not set(circles(graph))


def module_of(path: Path) -> str:
    parts = ("mpifed", *path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(graph: dict[str, set[str]]) -> Iterator[frozenset[str]]:
    """The modules that can be reached from each other, where there are several."""
    reached = {module: _reached(graph, module) for module in graph}
    together = {frozenset(other for other in there if module in reached[other]) for module, there in reached.items()}
    yield from (modules for modules in together if modules)


def _reached(graph: dict[str, set[str]], module: str) -> set[str]:
    """The modules that one imports, and those that they import, and so on."""
    found, left = set[str](), [module]
    while left:
        new = graph.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def test_no_two_classes_share_a_name() -> None:
    names = Counter(node.name for path in FILES for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == set()


def test_every_package_has_its_place() -> None:
    packages = {p.parts[0] for p in FILES if len(p.parts) > 1}
    assert packages == set(MAY)


def test_mpi_and_hdf5_have_their_places() -> None:
    for path in FILES:
        tops = {name.split(".")[0] for name in imported(path)}
        assert "mpi4py" not in tops or path == Path("comm/mpi.py")
        assert "h5py" not in tops or path == Path("files/hdf5.py") or path.parts[0] == "run", path


@pytest.mark.parametrize("name", ["core", "maths", "algorithms"])
def test_the_vocabulary_needs_numpy_alone(name: str) -> None:
    heavy = {"h5py", "mpi4py", "pydantic", "click", "rich", "pandas", "sklearn", "matplotlib"}
    for path in FILES:
        if path.parts[0] == name:
            assert not heavy & {n.split(".")[0] for n in imported(path)}, path


def test_slow_libraries_wait_until_they_are_needed() -> None:
    """Those of accounting and noise are imported in functions, and never at the top of a module of these packages."""
    slow, found = {"cryptography", "dp_accounting", "scipy"}, set()
    for path in (path for path in FILES if path.parts[0] in ("core", "maths", "algorithms")):
        (module, *_) = nodes(path)
        assert isinstance(module, ast.Module)
        tops = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {str(getattr(node, "module", None) or node.names[0].name).split(".")[0] for node in tops}
        assert not slow & names, path
        found |= slow & {name.split(".")[0] for name in imported(path)}
    assert found == slow


# --- what a command loads ----------------------------------------------------------------------------------------

_PROBE = """
import json, sys
from mpifed.cli import main
codes = []
for command in json.loads(sys.argv[1]):
    try:
        main(command, standalone_mode=True)
    except SystemExit as end:
        codes.append(end.code or 0)
MPI = "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized()
print(json.dumps({"codes": codes, "modules": sorted(sys.modules), "mpi_started": MPI}))
"""


def loaded(*commands: list[object]) -> tuple[set[str], bool]:
    """(modules that are loaded, whether MPI is started) after commands, in one process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(
        [sys.executable, "-c", _PROBE, json.dumps(commands, default=str)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["codes"] == [0] * len(commands), ended.stderr + ended.stdout
    return set(found["modules"]), found["mpi_started"]


def test_help_loads_next_to_nothing() -> None:
    names = ("run", "check", "show", "compare", "explain", "plot", "submit", "doctor")
    modules, started = loaded(["--help"], ["--version"], *([name, "--help"] for name in names))
    heavy = {"numpy", "scipy", "h5py", "mpi4py", "pydantic", "sklearn", "matplotlib", "pandas", "rich"}
    assert not heavy & modules
    assert not started


def test_help_of_data_is_made_of_the_sources_alone() -> None:
    """Its texts are those of their classes, which need NumPy."""
    modules, started = loaded(["data", "--help"], ["data", "csv", "--help"])
    assert not {"scipy", "h5py", "mpi4py", "pydantic", "sklearn", "matplotlib", "pandas", "rich"} & modules
    assert not started


_RANK = """
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
def test_ranks_import_what_their_clients_need_alone(tmp_path: Path, launch: object, write_job: object) -> None:
    """Rank 0 reads and writes, and tells the others: a thousand ranks ask a parallel file system for little."""
    of_rank_0 = {
        "pydantic", "pydantic_core", "h5py", "safetensors", "filelock", "tomli_w", "importlib.metadata", "email",
        "subprocess", "rich", "scipy", "pandas", "sklearn", "matplotlib", "cryptography", "asyncio", "xml", "http",
        "difflib", "mpifed.files.schemas", "mpifed.files.run_folder", "mpifed.run.folder", "mpifed.run.output",
        "mpifed.run.observation", "mpifed.run.identity", "mpifed.job.own_sources", "mpifed.privacy.ledger_file",
        "mpifed.results.show", "mpifed.laws",
    }  # fmt: skip
    job = write_job(tmp_path / "job.toml", {  # type: ignore[operator]
        "name": "layers", "rounds": 2, "data": {"path": "data"}, "model": {"name": "least-squares"},
        "algorithm": {"name": "fedavg", "batch_size": 2}, "client_optimizer": {"learning_rate": 0.1},
    })  # fmt: skip
    loaded(["data", "synthetic", "--split", "rows", "--clients", "4", "--out", tmp_path / "data"])
    ended = launch(2, "run", job, cwd=tmp_path, program=("-c", _RANK))  # type: ignore[operator]
    assert ended.code == 0, ended.text
    first, other = (set((tmp_path / f"modules-{rank}").read_text().split()) for rank in range(2))
    allowed = {"subprocess"} if sys.version_info < (3, 11) else set()  # which `platform` imports there
    assert sorted(of_rank_0 & other - allowed) == []
    assert {"pydantic", "mpifed.run.output"} <= first and not {"pandas", "scipy.stats", "matplotlib"} & first
    own = {name for name in other if name.startswith("mpifed.")}
    assert len(own) < 132 and len(other) < 410


def test_data_show_and_plot_do_not_start_mpi(tmp_path: Path, write_job: object) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    job = write_job(tmp_path / "job.toml", {  # type: ignore[operator]
        "name": "layers", "rounds": 2, "data": {"path": str(data)}, "model": {"name": "least-squares"},
        "algorithm": {"name": "fedavg", "batch_size": 2, "client_optimizer": {"learning_rate": 0.1}},
        "record": {"evaluate_every": 1},
    })  # fmt: skip
    modules, started = loaded(
        ["data", "synthetic", "--split", "rows", "--clients", "2", "--out", data],
        ["run", job, "--out", out],  # in one process
        ["show", out],
        ["show", out, "--json"],
        ["plot", out, "--out", tmp_path / "figure.png"],
        ["check", job],
    )
    assert not started
    assert "mpi4py.MPI" not in modules
