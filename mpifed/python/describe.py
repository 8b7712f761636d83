"""The arguments of functions as tables of a job, and what of them another process can make."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import mpifed
from mpifed.algorithms.algorithm import Algorithm
from mpifed.contract import NO_DATACLASS, SESSION, breaches, named, remembered
from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.job.schema import ALGORITHM, CLIENT, MODEL, OBSERVER, SERVER, TERM
from mpifed.job.settings import Kind, table_of
from mpifed.maths.objectives import TorchNetwork
from mpifed.maths.terms import Term
from mpifed.observers import Observer

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
        build = named(build if isinstance(build, type) or not hasattr(build, "state_dict") else _copies(build))
    return TorchNetwork(build, shape, loss if isinstance(loss, str) else named(loss), l2=l2)


def _copies(module: nn.Module) -> Callable[[], nn.Module]:
    """A function that gives copies of a module as it is now."""
    kept = copy.deepcopy(module)
    return lambda: copy.deepcopy(kept)


def constraint(term: Term, limit: float, margin: float = 0.0) -> Table:
    """A limit that a term must not exceed: an entry of `constraints`."""
    return {**part(TERM, "minimize", term), "limit": table_of(limit), "margin": table_of(margin)}


def method(algorithm: Algorithm | Mapping[str, object]) -> Table:
    """The tables of an algorithm: [algorithm] and those of its optimizers; a mapping is these tables already.

    A number in the place of an optimizer is the learning rate of SGD.
    """
    if isinstance(algorithm, Mapping):
        return dict(algorithm)
    tables = {"algorithm": part(ALGORITHM, "algorithm", algorithm)}
    for marked in (CLIENT, SERVER):
        if (kind := marked.of(type(algorithm))) is not None:
            del tables["algorithm"][marked.table]
            optimizer = getattr(algorithm, marked.table)
            if isinstance(optimizer, Real):
                optimizer = {"learning_rate": table_of(optimizer)}
            tables[marked.table] = part(kind, marked.table, optimizer)
    return tables


def observers(listed: object) -> list[Table]:
    """[[observe]] of those observers that another process could make: tables, and objects of importable dataclasses.

    Raises
    ------
    UsageError
        where `listed` is no list of observers.
    """
    if not isinstance(listed, (list, tuple)):
        raise UsageError(f"observers: {_came(listed)}; expected a list, as in observers=[mpifed.TensorBoard()]")
    return [part(OBSERVER, "observe", each) for each in listed if isinstance(each, Mapping) or _can_be_made(each)]


def _can_be_made(observer: object) -> bool:
    """Whether another process can make an observer from its table; UsageError where it is none."""
    kind = type(observer)
    if not isinstance(observer, Observer):
        part(OBSERVER, "observe", observer)  # raises
    if wrong := [breach for breach in breaches(kind, Observer) if breach != NO_DATACLASS]:
        raise UsageError("; ".join(f"observers: {kind.__name__} {breach}" for breach in wrong))
    if kind in OBSERVER.known.values():
        return True
    if not dataclasses.is_dataclass(observer) or named(kind).startswith(f"{SESSION}:"):
        return False
    try:
        OBSERVER.read(kind, table_of(observer))
    except Exception:  # of the user's own class, or its annotations
        return False
    return True


def part(kind: Kind[Any], place: str, value: object) -> Table:  # of any class
    """The table of a part; a mapping is one already. UsageError where it is of another class."""
    if isinstance(value, Mapping) or (isinstance(value, kind.base) and not isinstance(value, type)):
        return dict(table_of(value))
    remedy = "; give the module as mpifed.Torch(module)" if kind is MODEL and hasattr(value, "state_dict") else ""
    names = [known.__name__ for known in kind.known.values() if hasattr(mpifed, known.__name__)]
    such = ", ".join(f"mpifed.{name}(...)" for name in names[:3])
    raise UsageError(
        f"[{place}]: {_came(value)}; an object of {kind.base.__name__} is expected, such as {such}{remedy}"
    )


def _came(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def of_this_process(table: Table) -> list[str]:
    """What only this process knows of what a job's table names, as its author calls it."""
    names = re.findall(rf'"({SESSION}:\w+)"', json.dumps(table))
    return [f"{getattr(remembered.get(name), '__qualname__', name)} (of this process)" for name in names]
