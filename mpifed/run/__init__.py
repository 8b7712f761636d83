"""Running a job: from settings and data to a model, with checkpoints, resume and results.

`mpifed.run(...)` calls `mpifed.python.runs.run`, whose help has the arguments.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """`mpifed.run(...)`, though this package has that name too."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:  # those of the function, and what it gives
        run = import_module("mpifed.python.runs").run  # which imports this package
        return run(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
