"""Who learns what in a job, by its channel: from each exchange, and in general."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.channels.base import Protection
from mpifed.comm.sums import Place
from mpifed.core.exchange import Exchange, Field, fields_of, hearing
from mpifed.core.holdings import Holdings
from mpifed.core.round import Round
from mpifed.core.tables import Table
from mpifed.data.store import Federation
from mpifed.job.schema import JobSettings
from mpifed.observers import Observer, observer_name
from mpifed.text import counted

Rows: TypeAlias = list[tuple[bool, str]]  # whether a statement applies, and the statement


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
    plain, whole = view.protection.channel == "plain" or exchange.clear, _sum(exchange, places, view)
    read = "every upload" if view.protection.channel == "plain" else "every upload, in the clear"
    if exchange.hear is None:
        opener = ", but for the one who opens it" if view.one_key and not exchange.clear else ""
        return {"server": read if plain else whole, "clients": f"nothing{opener}"}
    who = receiver(exchange, view.now) + (" alone" if exchange.hears else "")
    server = read if plain and exchange.answer is not None else "nothing"
    return {"server": server, "clients who return" if exchange.who else who: whole}


def receiver(exchange: Exchange, now: Round) -> str:
    """Who receives the sum."""
    if exchange.hear is None:
        return "server"
    return "clients" if exchange.hears is None else f"client {hearing(exchange, now)[0]}"


def _sum(exchange: Exchange, places: Sequence[Place], view: View) -> str:
    """What a sum consists of."""
    if exchange.hear is not None and all(place.field.to_holders for place in places):
        return _of_rows(places, bool(exchange.keeps))
    counts = dict[str, int]()
    for place in places:
        withheld = exchange.withholds and not view.protection.allows(place)
        fewest = place.fewest(view.now.present, view.protection.min_clients if withheld else 1)
        if fewest or not withheld:  # 0: one holder
            counts[place.name.partition(".")[2].removeprefix("statistics.")] = fewest or 1
    if not counts:
        return "no change of the sum over all clients"
    single = ", ".join(name for name, count in counts.items() if count == 1)
    fewer = ", ".join(f"{name} of {count}" for name, count in counts.items() if 1 < count < view.clients)
    whole = f"the sum of {f'{view.clients - view.leave} to ' if view.leave else ''}{view.clients} uploads"
    whole += (f" ({fewer})" if fewer else "") + (f", and single clients' own {single}" if single else "")
    alone = set(counts.values()) == {1}
    if alone:
        whole = f"single clients' own {single}"
    masked = view.protection.channel == "masked" and not view.protection.max_dropouts
    if masked and exchange.hear is None and not exchange.clear and single:
        whole += ", which are not masked"
    if not exchange.keeps:
        return whole
    return (
        f"changes of {whole}, and their sum with the last uploads of absent clients"
        if alone
        else f"{whole}, and of the last uploads of absent clients"
    )


def _of_rows(places: Sequence[Place], keeps: bool) -> str:
    """What clients receive from sums by rows, of which some have one holder alone."""
    holders = np.concatenate([place.held.holders for place in places if place.held is not None])
    shared = holders[holders > 1]
    if not len(shared):
        return "what they sent of their own rows, and nothing of others"
    count = " to ".join(map(str, dict.fromkeys((shared.min(), shared.max()))))
    last = ", including the last uploads of absent clients" if keeps else ""
    pair = "; with two, each learns the other's part" if shared.min() == 2 else ""
    return f"of each of their rows the sum over its holders ({count}){last}{pair}"


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
    fields = [field for exchange in algorithm.exchanges for field in fields_of(exchange).values()]
    of_columns = ", of `own columns` its own part" * view.by_columns
    plain = view.protection.channel == "plain"
    rows = _plain(fields, view, measured) if plain else _sealed(algorithm, fields, view, measured)
    said = [f"every participating client learns the broadcast{of_columns}"]
    return said + [text for applies, text in rows if applies]


def _plain(fields: list[Field], view: View, measured: bool) -> Rows:
    return [
        (
            any(field.held is not None or field.sender is not None for field in fields),
            "a value marked with a client, or of columns or rows with a single holder, is that client's own",
        ),
        (True, "plain hides nothing: in a deployment the server would see every client's own upload"),
        (True, "here each rank's process sees the data and uploads of the clients it hosts"),
        (view.ranks > 1, "rank 0 sees every rank's partial sum, which is an upload where one client participates"),
        (measured, "evaluation reveals to rank 0 every rank's sum of losses, over all rows it hosts"),
    ]


def _sealed(algorithm: Algorithm, fields: list[Field], view: View, measured: bool) -> Rows:
    how, one_key, several, shared = view.protection, view.one_key, view.ranks > 1, view.at_server > 0
    exchanges = [*algorithm.setup, *algorithm.exchanges]
    exchanges += [exchange for measure in algorithm.measures for exchange in measure.exchanges] if measured else []
    names = ", ".join(dict.fromkeys(exchange.name for exchange in exchanges if exchange.clear))
    allowed = f", except those allowed by name: {', '.join(how.allow)}" if how.allow else ""
    k, others, leave = view.partners, view.clients - 1, how.max_dropouts
    masked, everybody = not one_key, k >= others
    whom = f"the {k} others" if everybody else f"{k} of the {others} others"
    heard = any(exchange.hear is not None for exchange in algorithm.exchanges)
    by_columns = view.by_columns and any(field.held is not None and not field.to_holders for field in fields)
    kept = [exchange for exchange in algorithm.exchanges if exchange.keeps and not exchange.clear]
    common = one_key or any(exchange.hear is not None for exchange in kept)
    which = "all of them" if one_key else "those for clients"
    opens = "who count as colluding with the server"
    if one_key:
        opens = "and so could open every upload"
    elif heard:
        opens = "and so could open what is for clients only"
    return [
        (True, "who participates, how much is sent, and when, is visible to everyone"),
        (one_key, "encrypted (BFV): all clients share the secret key, which the server lacks"),
        (one_key, "the server and any one client together could open every upload"),
        (masked, f"masked: each client shares a mask with each of {whom}"),
        (
            masked and leave > 0,
            f"since up to {leave} clients may drop out, the server and {k - leave} of a client's {k} partners "
            "together could open its upload; fewer could not",
        ),
        (
            masked and not leave and everybody,
            "the server and any clients together learn the sum of all others' uploads, and no more",
        ),
        (
            masked and not (leave or everybody),
            f"the server and all {k} partners of a client could open its upload",
        ),
        (
            masked and not everybody,
            "if a third of all clients, chosen beforehand, collude with it, it learns the sum of the others' uploads "
            "and no more, except with probability 2^-40",
        ),
        (
            masked and len(view.columns.members) > 1,
            "values of columns are masked among the holders of those columns",
        ),
        (
            bool(names),
            f"in the clear by design: {names}; if an upload there is a sum over the client's rows and a single row "
            "has moved since the last one, the difference is that row times its step",
        ),
        (
            any(field.to_holders for field in fields),
            "the server knows the indices of the samples that each client holds, but not whose they are",
        ),
        (
            by_columns and bool((view.columns.holders == 2).any()),
            "columns have two holders: each sees in the next broadcast how the sum over both has changed, and so the "
            "other's part of it",
        ),
        (
            bool(kept),
            "clients upload changes of their last uploads, and the server keeps the sums"
            + f", {which} encrypted under the clients' common key" * common,
        ),
        (
            bool(kept),
            "who receives a sum twice learns its change: that of one client, if it alone participated in between",
        ),
        (
            how.min_clients > 1 and any(exchange.withholds for exchange in kept),
            f"of these, the server's own keep the last uploads wherever fewer than {how.min_clients} participating "
            f"clients fill a position: there it learns no change{allowed}",
        ),
        (how.min_clients > 1, f"no sum of fewer than {how.min_clients} uploads is opened{allowed}"),
        (True, "assumed: all follow the protocol (honest but curious); the server relays public keys unchanged"),
        (
            not several,
            "one rank: its process holds all data and keys; it gives the costs and results, and hides nothing",
        ),
        (several, "here each rank's process sees the data, uploads and keys of the clients it hosts"),
        (several and not shared, "rank 0 is the server alone: no key of a client is in its process"),
        (
            several and shared,
            f"rank 0 is shared: its process holds the keys of {counted(view.at_server, 'client')}, {opens}; "
            "[server] dedicated = true keeps them apart",
        ),
    ]


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
