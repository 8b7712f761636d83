"""An algorithm that takes its time, for runs that are to be interrupted; named in jobs as "unhurried:Unhurried"."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifed import FedAvg


@dataclass(frozen=True)
class Unhurried(FedAvg):
    """FedAvg whose server rests before every question, `pause_s` seconds, from round `pause_from` on; only in the first
    start of a Slurm job, or in every one (`always`). It changes no bit."""

    pause_s: float = 0.0
    pause_from: int = 0
    always: bool = False

    def start_memory(self, x: Any) -> Any:
        """The questions asked."""
        return np.int64(0)

    def broadcast(self, asked: Any) -> Any:
        """Nothing, later."""
        if asked >= self.pause_from and (self.always or "SLURM_RESTART_COUNT" not in os.environ):
            time.sleep(self.pause_s)
        return ()

    def absorb(self, asked: Any, mean: Any, done: Any) -> tuple[Any, Any]:
        return asked + np.int64(1), mean
