"""Algorithms as a user may write them, named in jobs as "own_algorithms:..."; some of them go wrong on purpose."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed import FedAvg
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.terms import Loss


@dataclass(frozen=True)
class Troubled(FedAvg):
    """FedAvg on whose client `at_client` something happens in round `at_round`, if $MPIFED_TEST_TROUBLE says what."""

    at_client: int = 6
    at_round: int = 5

    def start_clients(self, block: Block, now: Round) -> tuple[()]:
        self._happens("start", block, at_round=now.index)
        return super().start_clients(block, now)

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        clients, answer = super().answer(clients, question, block, now)
        if now.index == self.at_round and self.at_client in block.clients:
            trouble = os.environ.get("MPIFED_TEST_TROUBLE", "")
            self._happens(trouble, block, at_round=now.index)
            if trouble in ("nan", "inf", "large"):
                value = {"nan": np.nan, "inf": np.inf, "large": 1e9}[trouble]
                answer.value.first[np.flatnonzero(block.clients == self.at_client), 0, 0] = value
        return clients, answer

    def _happens(self, trouble: str, block: Block, at_round: int) -> None:
        if self.at_client not in block.clients or os.environ.get("MPIFED_TEST_TROUBLE") != trouble:
            return
        if trouble == "start":
            raise RuntimeError("trouble at the start")
        if trouble == "raise":
            raise RuntimeError("trouble in a round")
        if trouble in ("SIGKILL", "SIGUSR1", "SIGTERM"):
            os.kill(os.getpid(), getattr(signal, trouble))
        if trouble.startswith("sys.exit"):
            sys.exit(int(trouble[-1]))
        if trouble.startswith("os._exit"):
            os._exit(int(trouble[-1]))
        if trouble == "abort":
            os.abort()
        if trouble == "interrupt":
            raise KeyboardInterrupt
        if trouble == "file":
            Path("/no/such/file").read_text()
        if trouble == "memory":
            np.empty(2**60, dtype=np.uint8)
        if trouble == "thread":
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
            threading.Event().wait()  # for what the thread was to bring
        if trouble == "forked":  # a process of its own may end as it likes
            child = os.fork()
            if child == 0:
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


class TroubledSum(Troubled):
    """The same, where the clients' answers are summed block by block."""

    def fused(self, question: Any, block: Block, now: Round) -> Any:
        if now.index == self.at_round:
            self._happens(os.environ.get("MPIFED_TEST_TROUBLE", ""), block, at_round=now.index)
        return super().fused(question, block, now)


@dataclass(frozen=True)
class Everywhere(Troubled):
    """Raises at every client."""

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        raise RuntimeError("trouble everywhere")


@dataclass(frozen=True)
class OfNobody(Loss):
    """A term that counts no sample."""

    def counted(self, y: Array) -> Array:
        return np.zeros(y.shape, dtype=bool)
