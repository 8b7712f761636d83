"""Algorithms as a user may write them, named in jobs as "own_algorithms:..."; some of them go wrong on purpose."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed import FedAvg
from mpifed.core.record import Array
from mpifed.maths.terms import Loss


@dataclass(frozen=True)
class Troubled(FedAvg):
    """FedAvg on whose client `at_client` something happens in round `at_round`, if $MPIFED_TEST_TROUBLE says what."""

    at_client: int = 6
    at_round: int = 5

    def start_client(self, x: Array) -> tuple[()]:
        """With trouble at the start, on the last rank; x is all zeros in no memory where a start is only tried."""
        world = os.environ
        here = world.get("PMI_RANK", world.get("OMPI_COMM_WORLD_RANK", "0"))
        size = world.get("PMI_SIZE", world.get("OMPI_COMM_WORLD_SIZE", "1"))
        if world.get("MPIFED_TEST_TROUBLE") == "start" and int(here) == int(size) - 1 and x.strides[0]:
            raise RuntimeError("trouble at the start")
        return ()

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        clients = local.block.clients
        if local.now.index == self.at_round and self.at_client in clients:
            trouble, upload = os.environ.get("MPIFED_TEST_TROUBLE", ""), np.array(change)
            self._happens(trouble)
            if trouble in ("nan", "inf", "large"):
                value = {"nan": np.nan, "inf": np.inf, "large": 1e9}[trouble]
                upload[np.flatnonzero(clients == self.at_client), 0] = value
            return upload
        return change

    def _happens(self, trouble: str) -> None:
        if trouble == "raise":
            raise RuntimeError("trouble in a round")
        if trouble in ("SIGKILL", "SIGUSR1", "SIGTERM"):
            os.kill(os.getpid(), getattr(signal, trouble))
        if trouble.startswith("sys.exit"):
            sys.exit(int(trouble[-1]))
        if trouble == "abort":
            os.abort()
        if trouble == "_exit":
            os._exit(7)
        if trouble == "interrupt":
            raise KeyboardInterrupt
        if trouble == "file":
            Path("/no/such/file").read_text()
        if trouble == "memory":
            np.empty(2**60, dtype=np.uint8)
        if trouble == "forked":  # a process of its own may end as it likes
            child = os.fork()
            if child == 0:
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


@dataclass(frozen=True)
class Everywhere(Troubled):
    """Raises at every client."""

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        raise RuntimeError("trouble everywhere")


@dataclass(frozen=True)
class OfNobody(Loss):
    """A term that counts no sample."""

    def counted(self, y: Array) -> Array:
        return np.zeros(y.shape, dtype=bool)
