"""The forecast of a job as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from textwrap import wrap

import numpy as np

from mpifed.core.tables import Table
from mpifed.core.text import counted, fitted
from mpifed.forecast.disclosure import disclosure_lines
from mpifed.forecast.outlook import outlook_lines
from mpifed.results.costs import Costs, cost_lines
from mpifed.results.text import human_bytes, human_seconds

_WIDTH = 100
_INDENT = 12
_MANY = 5  # arrays of a network from which on they share a line; `check --json` has each
_UNIT = r"(\d) (us|ms|s|min|h|B|[KMGT]iB)\b"


def forecast_text(forecast: Table, width: int | None = None) -> str:
    """The forecast as text, for a terminal of `width` characters if that is given."""
    text = "\n".join(_lines(forecast, min(width or _WIDTH, _WIDTH)))
    return text if width is None else fitted(text, width)


def _lines(forecast: Table, width: int) -> Iterator[str]:
    text = partial(_text, width)
    if forecast["points"] > 1:
        yield f"A sweep of {forecast['points']} points; this is the first.\n"
    present = f"{forecast['clients_per_round']} of {forecast['clients']} clients"
    yield f"{forecast['job']}: {present} in each of {forecast['rounds']} rounds"
    titles = {"setup": "Once, before round 0", "exchanges": "Every round", "measures": "When evaluated"}
    for part, title in titles.items():
        for exchange in forecast[part]:
            receiver = exchange["receives"]  # server, clients, or one client by number
            who = {"server": "the server receives", "clients": "the participating clients receive"}.get(
                receiver, f"{receiver} receives"
            )
            times = f"{title}, {exchange['times']} times" if exchange.get("times", 1) > 1 else title
            yield f'\n{times}: "{exchange["name"]}", {who} the sum ({exchange["security"]})'
            for what in ("broadcast", "upload"):
                yield from (_field_line(what, field) for field in _joined(exchange[what]))
    yield ""
    yield from text("Sent", f"{_both(forecast, '_per_round')} per round")
    yield from text("", f"{_both(forecast, '')} in the whole run; evaluation is not counted")
    yield from cost_lines(_costs(forecast), " " * _INDENT, "each time")
    if forecast["dropout_rate"]:
        again = f"{forecast['void_chance']:.2%} of rounds are void and repeated"
        yield from text("", f"if no client drops out; with a dropout_rate of {forecast['dropout_rate']:g}, {again}")
    who_learns = [*forecast["who_learns"]]
    if forecast["security"] != "plain":
        who_learns[1:1] = disclosure_lines(
            [exchange for part in ("setup", "exchanges", "measures") for exchange in forecast[part]]
        )
    yield from text("Who learns", *who_learns)
    yield from text("Tests", *forecast["tests"])
    yield from text("Placement", _placement(forecast["placement"], forecast["block"]))
    parts = ", ".join(f"{human_bytes(size)} of {part}" for part, size in forecast["memory"].items())
    yield from text("Memory", f"{human_bytes(forecast['memory_bytes'])} on the largest rank: {parts}")
    if "time" in forecast:
        yield from text("Time", *_time_lines(forecast["time"], forecast["rounds"], forecast["ranks"]))
    if forecast["privacy"] is not None:
        yield from outlook_lines(forecast["privacy"], forecast["rounds"])
    for warning in forecast["warnings"]:
        yield from text("Warning", warning)


def _text(width: int, label: str, *texts: str) -> Iterator[str]:
    """A label with lines of text next to it; long lines are wrapped and indented."""
    for text in texts:
        unbroken = re.sub(_UNIT, "\\1\u00a0\\2", text)  # no line break between a number and its unit
        lines = wrap(unbroken, width - _INDENT, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        first, *more = (line.replace("\u00a0", " ") for line in lines)
        yield f"{label:{_INDENT}}{first}"
        yield from (f"{'':{_INDENT}}{line}" for line in more)
        label = ""


def _costs(forecast: Table) -> Costs:
    exchanges = {exchange["name"]: exchange for part in ("setup", "exchanges") for exchange in forecast[part]}
    costs = {"keys": forecast["keys"], **exchanges}
    return {name: {"up_bytes": cost["up_bytes"], "down_bytes": cost["down_bytes"]} for name, cost in costs.items()}


def _joined(fields: list[Table]) -> Iterator[Table]:
    """The fields; many arrays of a network, one after the other and alike but for their shapes, are one."""

    def alike(field: Table) -> tuple[str, Table]:
        whole, head, _ = field["field"].partition("head.")
        own = {"field": field["field"]} if not head else {}
        return whole + head, own | {key: field[key] for key in field if key not in ("field", "shape", "bytes")}

    for (whole, _), group in groupby(fields, alike):
        parts = list(group)
        if len(parts) < _MANY:
            yield from parts
            continue
        numbers = sum(int(np.prod(part["shape"], dtype=np.int64)) for part in parts)
        name = f"{whole.removesuffix('.')}, {len(parts)} arrays"
        yield parts[0] | {"field": name, "shape": [numbers], "bytes": sum(part["bytes"] for part in parts)}


def _field_line(what: str, field: Table) -> str:
    shape = " x ".join(map(str, field["shape"])) or "1"
    name = field["field"].removeprefix("statistics.")
    line = f"  {what:10}{name:24}{shape:>14}  {field['dtype']:8}{human_bytes(field['bytes']):>10}"
    if "limbs" in field:
        wide = f", {field['limbs']} limbs" if field["limbs"] > 1 else ""
        line += f"  2^{int(np.log2(field['scale']))}, within {_bound(field['bound'])}{wide}"
    return f"{line}  ({field['of']})" if "of" in field else line


def _bound(value: float) -> str:
    """1024 -> '1024', 2.0**28 -> '2^28', 1e15 -> '1e+15'."""
    power = np.log2(value)
    return f"2^{power:.0f}" if value > 2**13 and power == round(power) else f"{value:.4g}"


def _both(forecast: Table, when: str) -> str:
    return f"{human_bytes(forecast[f'up_bytes{when}'])} up and {human_bytes(forecast[f'down_bytes{when}'])} down"


def _placement(ranks: list[dict[str, int]], block: int) -> str:
    hosting = sorted(Counter(rank["clients"] for rank in ranks).items(), reverse=True)
    parts = [f"{count} rank{'s' * (count > 1)} with {clients or 'none'}" for clients, count in hosting]
    return (
        f"clients: {', '.join(parts)}, in blocks of {block}; rank 0, the server, with {ranks[0]['clients'] or 'none'}"
    )


def _time_lines(found: Table, rounds: int, ranks: int) -> list[str]:
    """What was measured, as text."""
    evaluations = counted(found["evaluations"], "evaluation")
    return [
        f"{human_seconds(found['seconds_per_round'])} a round, {human_seconds(found['rounds_s'])} for {rounds}, on "
        f"{counted(ranks, 'rank')} here",
        f"{human_seconds(found['beside_s'])} for the start, {evaluations} and the end",
        f"{human_bytes(found['peak_rss_bytes'])} of memory on the largest rank",
    ]
