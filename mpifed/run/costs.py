"""What each exchange costs, as a table: bytes both ways, and seconds of cryptography."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mpifed.run.units import human_bytes, human_seconds

Costs = Mapping[str, Mapping[str, float]]  # by exchange, or "keys": up_bytes, down_bytes, crypto_s

KEYS = ("up_bytes", "down_bytes", "crypto_s")


def cost_lines(costs: Costs, indent: str = "", heading: str = "by exchange") -> Iterator[str]:
    """A heading, and a line for each exchange and for keys, where there are any; seconds only of cryptography.

    Nothing where it would only repeat what is known of the whole: of a single exchange without cryptography.
    """
    rows = {name: one for name, one in costs.items() if name != "keys" or one["up_bytes"]}
    sealed = any(one["crypto_s"] for one in rows.values())
    if len(rows) < 2 and not sealed:
        return
    width = max(len(name) for name in (heading, *rows))
    yield f"{indent}{heading:{width}}  {'up':>10}  {'down':>10}" + "  cryptography, all ranks together" * sealed
    for name, one in rows.items():
        line = f"{indent}{name:{width}}  {human_bytes(one['up_bytes']):>10}  {human_bytes(one['down_bytes']):>10}"
        yield f"{line}  {human_seconds(one['crypto_s'])}" if one["crypto_s"] else line
