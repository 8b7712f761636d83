"""The sources of the package, each parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import mpifed

PACKAGE = Path(mpifed.__file__).parent
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All that is in one of FILES; the module comes first."""
    return list(ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))))
