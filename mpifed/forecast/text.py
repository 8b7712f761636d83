"""The forecast of a job as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from mpifed.core.tables import Table
from mpifed.forecast.disclosure import disclosure_lines
from mpifed.forecast.outlook import outlook_lines
from mpifed.results.text import human_bytes, human_seconds
from mpifed.text import counted, fitted

_WIDTH = 100
_FIELDS = 8  # of an exchange that are listed; `check --json` has all
_TITLES = {"setup": "Once, before round 0", "exchanges": "Every round", "measures": "When evaluated"}


def forecast_text(forecast: Table, width: int | None = None) -> str:
    """The forecast as text, for a terminal of `width` characters if that is given."""
    return fitted("\n".join(_lines(forecast)), min(width or _WIDTH, _WIDTH))


def _lines(forecast: Table) -> Iterator[str]:
    if forecast.get("points", 1) > 1:
        yield f"A sweep of {forecast['points']} points; this is the first.\n"
    rounds = forecast["rounds"]
    present = f"{forecast['clients_per_round']} of {forecast['clients']} clients"
    yield f"{forecast['job']}: {present} in each of {rounds} rounds"
    for part, title in _TITLES.items():
        for exchange in forecast[part]:
            who = exchange["receives"]  # server, clients, or one client by number
            who = {"server": "the server", "clients": "the participating clients"}.get(who, who)
            times = f", {exchange['times']} times" if exchange.get("times", 1) > 1 else ""
            verb = "receive" if who.endswith("clients") else "receives"
            yield f'\n{title}{times}: "{exchange["name"]}", {who} {verb} the sum ({exchange["security"]})'
            yield from _field_lines(exchange)
            if part != "measures":
                yield f"  {_both(exchange)} each time"
    per_round = {key: forecast[f"{key}_per_round"] for key in ("up_bytes", "down_bytes")}
    yield f"\n{'Sent':12}{_both(per_round)} per round"
    keys = f"; of that {_both(forecast['keys'])} for keys" if forecast["keys"]["up_bytes"] else ""
    yield f"{'':12}{_both(forecast)} in the whole run{keys}; evaluation is not counted"
    first, *others = forecast["who_learns"]
    exchanges = [exchange for part in _TITLES for exchange in forecast[part]]
    by_exchange = disclosure_lines(exchanges) if forecast["security"] != "plain" else ()
    yield from _beside("Who learns", first, *by_exchange, *others)
    yield from _beside("Tests", *forecast["tests"])
    hosting: list[int] = forecast["clients_of_ranks"]
    ranks = ", ".join(f"{counted(count, 'rank')} with {n or 'none'}" for n, count in sorted(Counter(hosting).items()))
    where = f"clients: {ranks}, in blocks of {forecast['block']}; rank 0, the server, with {hosting[0] or 'none'}"
    yield from _beside("Placement", where)
    memory = ", ".join(f"{human_bytes(size)} of {part}" for part, size in forecast["memory"].items())
    yield from _beside("Memory", f"{human_bytes(forecast['memory_bytes'])} on the largest rank: {memory}")
    if "time" in forecast:
        took = forecast["time"]
        yield from _beside(
            "Time",
            f"{human_seconds(took['seconds_per_round'])} a round, {human_seconds(took['rounds_s'])} for {rounds}, on "
            f"{counted(forecast['ranks'], 'rank')} here",
            f"{human_seconds(took['beside_s'])} for the start, {took['evaluations']} evaluations and the end",
            f"{human_bytes(took['peak_rss_bytes'])} of memory on the largest rank",
        )
    if forecast["privacy"] is not None:
        yield from outlook_lines(forecast["privacy"], rounds)
    yield from _beside("Warning", *forecast["warnings"])


def _beside(label: str, *texts: str) -> Iterator[str]:
    """Lines of text beside a label."""
    for text in texts:
        yield f"{label:12}{text}"
        label = ""


def _field_lines(exchange: Table) -> Iterator[str]:
    for what in ("broadcast", "upload"):
        fields = exchange[what]
        for field in fields[:_FIELDS]:
            shape, name = " x ".join(map(str, field["shape"])) or "1", field["field"].removeprefix("statistics.")
            line = f"  {what:10}{name:24}{shape:>14}  {field['dtype']:8}{human_bytes(field['bytes']):>10}"
            if "limbs" in field:
                limbs = f", {field['limbs']} limbs" if field["limbs"] > 1 else ""
                line += f"  2^{math.log2(field['scale']):.0f}, within {field['bound']:.4g}{limbs}"
            yield f"{line}  ({field['of']})" if "of" in field else line
        if more := fields[_FIELDS:]:
            size = human_bytes(sum(field["bytes"] for field in more))
            yield f"  {what:10}{counted(len(more), 'further array')}, {size}"


def _both(sent: Table) -> str:
    return f"{human_bytes(sent['up_bytes'])} up and {human_bytes(sent['down_bytes'])} down"
