"""`mpifed compare RUN... | SWEEP`: a line for each setting, the best one, or those that no other dominates."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mpifed.core.tables import Table
from mpifed.files.columns import Column, shown
from mpifed.files.run_folder import RUN, read_run
from mpifed.results.best import Choice, choose, to_be_maximized
from mpifed.results.compare_table import Shown, drawn, setting_columns
from mpifed.results.pareto import Recommendation, recommend
from mpifed.results.points import FAILED, LABEL, Folders, Mean, Ran, Setting, read_points, settings_of, swept
from mpifed.results.text import line_of, meaning, toml_text, value_of

_DIGITS = 12  # of a SHA-256: enough to tell models apart


def compare_summary(where: Folders) -> list[Table]:
    """The points of a sweep, or the runs, each with its settings and what `mpifed show RUN --json` prints."""
    return [
        {"point": point.name, "settings": point.settings, **point.summary}
        for point in read_points(where)
        if point.summary is not None
    ]


def compare_text(where: Folders, terminal: bool = False) -> str:
    """A table to read; at a terminal, cells are broken into several lines where it would be too wide."""
    return "\n".join([_sweep_text(read_points(where), terminal), *swept(where)])


def _sweep_text(points: Sequence[Ran], terminal: bool) -> str:
    """A line for each setting, and below the table every point that is not in the means, or ended with an error."""
    settings = settings_of(points)
    return "\n".join([drawn(list(_columns(settings)), terminal), *_repeated(settings), *_notes(points)])


def _columns(settings: Sequence[Setting]) -> Iterator[Shown]:
    """The names of the runs, what sets them apart, and the means of their numbers."""
    means = [_shown(setting) for setting in settings]
    yield Shown("points", [_names(setting.points) for setting in settings], "names")
    yield from setting_columns(settings)
    counts = [_of(len(setting.counted), len(setting.points)) for setting in settings]
    yield Shown("runs" if any(map(_alike, settings)) else "seeds", counts, "count")
    for column in shown("compare"):
        for name in _named(column, means):
            cells = [
                _mean(name, mean.get(name), len(setting.counted)) for setting, mean in zip(settings, means, strict=True)
            ]
            yield Shown(name, cells, "number")
    if any(point.limits for setting in settings for point in setting.points):
        yield Shown("limits met", [_limits_met(setting) for setting in settings], "count")
    models = [point.model for setting in settings for point in setting.counted if point.model]
    if any(map(_alike, settings)) or len(set(models)) < len(models):
        yield Shown("model", [_models(setting) for setting in settings], "count")


def _alike(setting: Setting) -> list[list[Ran]]:
    """The runs of the same job and seed, in groups of two or more."""
    by_seed: dict[int | None, list[Ran]] = {}
    for point in setting.points:
        if point.seed is not None:
            by_seed.setdefault(point.seed, []).append(point)
    return [runs for runs in by_seed.values() if len(runs) > 1]


def _models(setting: Setting) -> str:
    """The first digits of the SHA-256 of its models."""
    digests = dict.fromkeys(point.model[:_DIGITS] for point in setting.counted if point.model)
    return ", ".join(digests) if len(digests) <= 2 else f"{len(digests)} different"


def _repeated(settings: Sequence[Setting]) -> Iterator[str]:
    """What differs between runs of the same job and seed."""
    for runs in (runs for setting in settings for runs in _alike(setting)):
        environments = [_environment(run) for run in runs]
        differing = [
            key
            for key in environments[0]
            if any(environment[key] != environments[0][key] for environment in environments)
        ]
        yield f"Of the same job and seed; {'they differ in:' if differing else 'run in the same environment:'}"
        for run, environment in zip(runs, environments, strict=True):
            yield f"  {run.name}" + "".join(f", {key} {environment[key]}" for key in differing)


def _environment(run: Ran) -> Table:
    """Ranks, device, host and versions of a run, on which its bits should not depend."""
    about = read_run(run.folder) if (run.folder / RUN).exists() else {}
    versions = about.get("versions") or {}
    environment = {key: about.get(key) for key in ("ranks", "device", "host", "commit")}
    return environment | {"versions": ", ".join(f"{name} {version}" for name, version in versions.items())}


def _shown(setting: Setting) -> dict[str, Mean]:
    """The means of a setting, with `bytes`, the sum of both directions."""
    means = setting.means()
    numbers = [point.numbers() for point in setting.counted]
    traffic = [
        point["up_bytes"] + point["down_bytes"] for point in numbers if "up_bytes" in point and "down_bytes" in point
    ]
    return means | {"bytes": Mean.of(traffic)} if traffic else means


def _named(column: Column, means: Iterable[dict[str, Mean]]) -> list[str]:
    """The names under which a column occurs: its own, or the numbered ones."""
    return [name for name in dict.fromkeys(name for columns in means for name in columns) if column.means(name)]


def _of(count: int, whole: int) -> str:
    return str(whole) if count == whole else f"{count} of {whole}"


def _mean(name: str, mean: Mean | None, whole: int) -> str:
    """0.123 +- 0.004; with the number of points in the mean, where not all of the `whole` have the column."""
    if mean is None:
        return ""
    text = value_of(name, mean.mean)
    if mean.deviation:
        text += f" +- {value_of(name, mean.deviation, digits=2)}"
    return text if mean.having == whole else f"{text} ({mean.having} of {whole})"


def _limits_met(setting: Setting) -> str:
    """How many of its runs with limits meet them; empty where none has limits."""
    met = [point.meets_limits() for point in setting.counted if point.limits]
    return f"{met.count(True)} of {len(met)}" if met else ""


def _notes(points: Sequence[Ran]) -> Iterator[str]:
    """The points that did not end with exit code 0, by how they ended."""
    kinds: dict[tuple[bool, str], list[Ran]] = {}
    for point in points:
        if point.code != 0:
            kinds.setdefault((point.finished, _end_of(point)), []).append(point)
    for title, counted in (("Included in the means:", True), ("Not in the means:", False)):
        notes = [f"  {text}: {_names(members)}" for (inside, text), members in kinds.items() if inside == counted]
        yield from [title, *notes] if notes else []


def _end_of(point: Ran) -> str:
    if point.summary is None:
        return "ended before the first round" if point.begun else "not run"
    return meaning(point.code) + ("" if point.code is None else f" (exit {point.code})")


def _names(points: Sequence[Ran]) -> str:
    """The names of points, with ranges, as point-0000 to point-0002, point-0007; other runs by their folders."""
    runs: list[list[str]] = []
    before = None
    for point in points:
        number = int(point.name.rpartition("-")[2]) if re.fullmatch(r"point-\d+", point.name) else None
        if before is not None and number == before + 1:
            runs[-1] = [runs[-1][0], point.name]
        else:
            runs.append([point.name])
        before = number
    return ", ".join(" to ".join(run) for run in runs)


# --- the best of a sweep -----------------------------------------------------------------------------------------


def best_text(where: Folders, by: str | None = None, maximize: bool | None = None) -> str:
    """The best setting of a sweep, as `--set` arguments, with its numbers, and notes on grid edges and failures."""
    return "\n".join([*_best_lines(choose(where, by, maximize), read_points(where)), *swept(where)])


def _best_lines(choice: Choice, points: Sequence[Ran]) -> Iterator[str]:
    best, means = choice.best, choice.best.means()
    yield line_of("best", f"{'largest' if choice.maximized else 'least'} {choice.by}")
    yield from _set_arguments(best)
    yield line_of("seeds", f"{_of(len(best.counted), len(best.points))} ({_names(best.counted)})")
    yield from (line_of(name, _mean(name, mean, len(best.counted))) for name, mean in means.items())
    if any(point.limits for point in best.counted):
        yield line_of("limits met", _limits_met(best))
    yield from choice.edges
    if choice.failed:
        yield f"Infinitely bad, because they failed numerically (exit {FAILED}): {_names(choice.failed)}"
    left = [point for point in points if not point.finished and point.code != FAILED]
    if left:
        yield f"Not compared, because they have not finished: {_names(left)}"


def _set_arguments(setting: Setting) -> Iterator[str]:
    """A setting as arguments of the command line; nothing where all points have the same."""
    settings = {key: value for key, value in setting.settings.items() if value is not None}
    if settings:
        keys = {key: value for key, value in settings.items() if key != LABEL}
        yield " ".join(f"--set {shlex.quote(f'{key}={toml_text(value)}')}" for key, value in keys.items())


def pareto_text(where: Folders, by: Mapping[str, float] | None = None) -> str:
    """The recommended setting of a sweep, as `--set` arguments, the Pareto front, and the settings not on it."""
    return "\n".join([*_gra_lines(recommend(where, by)), *swept(where)])


def _gra_lines(recommendation: Recommendation) -> Iterator[str]:
    best, means, count = recommendation.best, recommendation.best.means(), len(recommendation.front)
    yield line_of("recommended", f"largest grey relational grade of {count} that no other setting dominates")
    yield from _set_arguments(best)
    yield line_of("seeds", f"{_of(len(best.counted), len(best.points))} ({_names(best.counted)})")
    for name, weight in recommendation.criteria.items():
        kind = "largest" if to_be_maximized(name) else "least"
        best_by = f"{kind} is best" + (f", weight {weight:g}" if len(set(recommendation.criteria.values())) > 1 else "")
        yield line_of(name, f"{_mean(name, means[name], len(best.counted))} ({best_by})")
    if recommendation.ties:
        yield f"{recommendation.ties} more of the front have its grade: add a criterion, or choose among them"
    yield drawn(list(_front(recommendation)))
    if recommendation.beaten:
        dominated = [point for setting in recommendation.beaten for point in setting.counted]
        yield f"Dominated by a setting of the front: {_names(dominated)}"
    for why in dict.fromkeys(why for _, why in recommendation.left_out):
        yield f"Not compared, {why}: {_names([point for point, reason in recommendation.left_out if reason == why])}"
    yield from recommendation.edges


def _front(recommendation: Recommendation) -> Iterator[Shown]:
    """A row for each setting on the front, by grade."""
    yield Shown("points", [_names(graded.setting.counted) for graded in recommendation.front], "names")
    yield from setting_columns([graded.setting for graded in recommendation.front])
    for name in recommendation.criteria:
        yield Shown(name, [value_of(name, graded.values[name]) for graded in recommendation.front], "number")
    yield Shown("grade", [f"{graded.grade:.4f}" for graded in recommendation.front], "number")
