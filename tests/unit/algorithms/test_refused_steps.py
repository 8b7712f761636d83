"""Local steps that diverge, end beyond what they aim at, or end at 0 are refused before a run; others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mpifed as mf

NESTEROV = {"momentum": 0.9, "nesterov": True}
AT_ZERO = {"learning_rate": mf.CosineDecay(0.4, rounds=2)}
CASES: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    # a step of 0.1 takes a distance e to (1 - 0.1 mu) e; a single one begins where the distance is 0
    (mf.FedProx, {"mu": 30.0}, {}, r"a local step of 0\.1 .* by -2, and so diverges"),
    (mf.FedProx, {"mu": 30.0, "local_steps": 1}, {}, ""), (mf.FedProx, {"mu": 19.0}, {}, ""),
    (mf.FedPDM, {"rho": 30.0, "local_rule": "paper"}, {}, "by -2, and so diverges"),
    (mf.FedProx, {"mu": 25.0, "local_steps": 60}, {"momentum": 0.9}, ""),
    (mf.FedProx, {"mu": 39.0, "local_steps": 60}, {"momentum": 0.9}, r"by -2\.9, with momentum 0\.9, and so diverges"),
    (mf.FedProx, {"mu": 16.0, "local_steps": 60}, NESTEROV, r"by -0\.6, with momentum 0\.9, and so diverges"),
    (mf.FedProx, {"mu": 13.0, "local_steps": 60}, NESTEROV, ""),
    # where y - v of a flat loss ends with the other sign, times R < 0, z_i - x is multiplied by 2 R - 1 < -1
    *((mf.FedSplit, {"s": s, "local_steps": steps, "start": start}, sgd, rf"end beyond its prox, of s = {s:g}" * bad)
      for s, steps, start, sgd, bad in (
          (0.08, 3, "server", {}, True), (0.08, 3, "own", {}, True), (0.08, 2, "server", {}, False),
          (0.1, 3, "server", {}, False), (0.08, 3, "paper", {}, False), (0.09, 5, "server", {}, False),
          (0.16, 2, "server", {"momentum": 0.9}, True), (0.16, 1, "own", NESTEROV, True),
          (0.16, 1, "server", {"momentum": 0.9}, False))),
    # harmless where nothing divides by them
    (mf.FedAvg, {}, AT_ZERO, ""),
    (mf.Scaffold, {}, AT_ZERO, r"client_optimizer\] learning_rate: ends at 0, .* give a final above 0"),
    (mf.FedPDM, {"rho": 1.0}, AT_ZERO, "ends at 0, .* give a final above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "settings", "sgd", "said"), CASES)
def test_steps(method: Any, settings: dict[str, Any], sgd: dict[str, Any], said: str, digits: Path) -> None:
    optimizer = mf.SGD(**{"learning_rate": 0.1, **sgd})
    made = method(**{"batch_size": 4, "local_steps": 2, "client_optimizer": optimizer, **settings})
    if said:
        with pytest.raises(mf.UsageError, match=said):
            mf.check(made, digits, mf.Softmax(), rounds=3)
    else:
        assert "Sent" in mf.check(made, digits, mf.Softmax(), rounds=3)
