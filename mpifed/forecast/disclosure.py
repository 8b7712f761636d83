"""Who learns what in a job, by its channel: from each exchange, and in general."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.channels.base import Protection
from mpifed.comm.sums import Place
from mpifed.core.exchange import Exchange, fields_of, hearing
from mpifed.core.holdings import Holdings
from mpifed.core.round import Round
from mpifed.core.tables import Table
from mpifed.data.store import Federation
from mpifed.job.schema import JobSettings
from mpifed.observers import Observer, observer_name
from mpifed.text import counted


class View(NamedTuple):
    """Everything that decides on who learns what."""

    protection: Protection
    columns: Holdings  # which client holds which
    now: Round  # a round, and who participates
    by_columns: bool  # whether a client is sent its own columns of broadcasts alone
    ranks: int
    at_server: int  # number of clients that rank 0 hosts
    partners: int  # number of clients with whom each client shares masks
    leave: int = 0  # number of clients that may drop out before they have uploaded

    @property
    def clients(self) -> int:
        return int(self.now.present.sum())

    @property
    def one_key(self) -> bool:
        """Whether all clients hold a key that opens every ciphertext."""
        return self.protection.channel == "encrypted"


# --- of an exchange ---------------------------------------------------------------------------------------------------


def learns(exchange: Exchange, places: Sequence[Place], view: View) -> dict[str, str]:
    """What the server and the clients learn from the uploads of an exchange."""
    channel, heard = view.protection.channel, exchange.hear is not None
    plain, whole = channel == "plain" or exchange.clear, _sum(places, view)
    read = "every upload" if channel == "plain" else "every upload, in the clear"
    if heard and all(place.field.to_holders for place in places):
        whole = _of_rows(places, bool(exchange.keeps))
    else:
        bare = channel == "masked" and not (heard or exchange.clear or view.protection.max_dropouts)
        if bare and any(place.fewest(view.now.present) == 1 for place in places):
            whole += ", which are not masked"
        if exchange.keeps and whole.startswith("single"):
            whole = f"changes of {whole}, and their sum with the last uploads of absent clients"
        elif exchange.keeps:
            whole += ", and of the last uploads of absent clients"
    if heard:
        who = receiver(exchange, view.now) + (" alone" if exchange.hears else "")
        server = "nothing" if exchange.answer is None or not plain else read
        return {"server": server, "clients who return" if exchange.who else who: whole}
    opener = ", but for the one who opens it" if view.one_key and not exchange.clear else ""
    return {"server": read if plain else whole, "clients": f"nothing{opener}"}


def receiver(exchange: Exchange, now: Round) -> str:
    """Who receives the sum."""
    if exchange.hear is None:
        return "server"
    return "clients" if exchange.hears is None else f"client {hearing(exchange, now)[0]}"


def _of_rows(places: Sequence[Place], keeps: bool) -> str:
    """What clients receive from sums by rows, of which some have one holder alone."""
    holders = np.concatenate([place.held.holders for place in places if place.held is not None])
    shared = holders[holders > 1]
    if not len(shared):
        return "what they sent of their own rows, and nothing of others"
    fewest, most = int(shared.min()), int(shared.max())
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    last = ", including the last uploads of absent clients" if keeps else ""
    pair = "; with two, each learns the other's part" if fewest == 2 else ""
    return f"of each of their rows the sum over its holders ({count}){last}{pair}"


def _sum(places: Sequence[Place], view: View) -> str:
    """What a sum consists of."""
    counts = {
        place.name.partition(".")[2].removeprefix("statistics."): place.fewest(view.now.present) or 1  # 0: one holder
        for place in places
    }
    single = ", ".join(name for name, count in counts.items() if count == 1)
    if set(counts.values()) == {1}:
        return f"single clients' own {single}"
    fewer = ", ".join(f"{name} of {count}" for name, count in counts.items() if 1 < count < view.clients)
    whole = f"the sum of {f'{view.clients - view.leave} to ' if view.leave else ''}{view.clients} uploads"
    return whole + (f" ({fewer})" if fewer else "") + (f", and single clients' own {single}" if single else "")


def disclosure_lines(exchanges: Sequence[Table]) -> Iterator[str]:
    """Who learns what from several exchanges, as text; exchanges with the same answer share a line."""
    names_by_text: dict[tuple[str, ...], list[str]] = {}
    for name, learned in {exchange["name"]: exchange["learns"] for exchange in exchanges}.items():
        (_, server), (who, clients) = learned.items()
        names_by_text.setdefault((server, who, clients), []).append(name)
    for (server, who, clients), names in names_by_text.items():
        learn = "learn" if who.startswith("clients") else "learns"
        yield f"{', '.join(names)}: the server learns {server}; {who} {learn} {clients}"


# --- of all exchanges -------------------------------------------------------------------------------------------------


def general_statements(algorithm: Algorithm, view: View, measured: bool) -> list[str]:
    """Statements that hold for all exchanges; `measured`: whether the model is, over training rows."""
    of_columns = ", of `own columns` its own part" * view.by_columns
    rows = _plain if view.protection.channel == "plain" else _sealed
    said = [(True, f"every participating client learns the broadcast{of_columns}"), *rows(algorithm, view, measured)]
    return [text for applies, text in said if applies]


def _plain(algorithm: Algorithm, view: View, measured: bool) -> Iterator[tuple[bool, str]]:
    fields = [field for exchange in algorithm.exchanges for field in fields_of(exchange).values()]
    yield (
        any(field.held is not None or field.sender is not None for field in fields),
        "a value marked with a client, or of columns or rows with a single holder, is that client's own",
    )
    yield True, "plain hides nothing: in a deployment the server would see every client's own upload"
    yield True, "here each rank's process sees the data and uploads of the clients it hosts"
    yield view.ranks > 1, "rank 0 sees every rank's partial sum, which is an upload where one client participates"
    yield measured, "evaluation reveals to rank 0 every rank's sum of losses, over all rows it hosts"


def _sealed(algorithm: Algorithm, view: View, measured: bool) -> Iterator[tuple[bool, str]]:
    how, clear = view.protection, [*algorithm.setup, *algorithm.exchanges]
    clear += [exchange for measure in algorithm.measures for exchange in measure.exchanges] if measured else []
    names = ", ".join(dict.fromkeys(exchange.name for exchange in clear if exchange.clear))
    allowed = f", except those allowed by name: {', '.join(how.allow)}" if how.allow else ""
    yield True, "who participates, how much is sent, and when, is visible to everyone"
    yield view.one_key, "encrypted (BFV): all clients share the secret key, which the server lacks"
    yield view.one_key, "the server and any one client together could open every upload"
    if not view.one_key:
        yield from _masked(view)
    yield (
        bool(names),
        f"in the clear by design: {names}; if an upload there is a sum over the client's rows and a single row has "
        "moved since the last one, the difference is that row times its step",
    )
    yield from _of_holders(algorithm, view)
    yield from _last_uploads(algorithm, view, allowed)
    yield True, f"no sum of fewer than {how.min_clients} uploads is opened{allowed}"
    yield True, "assumed: all follow the protocol (honest but curious); the server relays public keys unchanged"
    yield from _ranks(algorithm, view)


def _masked(view: View) -> Iterator[tuple[bool, str]]:
    """Who would have to collude with the server to open an upload."""
    k, others, leave = view.partners, view.clients - 1, view.protection.max_dropouts
    everybody = k >= others
    whom = f"the {k} others" if everybody else f"{k} of the {others} others"
    yield True, f"masked: each client shares a mask with each of {whom}"
    yield (
        leave > 0,
        f"since up to {leave} clients may drop out, the server and {k - leave} of a client's {k} partners together "
        "could open its upload; fewer could not",
    )
    yield (
        not leave and everybody,
        "the server and any clients together learn the sum of all others' uploads, and no more",
    )
    yield not (leave or everybody), f"the server and all {k} partners of a client could open its upload"
    yield (
        not everybody,
        "if a third of all clients, chosen beforehand, collude with it, it learns the sum of the others' uploads and "
        "no more, except with probability 2^-40",
    )
    yield len(view.columns.members) > 1, "values of columns are masked among the holders of those columns"


def _of_holders(algorithm: Algorithm, view: View) -> Iterator[tuple[bool, str]]:
    """What holders of the same rows or columns learn about each other, and the server about who holds what."""
    fields = [field for exchange in algorithm.exchanges for field in fields_of(exchange).values()]
    of_columns = view.by_columns and any(field.held is not None and not field.to_holders for field in fields)
    yield (
        any(field.to_holders for field in fields),
        "the server knows the indices of the samples that each client holds, but not whose they are",
    )
    yield (
        of_columns and bool((view.columns.holders == 2).any()),
        "columns have two holders: each sees in the next broadcast how the sum over both has changed, and so the "
        "other's part of it",
    )


def _last_uploads(algorithm: Algorithm, view: View, allowed: str) -> Iterator[tuple[bool, str]]:
    """How the server keeps the last uploads of absent clients."""
    kept = [exchange for exchange in algorithm.exchanges if exchange.keeps and not exchange.clear]
    which, least = "all of them" if view.one_key else "those for clients", view.protection.min_clients
    sealed = view.one_key or any(exchange.hear is not None for exchange in kept)
    how = f", {which} encrypted under the clients' common key" if sealed else ""
    yield bool(kept), f"clients upload changes of their last uploads, and the server keeps the sums{how}"
    yield (
        bool(kept),
        "who receives a sum twice learns its change: that of one client, if it alone participated in between",
    )
    yield (
        least > 1 and any(exchange.withholds for exchange in kept),
        f"of these, the server's own keep the last uploads wherever fewer than {least} participating clients fill a "
        f"position: there it learns no change{allowed}",
    )


def _ranks(algorithm: Algorithm, view: View) -> Iterator[tuple[bool, str]]:
    """What the processes of a run on this machine see."""
    several, shared = view.ranks > 1, view.ranks > 1 and view.at_server > 0
    opens = "who count as colluding with the server"
    if view.one_key:
        opens = "and so could open every upload"
    elif any(exchange.hear is not None for exchange in algorithm.exchanges):
        opens = "and so could open what is for clients only"
    yield (
        not several,
        "one rank: its process holds all data and keys; it gives the costs and results, and hides nothing",
    )
    yield several, "here each rank's process sees the data, uploads and keys of the clients it hosts"
    yield several and not shared, "rank 0 is the server alone: no key of a client is in its process"
    yield (
        shared,
        f"rank 0 is shared: its process holds the keys of {counted(view.at_server, 'client')}, {opens}; "
        "[server] dedicated = true keeps them apart",
    )


# --- of what is measured ----------------------------------------------------------------------------------------------


def observer_statement(observer: Observer, job: JobSettings) -> str:
    """What an observer of a run gets, and where it brings that."""
    noisy = job.privacy is not None and not job.record.released_only
    losses = ", with what is measured over training data without noise" if noisy else ""
    gets = f"gets the job's settings, the rows of the history{losses}, and the summary of the run"
    return f"observer {observer_name(observer)} {gets}: {observer.destination()}"


def test_statements(job: JobSettings, data: Federation, evaluated: bool) -> Iterator[str]:
    """What is measured on test rows, and who sends it; `evaluated`: whether the clients' own test rows are."""
    score = "accuracy" if data.classes else "RMSE"
    if data.test_samples and job.record.evaluate_every:
        more = score if data.classes else f"{score} and R2"
        yield f"{data.test_samples} common test rows, which rank 0 reads: loss, {more}"
    count = int(np.count_nonzero(data.test_counts))
    own = f"{int(data.test_counts.sum())} test rows of {count} of {data.clients} clients' own"
    if count and evaluated:
        yield f"{own}: each of these clients sends its {score} and loss to the server, in the clear and without noise"
    elif count:
        yield f"{own}: not evaluated, since the server would learn a number of each client"
