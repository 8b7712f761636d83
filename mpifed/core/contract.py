"""Classes of the user's own, named as "module:Class", and whether they keep to the base class of their kind."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest

SESSION = "session"  # in the place of a module: what only this process knows
NO_DATACLASS = "must be a dataclass; its fields are the keys of the table"
_NEAR = 0.85  # how alike two names are, of 1, for the first to count as a misspelling of the second
_DERIVED = {  # base classes that give more, by the name of what they derive from
    "Algorithm": "mpifed.algorithms.horizontal.Rows (data split by rows), mpifed.algorithms.columns.Columns, "
    "mpifed.algorithms.cells.Grid, or "
}


def breaches(part: type, base: type) -> Iterator[str]:
    """What must be changed before a class can be used as a `base`, one message each.

    A public name of the user's class that is nearly one of the base's would be ignored in silence, and its default
    would count: so it is refused, unless the name is a field, or one of a class of mpifed that the class derives from.
    """
    if not issubclass(part, base):
        derived = f"{_DERIVED.get(base.__name__, '')}{base.__module__}.{base.__qualname__}"
        yield f"is no {base.__name__}; derive it from {derived}"
        return
    if not dataclasses.is_dataclass(part):
        yield NO_DATACLASS
        return
    for name in sorted(getattr(part, "__abstractmethods__", ())):
        suggestion = nearest(name, [own for own in vars(part) if own not in dir(base)])
        yield f"has no {name}, which every {base.__name__} must have{suggestion}"
    ours = [kind for kind in part.__mro__ if kind.__module__.partition(".")[0] == "mpifed"]
    taken = {"name"}.union(*map(dir, ours))  # by mpifed's classes
    keys = {field.name for kind in ours if dataclasses.is_dataclass(kind) for field in fields_of(kind)}
    fields, members = {field.name for field in fields_of(part)}, [name for name in dir(base) if name[0] != "_"]
    final = {name: kind.__name__ for kind in ours for name, member in vars(kind).items() if _is_final(member)}
    own = [kind for kind in part.__mro__[:-1] if kind not in ours]
    for name in dict.fromkeys(name for kind in own for name in (*vars(kind), *inspect.get_annotations(kind))):
        if name[0] == "_":
            continue
        if name in fields and name in taken - keys:
            meaning = "which says in the table what class this is"
            if name != "name":
                meaning = f"a name that {base.__name__} has for something else"
            yield (
                f'has a key "{name}", {meaning}; rename the field (the job can keep its key by '
                'field(metadata={"key": ...})), or annotate a constant as ClassVar'
            )
        elif name in final:
            yield (
                f'has "{name}", which is {final[name]}\'s for all methods; leave it out, and say what differs by '
                f"{final[name]}'s hooks, or derive from its base class"
            )
        elif name not in taken | fields and (near := _near(name, members)):
            yield f'has "{name}": did you mean "{near}"? If not, rename it, or begin it with an underscore'


def _is_final(member: object) -> bool:
    """Whether a member is as it is for all who derive (`typing.final`)."""
    if isinstance(member, cached_property):  # whose function has no mark
        return "__final__" in vars(member)
    function = getattr(member, "fget", member)  # an object of a final class has the mark of its class
    return inspect.isfunction(function) and getattr(function, "__final__", False)


@cache
def _breaches(part: type, base: type) -> tuple[str, ...]:
    """The same, looked for once: a run asks for its classes many times."""
    return tuple(breaches(part, base))


def depth(kind: type, name: str) -> int:
    """Index in the method resolution order of the class that defines a member."""
    return next((i for i, ancestor in enumerate(kind.__mro__) if name in vars(ancestor)), len(kind.__mro__))


def _near(name: str, members: list[str]) -> str:
    """The member that a name nearly is, but for two neighbours that are swapped, or by most of its letters; or ""."""
    from difflib import get_close_matches  # for messages alone

    swapped = {name[:at] + name[at + 1] + name[at] + name[at + 2 :] for at in range(len(name) - 1)}
    turned = sorted(swapped.intersection(members))
    return next(iter(turned or get_close_matches(name, members, n=1, cutoff=_NEAR)), "")


def own_module(name: object) -> str | None:
    """'my_module:MyClass' -> 'my_module'; None where a name is none of the user's own."""
    module, _, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    return module if all(part.isidentifier() for part in (*module.split("."), attribute)) else None


def own_class(name: str, base: type, place: str) -> type:
    """The class "module:Class", imported; `place` is where messages say that it stands.

    Raises
    ------
    UsageError : when it cannot be imported, or does not keep to its base class.
    """
    part = own_object(name, place, base)
    if not isinstance(part, type):
        raise UsageError(f"{place}: is no class")
    if wrong := _breaches(part, base):
        raise UsageError("\n".join(f"{place}: {breach}" for breach in wrong))
    return part


def own_object(name: str, place: str, base: type = object) -> Any:  # a class, or a function of any kind
    """What "module:name" names, imported; `base` is the base class of what is expected, for a message.

    Raises
    ------
    UsageError : when it cannot be imported.
    """
    if own_module(name) is None:
        raise UsageError(f'{place}: give it as "module:name"')
    module, _, attribute = name.partition(":")
    if module == SESSION:
        if name not in remembered:
            raise UsageError(
                f"{place}: was an object of the process that made this job; put it into a module, and name it "
                '"module:name"'
            )
        return remembered[name]
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the folder where the job is started
    try:
        imported = importlib.import_module(module)
    except SystemExit as error:
        raise UsageError(f"{place}: importing {module} leaves the program (sys.exit)") from error
    except Exception as error:  # it is the user's own code
        exists = not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{error.name}.")
        remedy = "correct it" if exists else "the module must be importable from the folder where you start"
        raise UsageError(f"{place}: importing {module}: {type(error).__name__}: {error}; {remedy}") from error
    if not hasattr(imported, attribute):
        what, wanted = ("functions", object) if base is object else ("classes", type)
        own = [value for value in vars(imported).values() if getattr(value, "__module__", None) == module]
        own = [value for value in own if callable(value) and isinstance(value, wanted)]
        names = [value.__name__ for value in own if base is object or issubclass(value, base)]
        names = names or [value.__name__ for value in own]
        known = f"its {what} are {', '.join(names)}" if names else f"it has no {what}"
        raise UsageError(f"{place}: {module} has no {attribute}{nearest(attribute, names)}; {known}")
    return getattr(imported, attribute)


remembered: dict[str, object] = {}  # classes and functions of this process, by their names in its jobs


def remember(value: object) -> str:
    """The name, as in a job, by which this process finds a class or function that no import gives."""
    for name, other in remembered.items():
        if other is value:
            return name
    plain = "".join(letter if letter.isalnum() else "_" for letter in getattr(value, "__name__", "object"))
    name = f"{SESSION}:{plain}_{len(remembered)}"
    remembered[name] = value
    return name


def named(value: Any) -> str:  # a class or a function
    """The "module:name" of a class or function; of one that no import gives, a name that this process alone knows."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module and module != "__main__" and name.isidentifier():
        with contextlib.suppress(ImportError):
            if getattr(importlib.import_module(module), name, None) is value:
                return f"{module}:{name}"
    return remember(value)


def fields_of(part: type) -> tuple[dataclasses.Field[object], ...]:
    """The fields of a class of a registry: a dataclass, though its base class need not be."""
    return dataclasses.fields(part)
