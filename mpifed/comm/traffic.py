"""What one run of an exchange costs in a deployment: bytes of uploads and downloads, and values that are hidden."""

from __future__ import annotations

import numpy as np

from mpifed.comm.channel import Channel, answering, hearing
from mpifed.comm.cost_accounts import Spent
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.core.exchange import ToClients
from mpifed.core.record import Record, leaves, nbytes
from mpifed.core.round import Round


def spent(plan: ExchangePlan, channel: Channel, question: Record, now: Round) -> Spent:
    """Cost of running the exchange of a plan once in a channel."""
    exchange, columns = plan.exchange, plan.cells.columns
    asked, participating, receiving = now.asked, answering(exchange, now), hearing(exchange, now)
    up, down = channel.traffic(plan, now)
    by_columns = sum(nbytes(leaf) for name, leaf in leaves(question) if name in exchange.told_by_columns)
    clear = np.where(asked, nbytes(question) - by_columns, 0)
    clear += by_columns // columns.length * np.where(asked, columns.widths, 0)
    down, to_clients = down + clear, isinstance(exchange, ToClients)
    opened = (plan.values_received * receiving).max() if to_clients else plan.values
    return Spent(
        up_bytes=int(up.sum()),
        down_bytes=int(down.sum()),
        up_most=int(up.max()),
        down_most=int(down.max()),
        sealed_most=int((plan.values_sent * participating).max()) if exchange.private else 0,
        opened_most=int(opened) if exchange.private else 0,
        up_clear=plan.sum.nbytes if exchange.private and not to_clients else 0,
        down_clear=int(clear.max()),
        added=int(plan.values_sent @ participating),
    )
