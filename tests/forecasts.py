"""Forecasts of jobs, by `mpifed check --json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from mpifed.cli import main
from mpifed.core.errors import DataError, MpifedError, UsageError

_KINDS: dict[int, type[MpifedError]] = {kind.exit_code: kind for kind in (UsageError, DataError)}


def forecast(job: Path, changes: Sequence[str], ranks: int) -> dict[str, Any]:
    """What the command says of a job with these changes; its error as one of Python."""
    found: dict[str, Any] = json.loads(forecast_text(job, changes, ranks, "--json"))
    return found


def forecast_text(job: Path, changes: Sequence[str], ranks: int, *options: str) -> str:
    """The same for a person."""
    words = [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(main, ["check", str(job), *words, "--ranks", str(ranks), *options])
    if done.exit_code in _KINDS:
        raise _KINDS[done.exit_code](done.stderr)
    assert done.exit_code == 0, (done.stderr, done.exception)
    return done.stdout
