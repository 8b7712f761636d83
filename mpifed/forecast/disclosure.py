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


def learns(exchange: Exchange, places: Sequence[Place], view: View) -> dict[str, str]:
    """What the server and the clients learn from the uploads of an exchange."""
    whole, plain = _sum(places, view), view.protection.channel == "plain" or exchange.clear
    read = "every upload, in the clear" if view.protection.channel != "plain" else "every upload"
    if exchange.hear is not None:
        who = receiver(exchange, view.now)
        who = f"{who} alone" if exchange.hears else who
        who = "clients who return" if exchange.who else who
        if all(place.field.to_holders for place in places):
            whole = _of_rows(places, bool(exchange.keeps))
        elif exchange.keeps:
            whole = _with_last(whole)
        server = "nothing" if exchange.answer is None or not plain else read
        return {"server": server, who: whole}
    bare = view.protection.channel == "masked" and not view.protection.max_dropouts and not exchange.clear
    if bare and any(place.fewest(view.now.present) == 1 for place in places):
        whole += ", which are not masked"
    if exchange.keeps:
        whole = _with_last(whole)
    return {
        "server": read if plain else whole,
        "clients": "nothing, but for the one who opens it" if view.one_key and not exchange.clear else "nothing",
    }


def receiver(exchange: Exchange, now: Round) -> str:
    """Who receives the sum."""
    if exchange.hear is None:
        return "server"
    return "clients" if exchange.hears is None else f"client {hearing(exchange, now)[0]}"


def observer_statement(observer: Observer, job: JobSettings) -> str:
    """What an observer of a run gets, and where it brings that."""
    noisy = job.privacy is not None and not job.record.released_only
    losses = ", with what is measured over training data without noise" if noisy else ""
    gets = f"gets the job's settings, the rows of the history{losses}, and the summary of the run"
    return f"observer {observer_name(observer)} {gets}: {observer.destination()}"


def _with_last(whole: str) -> str:
    """What the server or clients receive if the last uploads of absent clients still count."""
    if whole.startswith("single"):
        return f"changes of {whole}, and their sum with the last uploads of absent clients"
    return f"{whole}, and of the last uploads of absent clients"


def _of_rows(places: Sequence[Place], keeps: bool) -> str:
    """What clients receive from sums by rows."""
    holders = [_holders(place.held) for place in places if place.held is not None]
    fewest_holders, largest = min(low for low, _ in holders), max(high for _, high in holders)
    if largest <= 1:
        return "what they sent of their own rows, and nothing of others"
    count = f"{fewest_holders}" if fewest_holders == largest else f"{fewest_holders} to {largest}"
    last = ", including the last uploads of absent clients" if keeps else ""
    pair = "; with two, each learns the other's part" if fewest_holders <= 2 else ""
    return f"of each of their rows the sum over its holders ({count}){last}{pair}"


def _holders(held: Holdings) -> tuple[int, int]:
    """The fewest (of those above 1) and the most clients that fill a row of a field."""
    filled = held.holders
    largest = int(filled.max(initial=0))
    return int(filled[filled > 1].min(initial=largest)), largest


def _sum(places: Sequence[Place], view: View) -> str:
    """What a sum consists of."""
    counts = {p.name.partition(".")[2]: p.fewest(view.now.present) for p in places}
    counts = {name: count or 1 for name, count in counts.items()}  # 0: rows with one holder
    names = {name: name.removeprefix("statistics.") for name in counts}
    single = ", ".join(names[name] for name, count in counts.items() if count == 1)
    fewer_clients = ", ".join(f"{names[name]} of {count}" for name, count in counts.items() if 1 < count < view.clients)
    if set(counts.values()) == {1}:
        return f"single clients' own {single}"
    fewer = f"{view.clients - view.leave} to " if view.leave else ""
    whole = f"the sum of {fewer}{view.clients} uploads" + (f" ({fewer_clients})" if fewer_clients else "")
    return whole + (f", and single clients' own {single}" if single else "")


