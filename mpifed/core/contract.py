"""Classes of the user's own, named as "module:Class", and whether they keep to the base class of their kind."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import sys
from collections.abc import Iterator

from mpifed.core.errors import UsageError

_NEAR = 0.85  # how alike two names are, of 1, for one to be taken for the other misspelt


def breaches(part: type, base: type) -> Iterator[str]:
    """What a class has to change before it can be used as a `base`, one message each.

    A public name of the user's class that is nearly one of the base's would be ignored in silence, and its default
    would count: so it is refused, unless the name is a field, or one of a class of mpifed that the class derives from.
    """
    if not issubclass(part, base):
        yield f"is no {base.__name__}; derive it from {base.__module__}.{base.__qualname__}"
        return
    if not dataclasses.is_dataclass(part):
        yield "must be a dataclass; its fields are the keys of the table"
        return
    if lacking := sorted(getattr(part, "__abstractmethods__", ())):
        yield f"has no {', '.join(lacking)}, which every {base.__name__} must have; see {base.__module__}"
    contract = [name for name in dir(base) if not name.startswith("_")]
    known = {field.name for field in dataclasses.fields(part)}
    own: dict[str, None] = {}
    for kind in part.__mro__[:-1]:
        if kind.__module__.partition(".")[0] == "mpifed":
            known |= set(dir(kind))
        else:
            own |= dict.fromkeys(name for name in (*vars(kind), *inspect.get_annotations(kind)) if name[0] != "_")
    for name in own:
        near = [] if name in known else difflib.get_close_matches(name, contract, n=1, cutoff=_NEAR)
        if near:
            yield f'has "{name}": did you mean "{near[0]}"? If not, rename it, or begin it with an underscore'


def own_module(name: object) -> str | None:
    """'my_module:MyClass' -> 'my_module'; None where a name is none of the user's own."""
    module, _, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    return module if all(part.isidentifier() for part in (*module.split("."), attribute)) else None


def own_class(name: str, base: type, place: str) -> type:
    """The class "module:Class", imported; `place` is where messages say that it stands.

    Raises
    ------
    UsageError
        when it cannot be imported, or does not keep to its base class.
    """
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the folder where the job is started
    try:
        part: type = getattr(importlib.import_module(module), attribute)
    except SystemExit as error:
        raise UsageError(f"{place}: importing {module} leaves the program (sys.exit)") from error
    except Exception as error:  # it is the user's own code
        raise UsageError(
            f"{place}: {type(error).__name__}: {error}; the module must be importable from the folder where you start"
        ) from error
    if not isinstance(part, type):
        raise UsageError(f"{place}: is no class")
    if wrong := list(breaches(part, base)):
        raise UsageError("\n".join(f"{place}: {one}" for one in wrong))
    return part
