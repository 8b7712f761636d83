"""`mpifed compare --select best` and `--select pareto` as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from mpifed.job.sweep import LABEL
from mpifed.results.best import Choice, choose
from mpifed.results.compare import warning_lines
from mpifed.results.compare_table import Shown, drawn, limits_met, mean_text, name_columns, part_of, setting_columns
from mpifed.results.criteria import Criterion, criteria_of, to_be_maximized
from mpifed.results.names import names, names_of
from mpifed.results.pareto import Recommendation, recommend
from mpifed.results.points import FAILED, Folders, Ran, Setting, read_points, swept
from mpifed.results.text import line_of, toml_text, value_of


def best_text(where: Folders, by: str | None = None, maximize: bool | None = None) -> str:
    """The best setting, as `--set` arguments, with its ties and numbers, and notes on grid edges and failures."""
    choice = choose(where, criteria_of(by) if by else None, maximize)
    return "\n".join([*_best_lines(choice, read_points(where)), *swept(where)])


def _best_lines(choice: Choice, points: Sequence[Ran]) -> Iterator[str]:
    best, means = choice.best, choice.best.means()
    columns = (
        f"{'largest' if choice.maximized[name] else 'least'} {name}{_within(criterion, ' (', ')')}"
        for name, criterion in choice.by.items()
    )
    yield line_of("best", ", then ".join(columns))
    yield from _what_it_is(best)
    yield from _equal(choice.ties)
    yield from (line_of(name, mean_text(name, mean, len(best.counted))) for name, mean in means.items())
    if any(point.limits for point in best.counted):
        yield line_of("limits met", limits_met(best))
    yield from warning_lines(best.points)
    yield from choice.edges
    if choice.failed:
        yield f"Infinitely bad, because they failed numerically (exit {FAILED}): {names(choice.failed)}"
    left = [point for point in points if not point.finished and point.code != FAILED]
    if left:
        yield f"Not compared, because they have not finished: {names(left)}"


def _what_it_is(best: Setting) -> Iterator[str]:
    """Its label, its settings as arguments of the command line where points have different ones, and its runs."""
    if best.label:
        yield line_of(LABEL, best.label)
    settings = {key: value for key, value in best.settings.items() if value is not None and key != LABEL}
    if settings:
        yield " ".join(f"--set {shlex.quote(f'{key}={toml_text(value)}')}" for key, value in settings.items())
    yield line_of("seeds", f"{part_of(len(best.counted), len(best.points))} ({names(best.counted)})")


def _equal(ties: Sequence[Setting]) -> Iterator[str]:
    """The settings that are as good."""
    if ties:
        yield line_of("equal within the tolerance", "; ".join(names_of(ties)))


def _within(criterion: Criterion, before: str, after: str = "") -> str:
    """The tolerance of a criterion; empty where there is none."""
    return f"{before}within {criterion}{after}" if criterion.tolerance else ""


def pareto_text(where: Folders, by: str | None = None, terminal: bool = False) -> str:
    """The recommended setting of a sweep, as `--set` arguments, the Pareto front, and the settings not on it."""
    recommendation = recommend(where, criteria_of(by) if by else None)
    return "\n".join([*_pareto_lines(recommendation, terminal), *swept(where)])


def _pareto_lines(recommendation: Recommendation, terminal: bool) -> Iterator[str]:
    best, means, count = recommendation.best, recommendation.best.means(), len(recommendation.front)
    yield line_of("recommended", f"largest grey relational grade of {count} that no other setting dominates")
    yield from _what_it_is(best)
    weights = {criterion.weight for criterion in recommendation.criteria.values()}
    for name, criterion in recommendation.criteria.items():
        kind = "largest" if to_be_maximized(name) else "least"
        weight = f", weight {criterion.weight:g}" if len(weights) > 1 else ""
        best_by = f"{kind} is best{_within(criterion, ', ')}{weight}"
        yield line_of(name, f"{mean_text(name, means[name], len(best.counted))} ({best_by})")
    yield from _equal(recommendation.equal)
    if recommendation.ties:
        yield line_of("of the same grade", f"{'; '.join(names_of(recommendation.ties))}")
        yield "Chosen among these by the first criterion: add a criterion or weights, or choose yourself"
    yield drawn(list(_front(recommendation)), terminal)
    if recommendation.beaten:
        dominated = [point for setting in recommendation.beaten for point in setting.counted]
        yield f"Dominated by a setting of the front: {names(dominated)}"
    for why in dict.fromkeys(why for _, why in recommendation.left_out):
        yield f"Not compared, {why}: {names([point for point, reason in recommendation.left_out if reason == why])}"
    yield from warning_lines([point for graded in recommendation.front for point in graded.setting.points])
    yield from recommendation.edges


def _front(recommendation: Recommendation) -> Iterator[Shown]:
    """A row for each setting on the front, by grade."""
    settings = [graded.setting for graded in recommendation.front]
    yield from name_columns(settings)
    yield from setting_columns(settings)
    for name in recommendation.criteria:
        yield Shown(name, [value_of(name, graded.values[name]) for graded in recommendation.front], "number")
    yield Shown("grade", [f"{graded.grade:.4f}" for graded in recommendation.front], "number")
