"""The forecast of a job as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

import numpy as np

from mpifed.forecast.outlook import outlook_lines
from mpifed.forecast.visibility import told
from mpifed.run.costs import Costs, cost_lines, simulated_lines, simulated_s
from mpifed.run.units import human_bytes, human_seconds

_WIDTH = 100
_INDENT = 12
_UNIT = r"(\d) (us|ms|s|min|h|B|[KMGT]iB)\b"
_REHEARSED = "rehearsed here, on random rows: messages, files and MPI's own memory are left out"


def forecast_text(found: dict[str, Any]) -> str:
    """The same for a person."""
    return "\n".join(_lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if found["points"] > 1:
        yield f"A sweep of {found['points']} points; this is the first.\n"
    present = f"{found['clients_per_round']} of {found['clients']} clients"
    yield f"{found['job']}: {present} in each of {found['rounds']} rounds"
    titles = {"setup": "Once, before round 0", "exchanges": "Every round", "measures": "When evaluated"}
    for part, title in titles.items():
        for exchange in found[part]:
            receiver = exchange["receives"]  # server, clients, or one client by number
            who = {"server": "the server receives", "clients": "the participating clients receive"}.get(
                receiver, f"{receiver} receives"
            )
            times = f"{title}, {exchange['times']} times" if exchange.get("times", 1) > 1 else title
            yield f'\n{times}: "{exchange["name"]}", {who} the sum ({exchange["security"]}, {exchange["arithmetic"]})'
            for what in ("broadcast", "upload"):
                yield from (_field_line(what, field) for field in exchange[what])
    yield ""
    yield from _text("Sent", f"{_both(found, '_per_round')} a round")
    yield from _text("", f"{_both(found, '')} in the whole run; evaluation is not counted")
    yield from cost_lines(_costs(found), " " * _INDENT, "each time")
    if found["simulated"] is not None:
        yield from _text("Simulated", f"{human_seconds(simulated_s(found['simulated'], found['rounds']))} in all")
        yield from simulated_lines(found["simulated"], 1, " " * _INDENT)
    if found["dropout_rate"]:
        again = f"{found['void_chance']:.2%} of rounds are void, and run again"
        yield from _text("", f"if nobody leaves; with a dropout_rate of {found['dropout_rate']:g}, {again}")
    learnt = [*found["who_learns"]]
    if found["security"] != "plain":
        learnt[1:1] = told([one for part in ("setup", "exchanges", "measures") for one in found[part]])
    yield from _text("Who learns", *learnt)
    yield from _text("Placement", _placement(found["placement"]))
    yield from _text("Memory", _memory(found["memory_bytes"]))
    yield from _text("Time", _time(found["seconds"]), _REHEARSED)
    if found["extrapolated"]:
        yield from _text("", f"EXTRAPOLATED, as is the memory, from rehearsals of {'; '.join(found['extrapolated'])}")
    if found["privacy"] is not None:
        yield from outlook_lines(found["privacy"], found["rounds"])
    for warning in found["warnings"]:
        yield from _text("Warning", warning)


def _text(label: str, *texts: str) -> Iterator[str]:
    """A label, and lines beside it; a long one goes on below, further to the right."""
    for text in texts:
        kept = re.sub(_UNIT, "\\1\u00a0\\2", text)  # a number stays with its unit
        lines = wrap(kept, _WIDTH - _INDENT, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        first, *more = (line.replace("\u00a0", " ") for line in lines)
        yield f"{label:{_INDENT}}{first}"
        yield from (f"{'':{_INDENT}}{line}" for line in more)
        label = ""


def _costs(found: dict[str, Any]) -> Costs:
    exchanges = {one["name"]: one for part in ("setup", "exchanges") for one in found[part]}
    return {"keys": found["keys"], **exchanges}


def _memory(memory: dict[str, float]) -> str:
    parts = ", ".join(f"{human_bytes(memory[part])} {part}" for part in ("process", "data", "work"))
    return f"{human_bytes(memory['largest_rank'])} on the largest rank: {parts}"


def _time(seconds: dict[str, float]) -> str:
    text = f"{human_seconds(seconds['elapsed'])} for the rounds, {human_seconds(seconds['round'])} each"
    if seconds["evaluations"]:
        text += f"; {seconds['evaluations']} evaluations of {human_seconds(seconds['evaluation'])}"
    if seconds["certificates"]:
        many = "s" * (seconds["certificates"] > 1)
        text += f", {seconds['certificates']} certificate{many} of {human_seconds(seconds['certificate'])}"
    return text


def _field_line(what: str, field: dict[str, Any]) -> str:
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


def _both(found: dict[str, Any], when: str) -> str:
    return f"{human_bytes(found[f'up_bytes{when}'])} up and {human_bytes(found[f'down_bytes{when}'])} down"


def _placement(ranks: list[dict[str, int]]) -> str:
    hosting = sorted(Counter(one["clients"] for one in ranks).items(), reverse=True)
    parts = [f"{count} rank{'s' * (count > 1)} with {clients or 'none'}" for clients, count in hosting]
    return f"clients: {', '.join(parts)}; rank 0, the server, with {ranks[0]['clients'] or 'none'}"
