"""Each optimizer with each method of local steps: a round is played, in finite numbers, or refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from methods import METHODS, class_of
from registry import table

from mpifed.algorithms.local_method import LocalMethod
from mpifed.core.errors import UsageError
from mpifed.testing import rounds

LOCAL = [name for name in METHODS if issubclass(class_of(name), LocalMethod)]
ADAPTIVE = [{"name": name} for name in ("adam", "yogi", "adagrad")]
OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "client_optimizer": [{"clip_norm": 0.5}, {"local_schedule": {"initial": 1.0}}, {"name": "adamw"}],
    "server_optimizer": [{"momentum": 0.5}, *ADAPTIVE],
}


@pytest.mark.parametrize("name", LOCAL)
def test_it_is_played_or_refused(digits: Path, name: str) -> None:
    settings = {**(METHODS[name].least or {}), "name": name, "batch_size": 7}
    for key, optimizers in OPTIMIZERS.items():
        for optimizer in optimizers:
            own = {"client_optimizer": {"learning_rate": 0.1}} | {key: {"learning_rate": 0.1, **optimizer}}
            try:
                (*_, last) = rounds(checked(table(digits, {**settings, **own}, rounds=1)))
                assert all(np.isfinite(leaf).all() for leaf in last.model.values())
            except UsageError as error:
                assert f"[{key}]" in str(error)
