"""Each method with local steps against its page in the generic loop, to rounding, in three settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pages_averaging  # noqa: F401
import pages_corrections  # noqa: F401  # into PAGES
import pages_normalized  # noqa: F401
import pages_variates  # noqa: F401
import pytest
from loops import local_job, played
from methods import METHODS
from pages import PAGES

STEP = {"initial": 0.4, "exponent": 0.3}
SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # data, [algorithm], other tables
    "all": ("digits", {}, {}),
    "some": ("digits", {}, {"participation": {"clients_per_round": 4}}),
    "unequal": ("skewed", {}, {"participation": {"clients_per_round": 4}}),
    "epochs": ("skewed", {"local_epochs": 2, "batch_size": 8}, {"participation": {"clients_per_round": 4}}),
}


@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, it) for name in PAGES for it in SETTINGS if it != "epochs" or "local_steps" in PAGES[name].steps],
)
def test_the_page(request: Any, name: str, setting: str) -> None:
    data, algorithm, tables = SETTINGS[setting]
    if METHODS[name].everybody(algorithm):
        tables = {}
    folder: Path = request.getfixturevalue(data)
    least = {**(METHODS[name].least or {}), "client_optimizer": {"learning_rate": STEP}}
    hyper = {"name": name, "batch_size": 4, **least, **(algorithm or PAGES[name].steps)}
    task = local_job(folder, hyper, data={"path": str(folder), "block": 3}, **tables)
    page = PAGES[name](task).play()
    np.testing.assert_allclose(played(task).model, page.judged(), rtol=0, atol=1e-10)
