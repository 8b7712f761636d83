"""Tables of the costs of exchanges: bytes, seconds of cryptography, and seconds of a simulated deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mpifed.core.tables import ReadOnlyTable
from mpifed.job.time_model import KINDS
from mpifed.results.text import human_bytes, human_seconds

Costs = Mapping[str, Mapping[str, float]]  # by exchange, or "keys": up_bytes, down_bytes, and of a run crypto_s


def cost_lines(costs: Costs, indent: str = "", heading: str = "by exchange") -> Iterator[str]:
    """A heading and a line for each exchange, and for keys if there are any; seconds are those of cryptography.

    Empty for a single exchange without cryptography, whose costs are those of the run.
    """
    rows = {name: cost for name, cost in costs.items() if name != "keys" or cost["up_bytes"]}
    has_cryptography = any(cost.get("crypto_s") for cost in rows.values())
    if len(rows) < 2 and not has_cryptography:
        return
    width = max(len(name) for name in (heading, *rows))
    yield (
        f"{indent}{heading:{width}}  {'up':>10}  {'down':>10}" + "  cryptography, all ranks together" * has_cryptography
    )
    for name, cost in rows.items():
        line = f"{indent}{name:{width}}  {human_bytes(cost['up_bytes']):>10}  {human_bytes(cost['down_bytes']):>10}"
        yield f"{line}  {human_seconds(cost['crypto_s'])}" if cost.get("crypto_s") else line


def simulated_lines(simulated: ReadOnlyTable, rounds: int, indent: str = "") -> Iterator[str]:
    """A simulation, as `mpifed.job.time_model.described` gives it: the network, and the mean time of each exchange."""
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
        rows |= {
            name: {kind: seconds[kind] / rounds for kind in KINDS} for name, seconds in simulated["rounds"].items()
        }
        if len(rows) > 1:
            rows["a round"] = {kind: sum(seconds[kind] for seconds in rows.values()) for kind in KINDS}
    rows |= {f"{name}, once": seconds for name, seconds in simulated["set_up"].items()}
    width = max(len(name) for name in ("each round", *rows))
    yield f"{indent}{'each round':{width}}" + "".join(f"  {kind:>10}" for kind in (*KINDS, "together"))
    for name, seconds in rows.items():
        cells = (*(seconds[kind] for kind in KINDS), sum(seconds.values()))
        yield f"{indent}{name:{width}}" + "".join(f"  {human_seconds(cell) if cell else '0':>10}" for cell in cells)
