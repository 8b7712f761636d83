"""The sources of the user's own classes, on which a run's bits depend.

The import statements of each file, inside functions too, are followed to modules under the same folder of `sys.path`.
What a module loads in other ways (`importlib`, data files) is not covered, nor are the sources of imports from other
folders; installed distributions are identified by their versions.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from functools import cache, lru_cache
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from mpifed.contract import SESSION, remembered
from mpifed.job.schema import JobSettings

if sys.version_info >= (3, 11):
    from importlib.metadata import packages_distributions
else:  # whose own one does not know packages without top_level.txt
    from importlib_metadata import packages_distributions

_INSTALLED = {"site-packages", "dist-packages"}


class Sources(NamedTuple):
    """The sources and distributions that own classes depend on."""

    files: dict[str, str]  # SHA-256 of each, by its path from the folder where imports begin
    distributions: dict[str, str]  # version of each that they import


def sources_of(job: JobSettings) -> Sources:
    """The sources of all "module:Class" and "module:function" of a job, which must have been imported."""
    names = job.own_modules
    files, tops = dict[str, str](), set[str]()
    if SESSION in names:
        files |= {name: source_of(remembered[name]) for name in sorted(remembered)}
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            path = Path(file).absolute()
            root = path.parents[name.count(".") + (path.stem == "__init__")]
            _follow(name, root, files, tops)
    return Sources(files, _distributions(tops))


def source_of(value: object) -> str:
    """SHA-256 of the text of a class or function that no file of a module has, or of its compiled code."""
    try:
        text = inspect.getsource(value)  # type: ignore[arg-type]
    except (OSError, TypeError):  # typed at a prompt
        text = re.sub(" at 0x[0-9a-f]+", "", repr(getattr(getattr(value, "__code__", None), "co_code", value)))
    return hashlib.sha256(text.encode()).hexdigest()


def _follow(start: str, root: Path, files: dict[str, str], tops: set[str]) -> None:
    """Add the files of a module and of all that it imports from under `root`, and the first names of the other modules
    that these import.
    """
    left, seen, own_top = [start], {"", "mpifed"}, start.partition(".")[0]
    everything = not _INSTALLED & set(root.parts)  # else what is beside are other distributions
    while left:
        name = left.pop()
        top = name.partition(".")[0]
        if name in seen:
            continue
        seen.add(name)
        path = file_of(name, root) if everything or top == own_top else None
        if path is None:
            tops.add(top)
            continue
        content = path.read_bytes()
        files[path.relative_to(root).as_posix()] = hashlib.sha256(content).hexdigest()
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        left.append(package)  # importing a module has run its package
        if path.suffix == ".py":
            left += _imports(content, package)
    tops -= {path.split("/")[0].partition(".")[0] for path in files}


def file_of(name: str, root: Path) -> Path | None:
    """The file of a module under `root`; None where there is none, or it was imported from elsewhere."""
    base = root.joinpath(*name.split("."))
    places = [base / "__init__.py", *(base.with_name(base.name + suffix) for suffix in (".py", *EXTENSION_SUFFIXES))]
    path = next((path for path in places if path.is_file()), None)
    loaded = getattr(sys.modules.get(name), "__file__", None)
    return path if path is None or loaded is None or Path(loaded).absolute() == path else None


@lru_cache(maxsize=1024)  # a sweep asks at every point
def _imports(content: bytes, package: str) -> list[str]:
    """Full names of the modules, or of what is in them, that a source imports anywhere in it."""
    names: list[str] = []
    try:
        tree = ast.parse(content)
    except SyntaxError:  # of a module that is imported later, or never
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            within = parts[: len(parts) + 1 - node.level] if node.level else []
            module = ".".join([*within, *([node.module] if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


def _distributions(tops: set[str]) -> dict[str, str]:
    """The versions of the distributions of these top-level modules, and of what computes for them."""
    foreign = tops - sys.stdlib_module_names
    known = _installed() if foreign else {}
    names = [name for top in sorted(foreign) for name in known.get(top, [])]
    return {each: _version(each) for name in names for each in (name, *_COMPILED.get(name, ()))}


_COMPILED = {"jax": ("jaxlib",)}  # what decides bits, in a distribution that nobody imports by name
_version = cache(metadata.version)
_installed = cache(packages_distributions)  # takes some tenths of a second
