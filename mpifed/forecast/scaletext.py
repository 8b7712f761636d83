"""The predicted scaling of a job as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpifed.forecast.scale import WHY
from mpifed.run.units import human_bytes, human_seconds


def scale_text(found: dict[str, Any]) -> str:
    """The same for a person."""
    return "\n".join(_lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    weak, machine, work = found["kind"] == "weak", found["machine"], found["arithmetic"]
    yield f"{found['job']}: PREDICTED rounds, {'as many times the clients as ranks' if weak else 'the job as it is'}"
    headings = ("ranks", "nodes", "clients", "a round", "arithmetic", "broadcast", "sum", "server", "speed-up")
    yield f"{headings[0]:>8}" + "".join(f"{one:>11}" for one in headings[1:]) + "  efficiency  most is lost to"
    for row in found["scaling"]:
        seconds = (row[key] for key in ("round_s", "arithmetic_s", "broadcast_s", "sum_s", "server_s"))
        cells = [str(row["nodes"]), str(row["clients"]), *(human_seconds(one) if one else "0" for one in seconds)]
        line = f"{row['ranks']:>8}" + "".join(f"{cell:>11}" for cell in cells)
        yield f"{line}{row['speed_up']:>11.4g}{row['efficiency']:>12.1%}  {row['most_lost_to'] or ''}".rstrip()
    if found["stops_because"] is not None:
        pays = found["pays_up_to_ranks"]
        text = "no number of ranks shown helps" if pays is None else f"more than {pays} of the ranks shown do not help"
        yield f"{text}: most efficiency is lost to {found['stops_because']}, {WHY[found['stops_because']]}"
    if not weak and found["fastest_ranks"] != found["scaling"][-1]["ranks"]:
        yield f"fastest on {found['fastest_ranks']} ranks"
    yield (
        f"rehearsed here: {human_seconds(work['client_s'])} per participating client, "
        f"{human_seconds(work['overhead_s'])} per rank, {human_seconds(work['server_s'])} on the server"
    )
    rates = [human_bytes(machine[key]) for key in ("bytes_per_s", "copied_bytes_per_s")]
    yield (
        f"computed: {machine['ranks_per_node']} ranks a node, {human_seconds(machine['latency_s'])} and {rates[0]}/s "
        f"between nodes; memory is copied at {rates[1]}/s"
    )
    yield "left out: files, checkpoints, evaluation, other jobs' traffic, and that cores of a node slow each other down"
