"""An algorithm that takes its time, for runs that are to be interrupted; named in jobs as "unhurried:Unhurried"."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from mpifed import FedAvg
from mpifed.algorithms.fedavg import FedAvgBroadcast, FedAvgServer
from mpifed.core.round import Round


@dataclass(frozen=True)
class Unhurried(FedAvg):
    """FedAvg whose server rests before every question, `pause_s` seconds, from round `pause_from` on; only in the first
    start of a Slurm job, or in every one (`always`). It changes no bit."""

    pause_s: float = 0.0
    pause_from: int = 0
    always: bool = False

    def ask(self, server: FedAvgServer, now: Round) -> FedAvgBroadcast:
        """What FedAvg asks, later."""
        if now.index >= self.pause_from and (self.always or "SLURM_RESTART_COUNT" not in os.environ):
            time.sleep(self.pause_s)
        return super().ask(server, now)
