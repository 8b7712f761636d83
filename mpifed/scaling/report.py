"""The report of a scaling study, in Markdown, for a proposal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpifed.run.units import human_seconds
from mpifed.scaling.plan import STRONG
from mpifed.scaling.results import PARTS, Series

_QUIET = 0.3  # of the cores may be busy when a study begins
_LAW = {STRONG: "Amdahl's law, T(P) / T(1) = s + (1 - s) / P", "weak": "Gustafson's law, speed-up = P - s (P - 1)"}


def report(
    about: Mapping[str, Any],
    series: Sequence[Series],
    found: Sequence[Mapping[str, Any]],
    predicted: Mapping[str, Mapping[str, Any]],
    figures: Sequence[str],
) -> str:
    """All of it."""
    sections = [
        _measured(about),
        *(_series(line, found) for line in series),
        _parts(found),
        *(_predicted(kind, forecast) for kind, forecast in predicted.items()),
        [f"![{name}]({name}.png)" for name in figures],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _measured(about: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Scaling of {about['job']}"
    yield ""
    yield f"Measured on {about['host']}, {about['cores']} cores to run on; started by `{about['launcher']}`."
    mpi = f"; {about['mpi']}" if about["mpi"] else ""
    yield f"Versions: {', '.join(f'{name} {version}' for name, version in about['versions'].items())}{mpi}."
    yield f"mpifed at commit {about['commit'] or 'unknown'}. One BLAS thread a rank."
    yield (
        f"Every point is the median of {about['repeat']} runs of {about['rounds']} rounds, interleaved: each repeat "
        "goes through all points before the next begins. A run's time is its median round; nothing is measured or "
        "checkpointed meanwhile."
    )
    if about["oversubscribed"]:
        listed = ", ".join(map(str, about["oversubscribed"]))
        yield ""
        yield (
            f"**Oversubscribed**: points with {listed} ranks had fewer cores than ranks. They show that the program "
            "runs so, and say nothing of how it scales."
        )
    if (about["load_before"] or 0) > _QUIET * about["cores"]:
        yield ""
        yield (
            f"**Not alone**: when the study began, {about['load_before']:.1f} processes wanted a core of the machine "
            "that it was started on. Times are too long by what others took; repeat it on a quiet machine."
        )


def _series(line: Series, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    found = [one for one in found if (one["kind"], one["series"]) == (line.kind, line.label)]
    yield f"## {line.kind.capitalize()} scaling: {line.label}"
    yield ""
    with_forecast = any(one["predicted_s"] is not None for one in found)
    headings = ["ranks", "clients", "a round", "range of the runs", "speed-up", "efficiency"]
    headings += ["predicted round", "error"] * with_forecast
    yield f"| {' | '.join(headings)} |"
    yield "|" + " --: |" * len(headings)
    for one in found:
        cells = [
            str(one["ranks"]),
            "the job's" if one["clients"] is None else str(one["clients"]),
            human_seconds(one["seconds_per_round"]),
            f"{human_seconds(one['least_s'])} to {human_seconds(one['most_s'])}",
            f"{one['speed_up']:.2f}",
            f"{one['efficiency']:.0%}",
        ]
        if with_forecast:
            guess = one["predicted_s"]
            unlike = guess is None or one["more_ranks_than_cores"]  # the prediction is for a core each
            cells += [
                "" if guess is None else human_seconds(guess),
                "" if unlike else f"{guess / one['seconds_per_round'] - 1:+.0%}",
            ]
        yield f"| {' | '.join(cells)} |"
    if line.serial is not None:
        yield ""
        yield f"Serial fraction s = {line.serial:.3f}, fitted by least squares to {_LAW[line.kind]}."


def _parts(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## What a round is spent on"
    yield ""
    yield "Milliseconds of the mean round, from what each rank counts of its exchanges (`run.json`)."
    yield ""
    yield "| series | ranks | " + " | ".join(PARTS.values()) + " |"
    yield "| --- | --: |" + " --: |" * len(PARTS)
    for one in found:
        cells = " | ".join(f"{1e3 * one[name]:.3g}" for name in PARTS)
        yield f"| {one['kind']}, {one['series']} | {one['ranks']} | {cells} |"


def _predicted(kind: str, forecast: Mapping[str, Any]) -> Iterator[str]:
    machine = forecast["machine"]
    yield f"## Predicted continuation: {kind}"
    yield ""
    yield (
        f"**Predicted, not measured**, by the model of `mpifed scale --predict`: arithmetic rehearsed here, "
        f"communication computed for {machine['ranks_per_node']} ranks a node, "
        f"{human_seconds(machine['latency_s'])} and {machine['bytes_per_s'] / 1e9:g} GB/s between nodes."
    )
    yield ""
    yield "| ranks | nodes | a round | speed-up | efficiency | most is lost to |"
    yield "| --: | --: | --: | --: | --: | --- |"
    for row in forecast["scaling"]:
        yield (
            f"| {row['ranks']} | {row['nodes']} | {human_seconds(row['round_s'])} | {row['speed_up']:.3g} | "
            f"{row['efficiency']:.0%} | {row['most_lost_to'] or ''} |"
        )
