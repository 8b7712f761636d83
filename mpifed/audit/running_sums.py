"""Masks of the running sums of clients' last uploads, which the server keeps, sealed by a client.

The running sum less its plain value is a mask. Its plain value is known from the auditor's plain replay, upload by
upload; see `mpifed.comm.masking.stale_totals`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpifed.audit.masks import Mask
from mpifed.audit.messages import plan_of
from mpifed.audit.replay import Replay
from mpifed.audit.sealed import RUNNING_SUM
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.comm.key_streams import Part
from mpifed.comm.masking.stale_totals import SealedTotal, Unit
from mpifed.core.record import Array
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import RecordedMessage, client_of


def masks_of_running_sums(replay: Replay, plain: Replay) -> tuple[list[Mask], list[str]]:
    """(masks of all running sums that were sent to the server, descriptions of those with a wrong length)."""
    if replay.job.participation.max_dropouts:
        return [], []  # uploads of a void round may not count
    exchanges = {
        exchange.name: exchange for exchange in all_exchanges(replay.algorithm) if exchange.private and exchange.stale
    }
    plans = {name: plan_of(replay, exchange) for name, exchange in exchanges.items()}
    last: dict[str, dict[int, Array]] = {exchange.stale: {} for exchange in exchanges.values()}
    answers = {
        (message.exchange, message.turn, client_of(message)): message.data for message in plain.transcript.messages
        if message.kind == "upload" and message.exchange in exchanges
    }  # fmt: skip
    masks, wrong, numbers = list[Mask](), list[str](), dict[tuple[str, int], Iterator[Unit]]()
    for message in replay.transcript.messages:
        client = client_of(message)
        if message.exchange not in exchanges or client is None:
            continue
        plan, memory = plans[message.exchange], last[exchanges[message.exchange].stale]
        if message.kind == "upload":
            answer = answers.get((message.exchange, message.turn, client))
            if answer is None:
                return masks, wrong  # from here on, the running sum is not known
            memory[client] = answer
        elif message.what == RUNNING_SUM:
            # units come in order: a client that seals a unit has sealed, or received, all earlier ones that it holds
            units = numbers.setdefault((message.exchange, message.turn), iter(SealedTotal(plan).units))
            unit = next((unit for unit in units if unit.holders[client]), None)
            mask = None if unit is None else _mask(plan, memory, message, client, unit.at)
            if mask is None:
                name = Mask(
                    message.exchange, message.turn, message.round, client, np.zeros(0, np.int64), np.zeros(0)
                ).name
                wrong.append(
                    f"{name}: a sum so far of {message.data.nbytes} bytes, which is the size of no part of the sum"
                )
            else:
                masks.append(mask)
    return masks, wrong


def _mask(plan: ExchangePlan, memory: dict[int, Array], note: RecordedMessage, client: int, at: Part) -> Mask | None:
    """The mask of the running sum at positions `at` of the message; None if the note has another length."""
    total = np.zeros_like(plan.sum.message)
    for who, answer in memory.items():
        plan.put(total, who, answer)
    expected = total[at]
    if note.data.nbytes != expected.nbytes:
        return None
    words = (note.data.view(expected.dtype) - expected).view(f"u{expected.itemsize}")
    return Mask(f"{note.exchange}, sum so far", note.turn, note.round, client, np.arange(len(total))[at], words)
