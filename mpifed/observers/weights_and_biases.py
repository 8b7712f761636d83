"""Runs of Weights & Biases, by its own client."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mpifed.files.json_file import read_json, write_json
from mpifed.observers.base import ObservedRun, Observer, RunOutcome

FILES = "wandb"  # in the run's folder: what its client writes, and the identifier of the run


@dataclass
class WandB(Observer):
    """A run of Weights & Biases: settings of the job as its config, columns of the history by round.

    Nothing leaves this machine unless `online`: `wandb sync RUN/wandb/offline-run-*` sends it later. Needs
    `pip install wandb`.
    """

    project: str | None = None
    """Name of the project; where absent, `$WANDB_PROJECT`, or the name of the job."""
    online: bool = False
    """Send rows when they are measured, to the account of `wandb login`."""

    requires: ClassVar[Mapping[str, str]] = {"wandb": "wandb"}

    def destination(self) -> str:
        if self.online:
            return "Weights & Biases, by its server, which the network reaches"
        return f"the folder {FILES}/ of the run, from which `wandb sync` sends them"

    def begin(self, run: ObservedRun) -> None:
        import wandb

        path = run.folder / FILES / "id.json"
        noted = read_json(path) if run.resumed_after is not None and path.exists() else {"id": secrets.token_hex(4)}
        path.parent.mkdir(exist_ok=True)
        write_json(path, noted)
        self._run = wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT") or run.name,
            name=run.full_name,
            id=noted["id"],
            resume="allow" if self.online else None,
            mode="online" if self.online else "offline",
            dir=str(run.folder),
            config=run.settings,
            settings={"console": "off", "disable_git": True, "save_code": False},  # rows and settings alone
        )

    def measured(self, row: Mapping[str, float]) -> None:
        self._run.log({name: value for name, value in row.items() if name != "round"}, step=int(row["round"]))

    def end(self, outcome: RunOutcome) -> None:
        self._run.summary.update({f"mpifed.{name}": outcome.summary.get(name) for name in ("exit", "model_sha256")})
        self._run.finish(exit_code=outcome.exit)
