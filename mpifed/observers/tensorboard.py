"""Event files of TensorBoard, by tensorboardX, without its thread: an error is one of the call that met it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mpifed.observers.base import ObservedRun, Observer, RunOutcome

EVENTS = "tensorboard"  # in the run's folder


@dataclass
class TensorBoard(Observer):
    """Event files of TensorBoard: a scalar for each column of the history, by round.

    `tensorboard --logdir runs` shows all runs in a folder. Needs `pip install mpifed[observe]`.
    """

    folder: str | None = None
    """Folder of the event files, in a sweep with one for each point; where absent, `tensorboard/` of the run."""

    requires: ClassVar[Mapping[str, str]] = {"tensorboardX": "'mpifed[observe]'"}

    def destination(self) -> str:
        return f"event files in {self.folder or f'the folder {EVENTS}/ of the run'}"

    def begin(self, run: ObservedRun) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        folder = run.folder / EVENTS
        if self.folder is not None:
            folder = Path(self.folder, run.full_name[len(run.name) + 1 :])
        folder.mkdir(parents=True, exist_ok=True)
        # runs that go on within a second must not write over each other's files
        self._writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        self._writer.flush()

    def measured(self, row: Mapping[str, float]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "round"]
        event = Event(wall_time=time.time(), step=int(row["round"]), summary=Summary(value=values))
        self._writer.write_event(event)
        self._writer.flush()

    def end(self, outcome: RunOutcome) -> None:
        self._writer.close()
