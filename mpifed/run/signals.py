"""Signals that ask a run to end: from the user, a scheduler before a time limit, or a preemption."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mpifed.comm.aggregator import Request
from mpifed.core.errors import Interrupted

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@contextmanager
def stop_on_signals() -> Iterator[Request]:
    """Within the context, the first of the signals requests the end at the next round.

    When that end comes, SIGTERM and SIGUSR1 stay ignored: a scheduler signals its nodes a moment apart, and a rank that
    is already ending must not be killed by its own copy.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    process = os.getpid()

    def ask(number: int, frame: object) -> None:
        if os.getpid() != process:  # forked by a class of the user's, such as a process of a pool
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        request.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends it at once

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield request
    except Interrupted:
        before |= {signal.SIGTERM: signal.SIG_IGN, signal.SIGUSR1: signal.SIG_IGN}
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
