"""What each exchange costs, as a table: bytes both ways, seconds of cryptography, and of a simulated deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mpifed.run.network import KINDS
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


def simulated_s(simulated: Mapping[str, Any], rounds: int) -> float:
    """Of so many rounds, and what comes before them, from the parts of one round."""
    once, each = (sum(sum(one.values()) for one in simulated[part].values()) for part in ("set_up", "rounds"))
    return once + rounds * each


def simulated_lines(simulated: Mapping[str, Any], rounds: int, indent: str = "") -> Iterator[str]:
    """What `mpifed.run.network.described` says: the network, and by exchange the mean time of a round, by kind."""
    link = simulated["network"]
    rates = f"{human_bytes(link['up_bytes_per_s'])}/s up, {human_bytes(link['down_bytes_per_s'])}/s down"
    size = ""
    if "ciphertext_bytes" in link:
        values = link["ciphertext_values"]
        size = f", {link['ciphertext_bytes']:g} bytes {'a value' if values == 1 else f'for up to {values} values'}"
    yield (
        f"{indent}over {link['name'] or 'a network'} with {human_seconds(link['latency_s'])} there and back, {rates}; "
        f"encryption {link['encryption']}{size}"
    )
    rows: dict[str, Mapping[str, float]] = {}
    if rounds:
        rows |= {name: {kind: one[kind] / rounds for kind in KINDS} for name, one in simulated["rounds"].items()}
        if len(rows) > 1:
            rows["a round"] = {kind: sum(one[kind] for one in rows.values()) for kind in KINDS}
    rows |= {f"{name}, once": one for name, one in simulated["set_up"].items()}
    width = max(len(name) for name in ("each round", *rows))
    yield f"{indent}{'each round':{width}}" + "".join(f"  {kind:>10}" for kind in (*KINDS, "together"))
    for name, one in rows.items():
        cells = (*(one[kind] for kind in KINDS), sum(one.values()))
        yield f"{indent}{name:{width}}" + "".join(f"  {human_seconds(cell) if cell else '0':>10}" for cell in cells)
