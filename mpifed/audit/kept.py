"""What the server keeps of clients' last answers, sealed by one of them: less what it should be, it is a mask as well.

The sum so far is known from the plain channel, in the auditor's own play, answer by answer; see
`mpifed.comm.masking.sealed_total`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.masks import Mask
from mpifed.audit.plays import line_of
from mpifed.audit.sealed import KEPT
from mpifed.audit.stage import Stage
from mpifed.comm.line import Line
from mpifed.comm.masking.sealed_total import SealedTotal
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import Message, client_of


def masks_of_kept(stage: Stage, plain: Stage) -> tuple[list[Mask], list[str]]:
    """Of all sums so far that were handed to the server; and those that are not as long as what they are a sum of."""
    if stage.job.participation.max_dropouts:
        return [], []  # an answer of a round that came to nothing may not count
    exchanges = {one.name: one for one in all_exchanges(stage.algorithm) if one.private and one.stale}
    lines = {name: line_of(stage, one) for name, one in exchanges.items()}
    last: dict[str, dict[int, NDArray[Any]]] = {one.stale: {} for one in exchanges.values()}
    answers = {
        (one.exchange, one.turn, client_of(one)): one.data for one in plain.transcript.messages
        if one.kind == "upload" and one.exchange in exchanges
    }  # fmt: skip
    masks, wrong, numbers = list[Mask](), list[str](), dict[tuple[str, int], Iterator[Any]]()
    for one in stage.transcript.messages:
        client = client_of(one)
        if one.exchange not in exchanges or client is None:
            continue
        line, memory = lines[one.exchange], last[exchanges[one.exchange].stale]
        if one.kind == "upload":
            answer = answers.get((one.exchange, one.turn, client))
            if answer is None:
                return masks, wrong  # from here on the sum is not known
            memory[client] = answer
        elif one.what == KEPT:
            # units come in order, and who seals one has sealed, or seen sealed, all before that it holds
            units = numbers.setdefault((one.exchange, one.turn), iter(SealedTotal(line).units))
            unit = next((unit for unit in units if unit.holders[client]), None)
            mask = None if unit is None else _mask(line, memory, one, client, unit.at)
            if mask is None:
                name = Mask(one.exchange, one.turn, one.round, client, np.zeros(0, np.int64), np.zeros(0)).name
                wrong.append(f"{name}: a sum so far of {one.data.nbytes} bytes, which is none of a part of the sum")
            else:
                masks.append(mask)
    return masks, wrong


def _mask(line: Line, memory: dict[int, NDArray[Any]], note: Message, client: int, at: Any) -> Mask | None:
    """What was added to the sum of last answers at places of the message; None where the note has another length."""
    total = np.zeros_like(line.sum.message)
    for who, answer in memory.items():
        line.put(total, who, answer)
    should = total[at]
    if note.data.nbytes != should.nbytes:
        return None
    words = (note.data.view(should.dtype) - should).view(f"u{should.itemsize}")
    return Mask(f"{note.exchange}, sum so far", note.turn, note.round, client, np.arange(len(total))[at], words)