def disclosure_lines(exchanges: Sequence[Table]) -> Iterator[str]:
    """Who learns what from several exchanges, as text; exchanges with the same answer share a line."""
    names_by_text: dict[tuple[str, ...], list[str]] = {}
    for exchange in {exchange["name"]: exchange for exchange in exchanges}.values():
        (_, server), (who, clients) = exchange["learns"].items()
        names_by_text.setdefault((server, who, clients), []).append(exchange["name"])
    for (server, who, clients), names in names_by_text.items():
        learn = "learn" if who.startswith("clients") else "learns"
        yield f"{', '.join(names)}: the server learns {server}; {who} {learn} {clients}"


def general_statements(algorithm: Algorithm, view: View, measured: bool) -> list[str]:
    """Statements that hold for all exchanges."""
    of_columns = ", of `own columns` its own part" * view.by_columns
    lines = [f"every participating client learns the broadcast{of_columns}"]
    if view.protection.channel == "plain":
        return lines + list(_plain(algorithm, view, measured))
    lines += ["who participates, how much is sent, and when, is visible to everyone"]
    lines += _masked(view) if view.protection.channel == "masked" else _encrypted(view)
    lines += _in_clear(algorithm, measured) + _of_shared(algorithm, view) + _last_uploads(algorithm, view)
    lines += [f"no sum of fewer than {view.protection.min_clients} uploads is opened" + _allowed(view.protection)]
    lines += ["assumed: all follow the protocol (honest but curious); the server relays public keys unchanged"]
    return lines + list(_ranks(algorithm, view))


def test_statements(job: JobSettings, data: Federation, evaluated: bool) -> Iterator[str]:
    """What is measured on test rows, and who sends it.

    Parameters
    ----------
    evaluated : whether the clients' own test rows are
    """
    score = "accuracy" if data.classes else "RMSE"
    if data.test_samples and job.record.evaluate_every:
        more = [score if data.classes else f"{score} and R2", *job.record.metrics]
        yield f"{data.test_samples} common test rows, which rank 0 reads: loss, {', '.join(more)}"
    count, rows = int(np.count_nonzero(data.test_counts)), int(data.test_counts.sum())
    if not count:
        return
    own = f"{rows} test rows of {count} of {data.clients} clients' own"
    if evaluated:
        yield f"{own}: each of these clients sends its {score} and loss to the server, in the clear and without noise"
    else:
        why = "with released_only" if job.record.released_only else f"with {job.channel} uploads"
        why = why if job.record.evaluate_every and job.record.client_tests is None else "by [record]"
        yield f"{own}: not evaluated {why}, since the server would learn a number of each client"


def _plain(algorithm: Algorithm, view: View, measured: bool) -> Iterator[str]:
    fields = [field for exchange in algorithm.exchanges for field in fields_of(exchange).values()]
    if any(field.held is not None or field.sender is not None for field in fields):
        yield "a value marked with a client, or of columns or rows with a single holder, is that client's own"
    yield "plain hides nothing: in a deployment the server would see every client's own upload"
    yield "here each rank's process sees the data and uploads of the clients it hosts"
    if view.ranks > 1:
        yield "rank 0 sees every rank's partial sum, which is an upload where one client participates"
    if measured:
        yield "evaluation reveals to rank 0 every rank's sum of losses, over all rows it hosts"


def _in_clear(algorithm: Algorithm, measured: bool) -> list[str]:
    """The exchanges that no channel protects."""
    exchanges = [*algorithm.setup, *algorithm.exchanges]
    exchanges += [exchange for measure in algorithm.measures for exchange in measure.exchanges] if measured else []
    names = dict.fromkeys(exchange.name for exchange in exchanges if exchange.clear)
    if not names:
        return []
    return [
        f"in the clear by design: {', '.join(names)}; if an upload there is a sum over the client's rows and a single "
        "row has moved since the last one, the difference is that row times its step"
    ]


