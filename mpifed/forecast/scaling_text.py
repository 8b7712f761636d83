"""The predicted scaling of a job as text."""

from __future__ import annotations

from collections.abc import Iterator

from mpifed.core.tables import Table
from mpifed.forecast.scale import WHY
from mpifed.results.text import human_bytes, human_seconds


def scale_text(prediction: Table) -> str:
    """The predicted scaling as text."""
    return "\n".join(_lines(prediction))


def _lines(prediction: Table) -> Iterator[str]:
    weak, machine, work = prediction["kind"] == "weak", prediction["machine"], prediction["arithmetic"]
    problem = "clients in proportion to ranks" if weak else "the job as it is"
    yield f"{prediction['job']}: PREDICTED rounds, {problem}"
    headings = ("ranks", "nodes", "clients", "round", "arithmetic", "broadcast", "sum", "server", "speed-up")
    yield f"{headings[0]:>8}" + "".join(f"{heading:>11}" for heading in headings[1:]) + "  efficiency  most is lost to"
    for row in prediction["scaling"]:
        seconds = (row[key] for key in ("round_s", "arithmetic_s", "broadcast_s", "sum_s", "server_s"))
        cells = [str(row["nodes"]), str(row["clients"]), *(human_seconds(value) if value else "0" for value in seconds)]
        line = f"{row['ranks']:>8}" + "".join(f"{cell:>11}" for cell in cells)
        yield f"{line}{row['speed_up']:>11.4g}{row['efficiency']:>12.1%}  {row['most_lost_to'] or ''}".rstrip()
    if prediction["stops_because"] is not None:
        pays = prediction["pays_up_to_ranks"]
        text = "none of these numbers of ranks pays" if pays is None else f"more than {pays} ranks do not pay"
        yield f"{text}: most efficiency is lost to {prediction['stops_because']}, {WHY[prediction['stops_because']]}"
    if not weak and prediction["fastest_ranks"] != prediction["scaling"][-1]["ranks"]:
        yield f"fastest on {prediction['fastest_ranks']} ranks"
    yield (
        f"rehearsed here: {human_seconds(work['client_s'])} per participating client, "
        f"{human_seconds(work['overhead_s'])} per rank, {human_seconds(work['server_s'])} on the server"
    )
    rates = [human_bytes(machine[key]) for key in ("bytes_per_s", "copied_bytes_per_s")]
    yield (
        f"modelled: {machine['ranks_per_node']} ranks per node, {human_seconds(machine['latency_s'])} and {rates[0]}/s "
        f"between nodes; memory is copied at {rates[1]}/s"
    )
    yield "left out: files, checkpoints, evaluation, traffic of other jobs, and contention between cores of a node"
