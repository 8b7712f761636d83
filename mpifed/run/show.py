"""`mpifed show RUN`: how a run, or the points of a sweep, ended; the best of a sweep."""

from __future__ import annotations

import io
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.core.errors import DataError
from mpifed.core.text import shown
from mpifed.run import protection
from mpifed.run.best import (
    FAILED,
    Choice,
    Mean,
    Ran,
    Setting,
    choose,
    is_sweep,
    read_points,
    settings_of,
    swept,
    to_be_maximized,
    toml_text,
)
from mpifed.run.costs import cost_lines, simulated_lines
from mpifed.run.disclosure import uncovered
from mpifed.run.gra import Recommendation, recommend
from mpifed.run.history import read_run, summary
from mpifed.run.json_file import RUN
from mpifed.run.ledger_file import read_compared
from mpifed.run.schemas import Run
from mpifed.run.show_certificate import certificate_lines
from mpifed.run.units import human_bytes as human_bytes

if TYPE_CHECKING:
    from rich.table import Table

_MEANING = {
    None: "still running, or killed",
    0: "done",
    5: "a limit is not met, or a certificate asked for not reached",
    6: "privacy budget reached",
    75: "interrupted; go on with --resume",
}
_COLUMNS = (
    "rounds", "train_loss", "test_accuracy", "objective", "constraint_", "kkt_residual", "epsilon",
    "epsilon_if_secret", "elapsed_s", "simulated_s", "bytes",
)  # fmt: skip
_WIDEST = 100_000  # characters: wider than any table


def run_summary(folder: Path) -> Any:
    """One object for a run, with what each exchange has cost; the list of its points for a sweep.

    Raises
    ------
    DataError
        when the folder is neither, or the run's ledger is not what its other files say.
    """
    if is_sweep(folder):
        return [
            {"point": point.name, "settings": point.settings, **point.summary}
            for point in read_points(folder)
            if point.summary is not None
        ]
    if not (folder / "run.json").exists():
        if (folder / "job.toml").exists() or any(folder.glob("ledger.*")):
            raise DataError(f"{folder}: a run that was ended before it wrote run.json; go on with --resume")
        raise DataError(f"{folder}: no run.json; give the folder of a run or of a sweep, or a job file")
    read_compared(folder)
    run = read_run(folder)  # what the agreement on keys and each exchange have cost, up to the last checkpoint
    return summary(folder) | {"exchanges": run.get("exchanges"), "simulated": run.get("simulated")}


def run_text(folder: Path, terminal: bool = False) -> str:
    """The same for a person; at a terminal the table of a sweep has taller rows where it would be too wide."""
    if is_sweep(folder):
        return "\n".join([_sweep_text(read_points(folder), terminal), *swept(folder)])
    found = run_summary(folder)
    labels = {
        "rounds": "rounds",
        "objective": "objective",
        "train_loss": "training loss",
        "test_accuracy": "test accuracy",
        "elapsed_s": "seconds (measuring left out)",
        "up_bytes": "bytes to the server",
        "down_bytes": "bytes to the clients",
        "peak_rss_bytes": "memory of the largest rank",
        "model_sha256": "model SHA-256",
    }
    lines = [_line("status", f"{_meaning(found['exit'])} (exit {found['exit']})")]
    lines += [_line(label, _value(key, found[key])) for key, label in labels.items() if found[key] is not None]
    lines += cost_lines(found["exchanges"] or {}, "  ")
    run = read_run(folder)
    if run.get("simulated"):
        lines += [_line("simulated seconds", _value("simulated_s", run.get("simulated_s")))]
        lines += simulated_lines(run["simulated"], run.get("rounds", 0), "  ")
    lines += [_line(label, text) for label, text in protection.shown(run, found)]
    if run.get("delta") is not None:
        lines.append(_line("epsilon does not cover", "; ".join(uncovered(folder))))
    lines += [_line(label, text) for label, text in certificate_lines(folder)]
    lines += [_line("warning", str(warning)) for warning in [*(run.get("warnings") or []), *_not_known(run)]]
    lines.append(_line("results", f"{folder}{'/' * (not str(folder).endswith('/'))}"))
    return "\n".join(lines)


def _not_known(run: dict[str, Any]) -> Iterator[str]:
    """Of run.json, what this version does not know."""
    if names := Run.model_validate(run).unknown():
        yield f"{RUN} has {', '.join(map(shown, names))}, of another version of mpifed, which is left out here"


