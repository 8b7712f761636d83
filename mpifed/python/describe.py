"""Objects as tables of a job: parts of mpifed by their registered names, the user's own as "module:name"."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel

import mpifed
from mpifed.core.algorithm import Algorithm
from mpifed.core.contract import NO_DATACLASS, SESSION, breaches, fields_of, remember, remembered
from mpifed.core.errors import UsageError
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.job.components import ALGORITHM, MINIMIZE, MODEL, Kind, key_of, optimizers, wrong_with
from mpifed.job.components import observer as observer_kind
from mpifed.maths.objectives import TorchNetwork
from mpifed.maths.optimizers import OPTIMIZERS
from mpifed.maths.terms import Term
from mpifed.observers import Observer

AnyKind: TypeAlias = Kind[Any]  # of parts of any class

if TYPE_CHECKING:
    from torch import Tensor, nn


def Torch(
    build: Callable[..., nn.Module] | nn.Module | str,
    *,
    shape: tuple[int, ...] | None = None,
    loss: (
        Literal["cross-entropy", "binary-cross-entropy", "mse"] | str | Callable[[Tensor, Tensor], Tensor]
    ) = "cross-entropy",
    l2: float = 0.0,
) -> TorchNetwork:
    """A network of PyTorch.

    Parameters
    ----------
    build
        A function or class that gives the module, with what it takes of `shape` and `outputs`; or a module, whose
        numbers are then the initial model, whatever the seed; or "module:function".
    shape
        Of a sample; by default that of the data.
    loss
        "cross-entropy", "binary-cross-entropy" of several labels, "mse" (half of PyTorch's), or a function of outputs
        [s, L] and targets that gives the loss of each sample [s].
    l2
        Adds l2 * ||w||^2 of all matrices and kernels to the mean loss; PyTorch's weight_decay is 2 l2.
    """
    if not isinstance(build, str):
        build = _named(build if isinstance(build, type) or not hasattr(build, "state_dict") else _copies(build))
    return TorchNetwork(build, shape, loss if isinstance(loss, str) else _named(loss), l2=l2)


def _copies(module: nn.Module) -> Callable[[], nn.Module]:
    """A function that gives copies of a module as it is now."""
    kept = copy.deepcopy(module)
    return lambda: copy.deepcopy(kept)


def constraint(term: Term, limit: float, margin: float = 0.0) -> Table:
    """A limit that a term must not exceed: an entry of `constraints`."""
    return {**part(MINIMIZE, term), "limit": float(limit), **({"margin": float(margin)} if margin else {})}


def method(algorithm: Algorithm | Mapping[str, object]) -> Table:
    """The tables of an algorithm: [algorithm] and those of its optimizers; a mapping is these tables already."""
    if isinstance(algorithm, Mapping):
        return dict(algorithm)
    tables: Table = {"algorithm": part(ALGORITHM, algorithm)}
    for name in OPTIMIZERS:
        if name in tables["algorithm"]:
            optimizer, value = tables["algorithm"].pop(name), getattr(algorithm, name)
            kinds = optimizers({"name": tables["algorithm"]["name"]})[name].known
            known = "sgd" if isinstance(value, Mapping) else next((k for k in kinds if kinds[k] is type(value)), None)
            if known is None:
                made = "ServerSGD(1.0)" if name == "server_optimizer" else "SGD(0.1)"
                came = type(value).__name__
                raise UsageError(f"[{name}]: a {came}; expected an optimizer, such as {name}=mpifed.{made}")
            tables[name] = {"name": known, **optimizer}
    return tables


def observers(listed: object) -> list[Table]:
    """[[observe]] of those observers that another process could make: tables, and objects of importable dataclasses.

    Raises
    ------
    UsageError
        where `listed` is no list of observers.
    """
    if not isinstance(listed, (list, tuple)):
        came = f"the class {listed.__name__}" if isinstance(listed, type) else f"a {type(listed).__name__}"
        raise UsageError(f"observers: {came}; expected a list, as in observers=[mpifed.TensorBoard()]")
    tables = []
    for number, observer in enumerate(listed, 1):
        kind = observer_kind(number)
        if isinstance(observer, Mapping):
            tables.append(dict(observer))
            continue
        if not isinstance(observer, Observer):
            part(kind, observer)  # raises
        if wrong := [breach for breach in breaches(type(observer), Observer) if breach != NO_DATACLASS]:
            raise UsageError("; ".join(f"observers: {type(observer).__name__} {breach}" for breach in wrong))
        own = _registered(kind, type(observer)) is None
        if own and (not dataclasses.is_dataclass(observer) or not _importable(type(observer))):
            continue
        table = part(kind, observer)
        if not own or not wrong_with(kind, table):
            tables.append(table)
    return tables


def part(kind: AnyKind, value: object) -> Table:
    """The table of a part: its name, and the fields that differ from their defaults."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, kind.base) or isinstance(value, type):
        shown = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        remedy = "; give the module as mpifed.Torch(module)" if kind is MODEL and hasattr(value, "state_dict") else ""
        raise UsageError(
            f"[{kind.table}]: {shown}; an object of {kind.base.__name__} is expected, such as {_some(kind)}{remedy}"
        )
    table: Table = {"name": _registered(kind, type(value)) or _named(type(value))}
    return table | _changed(value)


def _registered(kind: AnyKind, of: type) -> str | None:
    """The name of a class of mpifed's, or of one that it has for a split of the data."""
    for name, known in kind.known.items():
        by_split = [known.for_split(split) for split in ("rows", "columns", "grid")] if kind is ALGORITHM else []
        if of in (known, *by_split):
            return name
    return None


def _some(kind: AnyKind) -> str:
    names = [known.__name__ for known in kind.known.values() if hasattr(mpifed, known.__name__)]
    return ", ".join(f"mpifed.{name}(...)" for name in names[:3])


def _is_default(field: dataclasses.Field[object], value: object) -> bool:
    if field.name == "schedule":  # by which a reader tells a learning rate's class
        return False
    if field.default is not dataclasses.MISSING:
        return value is field.default or (type(value) is type(field.default) and value == field.default)
    return field.default_factory is not dataclasses.MISSING and value == field.default_factory()


def _changed(value: object) -> Table:
    """The fields of a dataclass that are not their defaults, by key; `problem` is the run's."""
    pairs = [(field, getattr(value, field.name)) for field in fields_of(type(value)) if field.name != "problem"]
    return {key_of(field): plain(held) for field, held in pairs if not _is_default(field, held)}


def plain(value: object) -> Any:  # a value of TOML: a number, text, list or table
    """A value as TOML has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _changed(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        array: Array = np.asarray(value)
        return array.tolist()
    return _named(value) if callable(value) else value


def _named(value: Any) -> str:  # a class or a function
    """The "module:name" of a class or function; of one that no import gives, a name that this process alone knows."""
    return f"{value.__module__}:{value.__qualname__}" if _importable(value) else remember(value)


def _importable(value: Any) -> bool:  # a class or a function
    """Whether an import gives a class or function."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module and module != "__main__" and name.isidentifier():
        try:
            return getattr(importlib.import_module(module), name, None) is value
        except ImportError:
            pass
    return False


def as_written(name: str) -> str:
    """The class or function that only this process knows by a name, as its author calls it."""
    if name not in remembered:
        return f"{name.partition(':')[2].rpartition('_')[0]} (of a process that has ended)"
    value: Any = remembered[name]  # a class or a function
    module, written = getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__name__)
    place = "the program itself" if module == "__main__" else f"the module {module}"
    if written.startswith(_copies.__name__):
        return "a module of PyTorch, given as an object"
    inside, _, own = written.replace(".<locals>", "").rpartition(".")
    what = "a lambda" if own == "<lambda>" else own
    return f"{what} (of {inside}, in {place})" if inside else f"{what} (of {place})"


def of_this_process(table: object) -> list[str]:
    """The names in a job's table of what only this process knows."""
    values = table.values() if isinstance(table, Mapping) else table if isinstance(table, list) else ()
    found = [value for value in values if isinstance(value, str) and value.startswith(f"{SESSION}:")]
    return found + [name for value in values for name in of_this_process(value)]
