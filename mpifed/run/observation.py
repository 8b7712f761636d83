"""The observers of a run, called off the clock: whatever they do, the run goes on as without them.

A row is given once, after it is in the history. Rows that are measured again after a kill are not given again: run.json
has the last row that each observer was given before the run went on.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import explained
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.history import last_row
from mpifed.files.json_file import write_json
from mpifed.files.run_folder import RUN, read_run, summary
from mpifed.job.job import Job
from mpifed.observers import observer_name
from mpifed.observers.base import ObservedRun, Observer, RunOutcome
from mpifed.run.outcome import code_of
from mpifed.run.own_classes import restored_generators
from mpifed.run.progress import Reporter
from mpifed.text import say, shown

OBSERVED = "observed"  # in run.json: by observer, the last round that it was given before the run went on


class Observation:
    """The observers of a run on rank 0; on other ranks there are none.

    Attributes
    ----------
    failures : a warning for each observer that was left out
    """

    def __init__(self, observers: Sequence[Observer], folder: Path, reporter: Reporter) -> None:
        self.failures: list[str] = []
        self._folder, self._reporter = folder, reporter
        self._observers: dict[str, Observer] = {}  # by name, those that have not failed
        self._given: dict[str, int | None] = {}  # by name, the last round given before the run went on
        self._begun = False
        for observer in observers:
            name = observer_name(observer)
            same = sum(other.partition(" ")[0] == name for other in self._observers)
            self._observers[f"{name} {same + 1}" if same else name] = observer

    def resume(self) -> None:
        """Note in run.json what the observers have been given, before rows after the checkpoint are removed."""
        if not self._observers:
            return
        with contextlib.suppress(DataError):  # run.json is damaged, and written anew without this
            about = read_run(self._folder)
            last = last_row(self._folder).get("round")
            for name, given in (about.get(OBSERVED) or {}).items():
                self._given[name] = max((done for done in (given, last) if done is not None), default=None)
            write_json(self._folder / RUN, {**about, OBSERVED: self._given})

    def about(self) -> Table:
        """The keys of run.json."""
        return {OBSERVED: {name: self._given.get(name) for name in self._observers}} if self._observers else {}

    def begin(self, job: Job, resumed_after: int | None) -> None:
        self._begun = True
        settings = {key: value for key, value in job.table().items() if key != "observe"}
        run = ObservedRun(job.name, settings, self._folder, job.rounds, resumed_after)
        self._call("begin", lambda _, observer: observer.begin(run._replace(settings=copy.deepcopy(settings))))

    def measured(self, row: ReadOnlyTable) -> None:
        """Give a row of the history to those who have not had its round."""
        numbers = {name: float(value) for name, value in row.items() if value is not None}

        def give(name: str, observer: Observer) -> None:
            given = self._given.get(name)
            if given is None or row["round"] > given:
                observer.measured(dict(numbers))

        self._call("measured", give)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Call `end` when the run ends in this context, in whatever way."""
        try:
            yield
        except BaseException as error:
            self._end(code_of(explained(error) or error))
            raise
        self._end(0)

    def _end(self, code: int) -> None:
        if not self._begun or not self._observers:
            return
        results: Table = {}
        try:
            from mpifed.privacy.ledger_file import spent

            results = {**summary(self._folder, spent(self._folder)), "exit": code}
        except (DataError, OSError, ValueError) as error:
            self._warn(f"observers get no summary: {shown(str(error))}")
        self._call("end", lambda _, observer: observer.end(RunOutcome(code, copy.deepcopy(results))))

    def _call(self, call: str, function: Callable[[str, Observer], None]) -> None:
        """Call the observers; those that fail are left out."""
        for name, observer in list(self._observers.items()):
            try:
                with restored_generators(), np.errstate():
                    function(name, observer)
            except (Exception, SystemExit) as error:  # it is the user's own code, or of a library
                del self._observers[name]
                text = type(error).__name__
                with contextlib.suppress(Exception):  # a class of the user's
                    text = f"{text}: {error}"
                self._warn(f"observer {name}: {call} failed ({shown(text)}); it is left out")

    def _warn(self, text: str) -> None:
        self.failures.append(text)
        if self._reporter.shows == "none":
            say(f"mpifed: warning: {text}", file=sys.stderr)  # nobody would learn of it otherwise
        self._reporter.warn(text)


def checked_observers(observers: Sequence[Observer]) -> list[Observer]:
    """The observers; UsageError where a library is missing."""
    wrong = [
        f"observer {observer_name(observer)}: {module} is missing; pip install {package}"
        for observer in observers
        for module, package in observer.requires.items()
        if find_spec(module) is None
    ]
    if wrong:
        raise UsageError("; ".join(wrong))
    return list(observers)
