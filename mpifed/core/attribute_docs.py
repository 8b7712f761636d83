"""The text beneath the fields of a class: the meaning of a job's keys, for `mpifed explain` and the documents."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from functools import cache


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