def _meaning(code: int | None) -> str:
    return _MEANING.get(code, "failed")


def _line(label: str, text: str) -> str:
    return f"{label:30} {text}"


# --- the points of a sweep ---------------------------------------------------------------------------------------


def _sweep_text(points: Sequence[Ran], terminal: bool) -> str:
    """A line for each setting, and below the table every point that no mean holds."""
    settings, screen = settings_of(points), shutil.get_terminal_size().columns
    drawn, width = _drawn(_table(settings, terminal, " "))
    if terminal and width > screen:
        drawn, _ = _drawn(_table(settings, terminal, "\n"))
    return "\n".join([drawn, *_notes(points)])


def _drawn(table: Table) -> tuple[str, int]:
    """A table as text, and how wide it is; no line is folded, and no number cut."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDEST, force_terminal=table.box is not None, highlight=False)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    return "\n".join(line.rstrip() for line in lines), console.measure(table).maximum


def _table(settings: Sequence[Setting], terminal: bool, between: str) -> Table:
    """A row for each setting, plain or with a line below its head; `between` stands within its longer cells."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    means = [_shown(one) for one in settings]
    there = [name for kind in _COLUMNS for name in _named(kind, means)]
    first = settings[0].settings
    varying = [key for key, value in first.items() if any(one.settings[key] != value for one in settings)]
    bounded = any(point.limits for one in settings for point in one.points)
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False)
    for name in varying:
        table.add_column(Text(name))
    for name in ("seeds", *there, *["limits met"] * bounded):
        table.add_column(Text(name), justify="right")
    table.add_column("points")
    for one, columns in zip(settings, means, strict=True):
        cells = [toml_text(one.settings[key]) for key in varying]
        cells += [_of(len(one.counted), len(one.points))]
        cells += [_mean(name, columns.get(name), len(one.counted)) for name in there]
        cells += [_limits_met(one)] * bounded
        cells += [_names(one.points)]
        table.add_row(*(Text(re.sub(r"(?<!to) (?=\+-|to |point-|\()", between, cell)) for cell in cells))
    return table


def _shown(setting: Setting) -> dict[str, Mean]:
    """The means of a setting, `bytes` both ways among them."""
    means = setting.means()
    numbers = [point.numbers() for point in setting.counted]
    sent = [one["up_bytes"] + one["down_bytes"] for one in numbers if "up_bytes" in one and "down_bytes" in one]
    return means | {"bytes": Mean.of(sent)} if sent else means


def _named(kind: str, means: Iterable[dict[str, Mean]]) -> list[str]:
    """The columns that are there of a kind: `kind` itself, or all that begin with it."""
    names = dict.fromkeys(name for columns in means for name in columns)
    return [name for name in names if name == kind or (kind.endswith("_") and name.startswith(kind))]


def _of(count: int, whole: int) -> str:
    return str(whole) if count == whole else f"{count} of {whole}"


def _mean(name: str, mean: Mean | None, whole: int) -> str:
    """0.123 +- 0.004; where not all of the `whole` points have it, of how many it is the mean."""
    if mean is None:
        return ""
    text = _value(name, mean.mean)
    if mean.deviation:
        text += f" +- {_value(name, mean.deviation, digits=2)}"
    return text if mean.having == whole else f"{text} ({mean.having} of {whole})"


def _limits_met(setting: Setting) -> str:
    met = [point.meets_limits() for point in setting.counted]
    return _of(met.count(True), len(met)) if met else ""


def _notes(points: Sequence[Ran]) -> Iterator[str]:
    """What a person must know of the points beside their means: by how they ended, and by name."""
    kinds: dict[tuple[bool, str], list[Ran]] = {}
    for point in points:
        if point.code != 0:
            kinds.setdefault((point.finished, _end_of(point)), []).append(point)
    for title, counted in (("In the means, although", True), ("Not in the means:", False)):
        notes = [f"  {text}: {_names(some)}" for (inside, text), some in kinds.items() if inside == counted]
        yield from [title, *notes] if notes else []


def _end_of(point: Ran) -> str:
    if point.summary is None:
        return "ended before the first round" if point.begun else "not run"
    return _meaning(point.code) + ("" if point.code is None else f" (exit {point.code})")


