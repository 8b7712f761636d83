"""No file that somebody is given may execute code when mpifed reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest
from package_sources import FILES, nodes

MODULES = {"joblib", "shelve", "marshal", "dill", "cloudpickle", "yaml", "jsonpickle", "dbm", "runpy", "code", "imp"}
CALLS = {"eval", "exec", "execfile", "__import__"}
# torch.load may unpickle, np.load where it is not forbidden, and so does what scikit-learn keeps of its downloads
ATTRIBUTES = {"Unpickler", "read_pickle", "fromregex", "extractall", "unpack_archive", "exec_module"}
LOADERS = {"pickle", "np", "numpy", "torch", "cupy", "pd", "pandas"}


PLAIN = "np.load(path, allow_pickle=False)"


def executing(source: Iterable[ast.AST]) -> Iterator[str]:
    """What in a source may execute what a file holds."""
    nodes = list(source)
    plain = [
        inner for node in nodes if isinstance(node, ast.Call) and ast.unparse(node) == PLAIN for inner in ast.walk(node)
    ]
    for node in nodes:
        if node in plain:
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            modules = names if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in modules if name.partition(".")[0] in MODULES)
            yield from (name for name in names if name in ATTRIBUTES or name.startswith("fetch_"))
            if isinstance(node, ast.ImportFrom) and node.module in LOADERS:
                yield from (name for name in names if name in ("load", "loads"))
        elif isinstance(node, ast.Attribute):
            whose = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in ATTRIBUTES or node.attr.startswith("fetch_"):
                yield node.attr
            elif node.attr in ("load", "loads") and whose in LOADERS:
                yield f"{whose}.{node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node.func.id
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield node.arg


def test_nothing_executes_what_a_file_holds() -> None:
    assert {str(path): found for path in FILES if (found := list(executing(nodes(path))))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import joblib", "from joblib import load", "pickle.loads(b'')", "from pickle import loads", "np.load('x')",
        "np.load('x', allow_pickle=True)", "np.load(path, allow_pickle=flag)",
        "load = np.load", "np.load(path, allow_pickle=False)\nnp.load(path)", "torch.load('x')",
        "pickle.Unpickler(f)", "from yaml import load",
        "eval('x')", "exec('x')", "datasets.fetch_covtype()", "from sklearn.datasets import fetch_covtype",
        "tar.extractall('x')", "def f():\n    import shelve",
    ],
)  # fmt: skip
def test_it_would_be_found(source: str) -> None:
    assert list(executing(ast.walk(ast.parse(source))))
    assert not list(executing(ast.walk(ast.parse(PLAIN))))
