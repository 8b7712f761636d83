"""The report of a scaling study, in Markdown, for a proposal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mpifed.core.tables import ReadOnlyTable
from mpifed.results.text import human_seconds
from mpifed.scaling.results import PARTS, Series
from mpifed.scaling.study import STRONG

_QUIET = 0.3  # fraction of the cores that may be busy when a study begins
_LAW = {STRONG: "Amdahl's law, T(P) / T(1) = s + (1 - s) / P", "weak": "Gustafson's law, speed-up = P - s (P - 1)"}


def report(
    about: ReadOnlyTable,
    series: Sequence[Series],
    rows: Sequence[ReadOnlyTable],
    predicted: Mapping[str, ReadOnlyTable],
    figures: Sequence[str],
) -> str:
    sections = [
        _measured(about),
        *(_series(line, rows) for line in series),
        _parts(rows),
        *(_predicted(kind, forecast) for kind, forecast in predicted.items()),
        [f"![{name}]({name}.png)" for name in figures],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _measured(about: ReadOnlyTable) -> Iterator[str]:
    yield f"# Scaling of {about['job']}"
    yield ""
    yield f"Measured on {about['host']} with {about['cores']} cores; launched by `{about['launcher']}`."
    mpi = f"; {about['mpi']}" if about["mpi"] else ""
    yield f"Versions: {', '.join(f'{name} {version}' for name, version in about['versions'].items())}{mpi}."
    yield f"mpifed at commit {about['commit'] or 'unknown'}. One BLAS thread per rank."
    yield (
        f"Every point is the median of {about['repeat']} runs of {about['rounds']} rounds, interleaved: each repeat "
        "runs all points before the next begins. The time of a run is that of its median round; runs neither evaluate "
        "nor checkpoint."
    )
    if about["oversubscribed"]:
        listed = ", ".join(map(str, about["oversubscribed"]))
        yield ""
        yield (
            f"**Oversubscribed**: points with {listed} ranks had fewer cores than ranks. They show that such runs "
            "work, and say nothing about scaling."
        )
    if (about["load_before"] or 0) > _QUIET * about["cores"]:
        yield ""
        yield (
            f"**Other load**: when the study began, the load average of this machine was {about['load_before']:.1f}. "
            "Other processes made the times longer; repeat the study on an idle machine."
        )


def _series(line: Series, rows: Sequence[ReadOnlyTable]) -> Iterator[str]:
    rows = [row for row in rows if (row["kind"], row["series"]) == (line.kind, line.label)]
    yield f"## {line.kind.capitalize()} scaling: {line.label}"
    yield ""
    with_forecast = any(row["predicted_s"] is not None for row in rows)
    headings = ["ranks", "clients", "time per round", "range of the runs", "speed-up", "efficiency"]
    headings += ["predicted round", "error"] * with_forecast
    yield f"| {' | '.join(headings)} |"
    yield "|" + " --: |" * len(headings)
    for row in rows:
        cells = [
            str(row["ranks"]),
            "the job's" if row["clients"] is None else str(row["clients"]),
            human_seconds(row["seconds_per_round"]),
            f"{human_seconds(row['least_s'])} to {human_seconds(row['most_s'])}",
            f"{row['speed_up']:.2f}",
            f"{row['efficiency']:.0%}",
        ]
        if with_forecast:
            predicted = row["predicted_s"]
            cells += (
                ["", ""]
                if predicted is None
                else [human_seconds(predicted), f"{predicted / row['seconds_per_round'] - 1:+.0%}"]
            )
        yield f"| {' | '.join(cells)} |"
    if line.serial is not None:
        yield ""
        yield f"Serial fraction s = {line.serial:.3f}, fitted by least squares to {_LAW[line.kind]}."


def _parts(rows: Sequence[ReadOnlyTable]) -> Iterator[str]:
    yield "## Parts of a round"
    yield ""
    yield "Milliseconds of the mean round, from the times that each rank records for its exchanges (`run.json`)."
    yield ""
    yield "| series | ranks | " + " | ".join(PARTS.values()) + " |"
    yield "| --- | --: |" + " --: |" * len(PARTS)
    for row in rows:
        cells = " | ".join(f"{1e3 * row[name]:.3g}" for name in PARTS)
        yield f"| {row['kind']}, {row['series']} | {row['ranks']} | {cells} |"


def _predicted(kind: str, forecast: ReadOnlyTable) -> Iterator[str]:
    machine = forecast["machine"]
    yield f"## Predicted continuation: {kind}"
    yield ""
    yield (
        f"**Predicted, not measured**, by the model of `mpifed scale --predict`: computation rehearsed here, "
        f"communication modelled for {machine['ranks_per_node']} ranks per node, "
        f"{human_seconds(machine['latency_s'])} and {machine['bytes_per_s'] / 1e9:g} GB/s between nodes."
    )
    yield ""
    yield "| ranks | nodes | time per round | speed-up | efficiency | most is lost to |"
    yield "| --: | --: | --: | --: | --: | --- |"
    for row in forecast["scaling"]:
        yield (
            f"| {row['ranks']} | {row['nodes']} | {human_seconds(row['round_s'])} | {row['speed_up']:.3g} | "
            f"{row['efficiency']:.0%} | {row['most_lost_to'] or ''} |"
        )
