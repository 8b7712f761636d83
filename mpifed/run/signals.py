"""Signals that ask a run to end: from the user, a scheduler before a time limit, or a preemption."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mpifed.comm.rounds import Request
from mpifed.core.errors import Interrupted

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
_process_ends = False  # whether an interruption ends the process, and not only a call in it


@contextmanager
def process_ends_with_run() -> Iterator[None]:
    """Within the context, an interrupted run leaves these signals ignored, but for SIGINT.

    A scheduler signals its nodes a moment apart, and a rank that is already ending must not be killed by its own copy.
    """
    global _process_ends
    before, _process_ends = _process_ends, True
    try:
        yield
    finally:
        _process_ends = before


@contextmanager
def stop_on_signals() -> Iterator[Request]:
    """Within the context, the first of the signals requests the end at the next round; then handlers are as before."""
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

    hung_up = signal.getsignal(signal.SIGHUP)
    asking = [number for number in _SIGNALS if (number, hung_up) != (signal.SIGHUP, signal.SIG_IGN)]  # as under nohup
    before = {number: signal.signal(number, ask) for number in asking}
    try:
        yield request
    except Interrupted:
        if _process_ends:
            before |= dict.fromkeys(_SIGNALS[:-1], signal.SIG_IGN)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: of a library in C
