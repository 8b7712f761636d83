"""The forecast of a job as text."""

from __future__ import annotations

from collections.abc import Iterator

from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.forecast.disclosure import disclosure_lines
from mpifed.privacy.protection import table
from mpifed.results.text import human_bytes, human_seconds
from mpifed.text import counted, fitted

_WIDTH = 100
_FIELDS = 16  # of an exchange that are listed; `check --json` has all
_TITLES = {"setup": "Once, before round 0", "exchanges": "Every round", "measures": "When evaluated"}


def forecast_text(forecast: Table, width: int | None = None) -> str:
    """The forecast as text, for a terminal of `width` characters if that is given."""
    return fitted("\n".join(_lines(forecast)), min(width or _WIDTH, _WIDTH))


def _lines(forecast: Table) -> Iterator[str]:
    if forecast.get("points", 1) > 1:
        yield f"A sweep of {forecast['points']} points; this is the first.\n"
    rounds, hosting = forecast["rounds"], forecast["clients_of_ranks"]
    present = f"{forecast['clients_per_round']} of {forecast['clients']} clients"
    yield f"{forecast['job']}: {present} in each of {rounds} rounds"
    for part, title in _TITLES.items():
        for exchange in forecast[part]:
            times = f", {exchange['times']} times" if exchange.get("times", 1) > 1 else ""
            yield f'\n{title}{times}: "{exchange["name"]}", whose sum the {exchange["receives"]} receives'
            yield from _field_lines(exchange)
            if part != "measures":
                yield f"  {_both(exchange)} each time"
    keys = f"; of that {_both(forecast['keys'])} for keys" if forecast["keys"]["up_bytes"] else ""
    per_round = {key: forecast[f"{key}_per_round"] for key in ("up_bytes", "down_bytes")}
    exchanges = [exchange for part in _TITLES for exchange in forecast[part]]
    first, *others = forecast["who_learns"]
    by_exchange = disclosure_lines(exchanges) if forecast["security"] != "plain" else ()
    memory = ", ".join(f"{human_bytes(size)} of {part}" for part, size in forecast["memory"].items())
    yield ""
    yield from _beside(
        "Sent", f"{_both(per_round)} per round", f"{_both(forecast)} in the whole run{keys}; evaluation is not counted"
    )
    yield from _beside("Who learns", first, *by_exchange, *others)
    yield from _beside("Tests", *forecast["tests"])
    yield from _beside(
        "Placement",
        f"{min(hosting)} to {max(hosting)} clients on each of {counted(forecast['ranks'], 'rank')}, in blocks of "
        f"{forecast['block']}; {hosting[0]} on rank 0, the server",
    )
    yield from _beside("Device", *[forecast["device"]] * (forecast["device"] != "cpu"))
    yield from _beside("Memory", f"{human_bytes(forecast['memory_bytes'])} on the largest rank: {memory}")
    if "time" in forecast:
        took = forecast["time"]
        yield from _beside(
            "Time",
            f"{human_seconds(took['seconds_per_round'])} a round on these ranks, {human_seconds(took['beside_s'])} for "
            f"the start, evaluations and the end; {human_bytes(took['peak_rss_bytes'])} of memory on the largest rank",
        )
    if forecast["privacy"] is not None:
        yield from _beside("Privacy", *_privacy(forecast["privacy"], rounds))
    yield from _beside("Warning", *forecast["warnings"])


def _beside(label: str, *texts: str) -> Iterator[str]:
    """Lines of text beside a label."""
    for text in texts:
        yield f"{label:12}{text}"
        label = ""


def _field_lines(exchange: Table) -> Iterator[str]:
    fields = exchange["fields"]
    for field in fields[:_FIELDS]:
        shape, name = " x ".join(map(str, field["shape"])) or "1", field["field"].removeprefix("statistics.")
        of = f"  ({field['of']})" if field["of"] else ""
        yield f"  {field['sent']:10}{name:24}{shape:>14}  {field['dtype']:8}{human_bytes(field['bytes']):>10}{of}"
    if more := fields[_FIELDS:]:
        size = human_bytes(sum(field["bytes"] for field in more))
        yield f"  {counted(len(more), 'further array')}, {size}"


def _both(sent: Table) -> str:
    return f"{human_bytes(sent['up_bytes'])} up and {human_bytes(sent['down_bytes'])} down"


def _privacy(privacy: ReadOnlyTable, rounds: int) -> Iterator[str]:
    yield f"protects {privacy['protects']} (level {privacy['level']}, trust {privacy['trust']})"
    if privacy["not_private"]:
        yield f"NOT PRIVATE: {privacy['not_private']}"
    (least, most), (client, rows) = privacy["rates"], privacy["most_sampled"]
    whose = f"of {most:.4g}"
    if least < most:
        whose = f"from {least:.4g} to {most:.4g}, that of client {client}, whose {rows} rows decide all noise"
    yield (
        f"clip {privacy['clip']:g}, {privacy['noise']} noise on the {privacy['noise_on']}, noise multiplier "
        f"{privacy['noise_multiplier']:.4g}, {privacy['sampling']} sampling at a rate {whose}"
    )
    yield f"after {rounds} rounds epsilon is"
    yield from (f"  {row}" for row in table(privacy["noise_multiplier"], privacy["delta"], privacy))
    if privacy["budget"] is not None:
        ends = privacy["budget_ends_after"]
        text = "is enough for all rounds" if ends is None else f"ends the run after round {ends} (exit 70)"
        yield f"{privacy['budget']} {text}"