def _of_shared(algorithm: Algorithm, view: View) -> list[str]:
    """What holders of the same rows or columns learn about each other, and the server about who holds what."""
    fields = [field for exchange in algorithm.exchanges for field in fields_of(exchange).values()]
    lines = []
    if any(field.to_holders for field in fields):
        lines.append("the server knows the indices of the samples that each client holds, but not whose they are")
    of_columns = any(field.held is not None and not field.to_holders for field in fields)
    if view.by_columns and of_columns and (view.columns.holders == 2).any():
        lines.append(
            "columns have two holders: each sees in the next broadcast how the sum over both has changed, and so the "
            "other's part of it"
        )
    return lines


def _last_uploads(algorithm: Algorithm, view: View) -> list[str]:
    """How the server keeps the last uploads of absent clients."""
    kept = [exchange for exchange in algorithm.exchanges if exchange.keeps and not exchange.clear]
    if not kept:
        return []
    repeated = "who receives a sum twice learns its change: that of one client, if it alone participated in between"
    sealed = any(exchange.hear is not None for exchange in kept)
    which = "all of them" if view.one_key else "those for clients"
    how = f", {which} encrypted under the clients' common key" if sealed or view.one_key else ""
    lines = [f"clients upload changes of their last uploads, and the server keeps the sums{how}", repeated]
    if any(exchange.withholds for exchange in kept) and view.protection.min_clients > 1:
        lines.append(
            f"of these, the server's own keep the last uploads wherever fewer than {view.protection.min_clients} "
            "participating clients fill a position: there it learns no change" + _allowed(view.protection)
        )
    return lines


def _allowed(protection: Protection) -> str:
    return f", except those allowed by name: {', '.join(protection.allow)}" if protection.allow else ""


def _masked(view: View) -> Iterator[str]:
    """Who would have to collude with the server to open an upload."""
    k, leave = view.partners, view.protection.max_dropouts
    everybody = k >= view.clients - 1
    whom = f"the {k} others" if everybody else f"{k} of the {view.clients - 1} others"
    yield f"masked: each client shares a mask with each of {whom}"
    if leave:
        yield (
            f"since up to {leave} clients may drop out, the server and {k - leave} of a client's {k} partners together "
            "could open its upload; fewer could not"
        )
    elif everybody:
        yield "the server and any clients together learn the sum of all others' uploads, and no more"
    else:
        yield f"the server and all {k} partners of a client could open its upload"
    if not everybody:
        yield (
            "if a third of all clients, chosen beforehand, collude with it, it learns the sum of the others' uploads "
            "and no more, except with probability 2^-40"
        )
    if len(view.columns.members) > 1:
        yield "values of columns are masked among the holders of those columns"


def _encrypted(view: View) -> Iterator[str]:
    yield "encrypted (BFV): all clients share the secret key, which the server lacks"
    yield "the server and any one client together could open every upload"


def _ranks(algorithm: Algorithm, view: View) -> Iterator[str]:
    """What the processes of a run on this machine see."""
    if view.ranks == 1:
        yield "one rank: its process holds all data and keys; it gives the costs and results, and hides nothing"
        return
    yield "here each rank's process sees the data, uploads and keys of the clients it hosts"
    if not view.at_server:
        yield "rank 0 is the server alone: no key of a client is in its process"
        return
    clients = f"rank 0 is shared: its process holds the keys of {view.at_server} client{'s' * (view.at_server > 1)}"
    if view.one_key:
        yield f"{clients}, and so could open every upload; [server] dedicated = true keeps them apart"
    elif any(exchange.hear is not None for exchange in algorithm.exchanges):
        yield f"{clients}, and so could open what is for clients only; [server] dedicated = true keeps them apart"
    else:
        yield f"{clients}, who count as colluding with the server; [server] dedicated = true keeps them apart"
