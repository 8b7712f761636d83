"""Who learns what in a job, by its channel: of each exchange, and in general."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Protection
from mpifed.comm.groups import fewest
from mpifed.comm.places import Place
from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Exchange, ToClients
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.record import bare_leaves
from mpifed.run.protection import one_key


class View(NamedTuple):
    """What decides on who can see what."""

    protection: Protection
    cells: Cells
    present: NDArray[np.bool_]  # [N] of a round
    ranks: int
    at_server: int  # clients that rank 0 hosts
    partners: int  # with how many others each client shares masks
    withstands: int  # how many it takes to withstand a third of the clients
    leave: int = 0  # how many may leave before they have uploaded

    @property
    def clients(self) -> int:
        """In a round."""
        return int(self.present.sum())

    @property
    def one_key(self) -> bool:
        """Whether all clients hold a key that opens every ciphertext."""
        return one_key(self.protection)


def learns(exchange: Exchange, places: Sequence[Place], view: View) -> dict[str, str]:
    """What the server and the clients learn of the uploads to an exchange."""
    whole, plain = _sum(places, view), view.protection.channel == "plain" or not exchange.private
    read = "every upload, in the clear" if view.protection.channel != "plain" else "every upload"
    if isinstance(exchange, ToClients):
        who = "clients" if exchange.hearer is None else f"client {exchange.hearer} alone"
        who = "clients who return" if exchange.returning else who
        if all(place.field.rows is not None for place in places):
            whole = _of_rows(places, view, bool(exchange.stale))
        elif exchange.stale:
            whole = _with_last(whole)
        server = "nothing" if exchange.silent or not plain else read
        return {"server": server, who: whole}
    bare = view.protection.channel == "masked" and not view.protection.max_dropouts and exchange.private
    if bare and any(fewest(place, view.cells, view.present) == 1 for place in places):
        whole += ", which are not masked"
    if exchange.stale:
        whole = _with_last(whole)
    return {
        "server": read if plain else whole,
        "clients": "nothing, but for the one who opens it" if view.one_key and exchange.private else "nothing",
    }


def _with_last(whole: str) -> str:
    """What the server or clients receive where absent clients go on counting."""
    if whole.startswith("single"):
        return f"changes of {whole}, and their sum with the last uploads of absent clients"
    return f"{whole}, and of the last ones of absent clients"


def _of_rows(places: Sequence[Place], view: View, stale: bool) -> str:
    """What clients receive of sums by rows."""
    holders = [_holders(view.cells.rows, place) for place in places]
    least, most = min(low for low, _ in holders), max(high for _, high in holders)
    if most <= 1:
        return "what they sent of their own rows, and nothing of others"
    count = f"{least}" if least == most else f"{least} to {most}"
    last = ", including the last uploads of absent clients" if stale else ""
    two = "; with two, each learns the other's part" if least <= 2 else ""
    return f"of each of their rows the sum over its holders ({count}){last}{two}"


def _holders(held: Holdings, place: Place) -> tuple[int, int]:
    """The least, above one, and the most clients who fill a row of a field."""
    filled = held.holders if place.field.sender is None else np.ones(1, dtype=np.int64)
    most = int(filled.max(initial=0))
    return int(filled[filled > 1].min(initial=most)), most


def _sum(places: Sequence[Place], view: View) -> str:
    """What a sum is of."""
    counts = {p.name.partition(".")[2]: fewest(p, view.cells, view.present) for p in places}
    counts = {name: count or 1 for name, count in counts.items()}  # of rows that one client holds, that client's own
    names = {name: name.removeprefix("statistics.") for name in counts}
    single = ", ".join(names[name] for name, count in counts.items() if count == 1)
    some = ", ".join(f"{names[name]} of {count}" for name, count in counts.items() if 1 < count < view.clients)
    if set(counts.values()) == {1}:
        return f"single clients' own {single}"
    fewer = f"{view.clients - view.leave} to " if view.leave else ""
    whole = f"the sum of {fewer}{view.clients} uploads" + (f" ({some})" if some else "")
    return whole + (f", and single clients' own {single}" if single else "")


def told(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The same of several exchanges, in words: those that are alike together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for exchange in {one["name"]: one for one in found}.values():
        (_, server), (who, clients) = exchange["learns"].items()
        alike.setdefault((server, who, clients), []).append(exchange["name"])
    for (server, who, clients), names in alike.items():
        learn = "learn" if who.startswith("clients") else "learns"
        yield f"{', '.join(names)}: the server learns {server}; {who} {learn} {clients}"


def in_general(algorithm: Algorithm, view: View, measured: bool) -> list[str]:
    """What holds for all exchanges."""
    parts = any(exchange.told_by_columns for exchange in algorithm.exchanges)
    lines = ["every participating client learns the broadcast" + ", of `own columns` its own part" * parts]
    if view.protection.channel == "plain":
        return lines + list(_plain(algorithm, view, measured))
    lines += ["who takes part, how much is sent, and when, is hidden from nobody"]
    lines += _masked(view) if view.protection.channel == "masked" else _encrypted(view)
    lines += _in_clear(algorithm, measured) + _of_shared(algorithm, view) + _kept(algorithm, view)
    lines += [f"no sum of fewer than {view.protection.min_clients} uploads is opened" + _allowed(view.protection)]
    lines += ["assumed: all follow the protocol (honest but curious); the server passes on public keys unchanged"]
    return lines + list(_ranks(algorithm, view))


def _plain(algorithm: Algorithm, view: View, measured: bool) -> Iterator[str]:
    fields = [field for exchange in algorithm.exchanges for field in bare_leaves(exchange.fields)]
    if any(field.in_parts for field in fields):
        yield "a value marked with a client, or of columns or rows that one client holds, is that client's own"
    yield "plain hides nothing: in a deployment the server would see every client's own upload"
    yield "here each rank's process sees the data and uploads of the clients it hosts"
    if view.ranks > 1:
        yield "rank 0 sees every rank's partial sum, which is an upload where one client participates"
    if measured:
        yield "evaluation reveals to rank 0 every rank's sum of losses, over all rows it hosts"


def _in_clear(algorithm: Algorithm, measured: bool) -> list[str]:
    """What no channel seals."""
    found = [*algorithm.setup, *algorithm.exchanges]
    found += [one for measure in algorithm.measures for one in measure.exchanges] if measured else []
    names = dict.fromkeys(one.name for one in found if not one.private)
    if not names:
        return []
    return [
        f"in the clear by design: {', '.join(names)}; where what a client sends there is a sum over its rows, and one "
        "row alone has moved since, the difference is that row times its step"
    ]


def _of_shared(algorithm: Algorithm, view: View) -> list[str]:
    """What holders of the same rows or columns learn of each other, and the server of who holds what."""
    fields = [field for exchange in algorithm.exchanges for field in bare_leaves(exchange.fields)]
    lines = []
    if any(field.rows is not None for field in fields):
        lines.append("the server knows the numbers of the samples that each client holds, and not whose they are")
    columns = view.cells.columns.holders
    told = any(exchange.told_by_columns for exchange in algorithm.exchanges)
    if told and any(field.columns is not None for field in fields) and (columns == 2).any():
        lines.append(
            "columns have two holders: each sees in the next broadcast how the sum over both has changed, so the "
            "other's part of it"
        )
    return lines


def _kept(algorithm: Algorithm, view: View) -> list[str]:
    """How last uploads stay with the server."""
    stale = [one for one in algorithm.exchanges if one.stale and one.private]
    if not stale:
        return []
    twice = "who receives a sum twice learns the change: that of one client, if it alone participated in between"
    if view.protection.channel == "encrypted":
        kept = "the server keeps each client's last ciphertexts: it sees when they are renewed, never what they hold"
        return [kept, twice]
    sealed = any(isinstance(one, ToClients) for one in stale)
    how = ", where clients receive them sealed under the clients' common key" if sealed else ""
    return [f"clients send how their uploads have changed, and the server keeps the sums{how}", twice]


def _allowed(protection: Protection) -> str:
    return f", but for those allowed by name: {', '.join(protection.allow)}" if protection.allow else ""


def _masked(view: View) -> Iterator[str]:
    """Who would have to tell the server what."""
    k, leave = view.partners, view.protection.max_dropouts
    everybody = k >= view.clients - 1
    whom = f"the {k} others" if everybody else f"{k} of the {view.clients - 1} others"
    yield f"masked: each client shares a mask with each of {whom}"
    if leave:
        yield (
            f"for up to {leave} clients who may leave, the server and {k - leave} of a client's {k} partners together "
            "could open its upload; fewer could not"
        )
    elif everybody:
        yield "the server and any clients together learn the sum of all others' uploads, and no more"
    else:
        yield f"the server and all {k} partners of a client could open its upload"
    if not everybody and k >= view.withstands:
        yield (
            "a third of all clients, chosen beforehand, help it to the sum of the others' uploads and no more, but for "
            "a chance of 2^-40"
        )
    elif not everybody:
        yield f"it takes {view.withstands} partners each to withstand a third of all clients, but for a chance of 2^-40"
    if len(view.cells.columns.members) > 1:
        yield "values of columns are masked among the holders of these columns"


def _encrypted(view: View) -> Iterator[str]:
    scheme = view.protection.scheme
    if view.one_key:
        yield f"encrypted ({scheme}): all clients share the secret key, which the server lacks"
        yield "the server and any one client together could open every upload"
    else:
        yield f"encrypted ({scheme}): each client has its own share of the key, and it takes all of them to open a sum"
        yield "the server and any clients together learn the sum of all others' uploads, and no more"


def _ranks(algorithm: Algorithm, view: View) -> Iterator[str]:
    """What the processes of this machine are in it."""
    if view.ranks == 1:
        yield "one rank: its process holds all data and keys; it shows costs and bits, and hides nothing"
        return
    yield "here each rank's process sees the data, uploads and keys of the clients it hosts"
    if not view.at_server:
        yield "rank 0 is the server alone: no key of a client is in its process"
        return
    clients = f"rank 0 is shared: its process holds the keys of {view.at_server} client{'s' * (view.at_server > 1)}"
    if view.one_key:
        yield f"{clients}, and so could open every upload; [server] dedicated = true keeps them apart"
    elif any(isinstance(exchange, ToClients) for exchange in algorithm.exchanges):
        yield f"{clients}, and so could open what is for clients only; [server] dedicated = true keeps them apart"
    else:
        yield f"{clients}, who count as colluding with the server; [server] dedicated = true keeps them apart"