def _names(points: Sequence[Ran]) -> str:
    """point-0000 to point-0002, point-0007."""
    runs: list[list[str]] = []
    before = None
    for point in points:
        number = int(point.name.rpartition("-")[2])
        if before is not None and number == before + 1:
            runs[-1] = [runs[-1][0], point.name]
        else:
            runs.append([point.name])
        before = number
    return ", ".join(" to ".join(run) for run in runs)


# --- the best of a sweep -----------------------------------------------------------------------------------------


def best_text(folder: Path, by: str | None = None, maximize: bool | None = None) -> str:
    """The best setting of a sweep, as `--set` arguments, with its numbers and what to make of them."""
    return "\n".join([*_best_lines(choose(folder, by, maximize), read_points(folder)), *swept(folder)])


def _best_lines(choice: Choice, points: Sequence[Ran]) -> Iterator[str]:
    best, means = choice.best, choice.best.means()
    yield _line("best", f"{'largest' if choice.maximized else 'least'} {choice.by}")
    yield from _set_arguments(best)
    yield _line("seeds", f"{_of(len(best.counted), len(best.points))} ({_names(best.counted)})")
    yield from (_line(name, _mean(name, mean, len(best.counted))) for name, mean in means.items())
    if any(point.limits for point in best.counted):
        yield _line("limits met", _limits_met(best))
    yield from choice.edges
    if choice.failed:
        yield f"Infinitely bad, because they failed numerically (exit {FAILED}): {_names(choice.failed)}"
    left = [point for point in points if not point.finished and point.code != FAILED]
    if left:
        yield f"Not compared, because they have not finished: {_names(left)}"


def _set_arguments(setting: Setting) -> Iterator[str]:
    """A setting as the command line takes it, where it is not the only one."""
    if setting.settings:
        yield " ".join(f"--set {shlex.quote(f'{key}={toml_text(value)}')}" for key, value in setting.settings.items())


def gra_text(folder: Path, by: Mapping[str, float] | None = None) -> str:
    """The recommended setting of a sweep, as `--set` arguments, the front that it is of, and who is not on it."""
    return "\n".join([*_gra_lines(recommend(folder, by)), *swept(folder)])


def _gra_lines(found: Recommendation) -> Iterator[str]:
    best, means, count = found.best, found.best.means(), len(found.front)
    yield _line("recommended", f"largest grey relational grade of {count} that no other setting beats throughout")
    yield from _set_arguments(best)
    yield _line("seeds", f"{_of(len(best.counted), len(best.points))} ({_names(best.counted)})")
    for name, weight in found.criteria.items():
        kind = "largest" if to_be_maximized(name) else "least"
        best_by = f"{kind} is best" + (f", weight {weight:g}" if len(set(found.criteria.values())) > 1 else "")
        yield _line(name, f"{_mean(name, means[name], len(best.counted))} ({best_by})")
    if found.ties:
        yield f"{found.ties} more of the front have its grade: add a criterion, or choose among them"
    drawn, _ = _drawn(_front(found))
    yield drawn
    if found.beaten:
        yield f"Beaten by one of these: {_names([point for setting in found.beaten for point in setting.counted])}"
    for why in dict.fromkeys(why for _, why in found.left_out):
        yield f"Not compared, {why}: {_names([point for point, reason in found.left_out if reason == why])}"
    yield from found.edges


def _front(found: Recommendation) -> Table:
    """A row for each setting on the front, by grade."""
    from rich.table import Table
    from rich.text import Text

    table, settings = Table(box=None, pad_edge=False), [one.setting.settings for one in found.front]
    keys = [key for key, value in settings[0].items() if any(one[key] != value for one in settings)]
    for name in (*keys, *found.criteria, "grade"):
        table.add_column(Text(name), justify="left" if name in keys else "right")
    table.add_column("points")
    for one in found.front:
        cells = [toml_text(one.setting.settings[key]) for key in keys]
        cells += [_value(name, value) for name, value in one.values.items()]
        table.add_row(*map(Text, cells), f"{one.grade:.4f}", _names(one.setting.counted))
    return table


def _value(key: str, value: Any, digits: int = 6) -> str:
    if key.endswith("bytes"):
        return human_bytes(value)
    if key == "test_accuracy":
        return f"{value:.2%}"
    if not isinstance(value, float):
        return str(value)
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text
