"""Several commands in one launch: those of FOLDER/commands.json; what rank r says to command c is FOLDER/c-r."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from mpifed.cli import main
from mpifed.comm.transport import connect

if __name__ == "__main__":
    rank, folder = connect().rank, Path(sys.argv[1])
    for number, arguments in enumerate(json.loads((folder / "commands.json").read_text())):
        with (
            open(folder / f"{number}-{rank}", "w", encoding="utf-8") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            try:
                main(arguments)
            except SystemExit as end:
                print(f"code {end.code}")
