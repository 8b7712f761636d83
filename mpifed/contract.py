"""Classes named as "module:Class", whether they keep to the base class of their kind, and what their fields mean."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import itertools
import sys
import textwrap
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

from mpifed.core.errors import UsageError
from mpifed.text import nearest

SESSION = "session"  # in the place of a module: what only this process knows
NO_DATACLASS = "must be a dataclass; its fields are the keys of the table"
_NEAR = 0.85  # how alike two names are, of 1, for the first to count as a misspelling of the second


def breaches(part: type, base: type) -> Iterator[str]:
    """What must be changed before a class can be used as a `base`, one message each.

    A public name of the user's class that is nearly one of the base's would be ignored in silence, and its default
    would count: so it is refused, unless the name is a field, or one of a class of mpifed that the class derives from.
    """
    from difflib import get_close_matches  # for messages alone

    if not issubclass(part, base):
        yield f"is no {base.__name__}; derive it from {base.__module__}.{base.__qualname__}, or a class made from that"
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
    fields, members = {field.name for field in fields_of(part)}, [name for name in taken if name[0] != "_"]
    final = {name: kind.__name__ for kind in ours for name, member in vars(kind).items() if _is_final(member)}
    own = [kind for kind in part.__mro__[:-1] if kind not in ours]
    for name in dict.fromkeys(name for kind in own for name in (*vars(kind), *inspect.get_annotations(kind))):
        if name[0] == "_":
            continue
        if name in fields & taken - keys:
            yield (
                f'has a key "{name}", a name that {base.__name__} has for something else; rename the field (the job '
                'can keep its key by field(metadata={"key": ...})), or annotate a constant as ClassVar'
            )
        elif name in final:
            yield (
                f'has "{name}", which is {final[name]}\'s for all methods; leave it out, and say what differs by '
                f"{final[name]}'s hooks, or derive from its base class"
            )
        elif name not in taken | fields and (near := get_close_matches(name, members, 1, _NEAR)):
            yield f'has "{name}": did you mean "{near[0]}"? If not, rename it, or begin it with an underscore'


def _is_final(member: object) -> bool:
    """Whether a member is as it is for all who derive (`typing.final`)."""
    if isinstance(member, cached_property):  # whose function has no mark
        return "__final__" in vars(member)
    function = getattr(member, "fget", member)  # an object of a final class has the mark of its class
    return inspect.isfunction(function) and getattr(function, "__final__", False)


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
    part = own_object(name, place)
    if not isinstance(part, type):
        raise UsageError(f"{place}: is no class")
    if wrong := [f"{place}: {breach}" for breach in breaches(part, base)]:
        raise UsageError("\n".join(wrong))
    return part


def own_object(name: str, place: str) -> Any:  # a class, or a function of any kind
    """What "module:name" names, imported.

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
    except (Exception, SystemExit) as error:  # it is the user's own code
        raise UsageError(
            f"{place}: importing {module}: {type(error).__name__}: {error}; correct it, or start where it is importable"
        ) from error
    own = [name for name, value in vars(imported).items() if getattr(value, "__module__", None) == module]
    if not hasattr(imported, attribute):
        known = ", ".join(own) or "nothing"
        raise UsageError(f"{place}: {module} has no {attribute}{nearest(attribute, own)}; it defines {known}")
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


@cache
def attribute_docs(kind: type) -> dict[str, str]:
    """By name, the text below each annotated field of a class and its bases; empty where a source cannot be had."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ in ("builtins", "typing", "abc") or base.__module__.startswith("pydantic"):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        fields = body.body if isinstance(body, ast.ClassDef) else []
        for field, after in itertools.pairwise(fields):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs
