"""What is refused of a baseline, and of methods whose round has several exchanges, or as many steps as a coin says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loops import PRIVATE, local_job

from mpifed.core.errors import UsageError
from mpifed.testing import rounds

LEAVING = {"participation": {"dropout_rate": 0.2, "max_dropouts": 1}}
MOMENTUM = {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.5}}
FEW = {"participation": {"dropout_rate": 0.2, "max_dropouts": 2, "clients_per_round": 7}}
MASKED_FEW = FEW | {"aggregation": {"security": "masked"}}
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("proxskip", {"p": 0.3, "local_steps": 2}, {}, "local_steps: a coin ends the local steps"),
    ("proxskip", {"p": 1e-8}, {}, r"\[algorithm\] p: a client would draw 8000000000 rows"),
    ("proxskip", {"p": 0.3} | MOMENTUM, {}, "momentum = 0.5: control variates are of plain steps"),
    ("proxskip", {"p": 0.3}, LEAVING, "must hear what became of their uploads"),
    ("proxskip", {"p": 0.3}, PRIVATE["gradients"], "as many local steps as a coin says"),
    ("tamuna", {"p": 0.3, "senders": 4}, {"participation": {"clients_per_round": 3}}, "4 clients are to send each"),
    ("fedlin", MOMENTUM, {}, "K_i steps are of eta / K_i each"),
    ("fedlin", {}, PRIVATE["gradients"], "a gradient of all rows travels"),
    ("mime", {}, PRIVATE["upload"], "a gradient of all rows travels"),
    ("alone", {"server_optimizer": {"learning_rate": 0.5}}, {}, "the model is the mean of the clients', who take none"),
    ("mime", {}, MASKED_FEW, "masked sums need 8"),
    ("alone", {}, {"regularizer": {"name": "l1", "weight": 0.1}}, r"^[^\n]*\n  \[regularizer\] L1: [^\n]*$"),
]


@pytest.mark.parametrize(("name", "settings", "tables", "said"), REFUSED)
def test_it_is_refused(digits: Path, name: str, settings: dict[str, Any], tables: dict[str, Any], said: str) -> None:
    hyper = {"name": name, "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}, **settings}
    with pytest.raises(UsageError, match=said):
        next(rounds(local_job(digits, hyper, **tables)))
