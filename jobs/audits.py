"""Every job's audit against what its header says: `make audit-jobs`; `--write` puts what came out into the headers.

A header's line `# Audit:` says with what code `mpifed audit JOB` ends, and what it finds: as the job stands, and, where
that is the plain channel, in the masked one. Shards that are missing are made by the command in the header, from
`$MPIFED_DATA`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from mpifed.job.loading import read_table, shard_command

JOBS = Path(__file__).parent
MARK = "# Audit: "
MPIFED = (sys.executable, "-m", "mpifed")


def jobs(names: list[str]) -> Iterator[Path]:
    """Those whose path within jobs/ begins with one of the names."""
    for path in sorted(JOBS.rglob("*.toml")):
        if not names or any(str(path.relative_to(JOBS)).startswith(name) for name in names):
            yield path


def command_of(text: str) -> list[str] | None:
    """How a header says that the shards are made, with the files of `$MPIFED_DATA`."""
    command = shard_command(text)
    if not command:
        return None
    real, parts = Path(os.environ.get("MPIFED_DATA", "data")), shlex.split(command)[1:]
    if parts[1] == "mnist":
        parts.insert(2, str(real / "mnist"))
    return [str(real / "libsvm" / part) if part.endswith(".bz2") else part for part in parts]


def audited(path: Path, channel: str = "") -> str:
    """The exit code of the audit, and the findings that the job does not declare."""
    change = ["--set", f"aggregation.security={channel}"] if channel else []
    done = subprocess.run([*MPIFED, "audit", str(path), "--json", *change], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 7):
        message = (done.stderr.strip() or "no message").splitlines()[-1].removeprefix("mpifed: error: ")
        return f"{done.returncode} ({message.partition(':')[0]})"
    found = [one["name"] for one in json.loads(done.stdout)["findings"] if not one["accepted"]]
    return f"{done.returncode}" + (f" ({', '.join(dict.fromkeys(found))})" if found else "")


def line_of(path: Path) -> str | None:
    """What a header should say; None where the shards are missing, and no command in it makes them."""
    text, job = path.read_text(encoding="utf-8"), read_table(path)
    folder, command = Path(job["data"]["path"]), command_of(text)
    if command is not None and not (folder / "federation.h5").exists():
        subprocess.run([*MPIFED, *command], check=True, stdout=subprocess.DEVNULL)
    if not (folder / "federation.h5").exists():
        return None
    if job.get("aggregation", {}).get("security", "plain") != "plain":
        return f"{MARK}{audited(path)}."
    return f"{MARK}{audited(path)}; with aggregation.security=masked {audited(path, 'masked')}."


def with_line(text: str, line: str) -> str:
    """A job whose header says so, in its last line."""
    lines = [one for one in text.splitlines() if not one.startswith(MARK)]
    end = next(number for number, one in enumerate(lines) if not one.startswith("#"))
    return "\n".join([*lines[:end], line, *lines[end:]]) + "\n"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only jobs whose path within jobs/ begins so")
    parser.add_argument("--write", action="store_true", help="put what comes out into the headers")
    given = parser.parse_args()
    wrong = 0
    for path in jobs(given.names):
        line, text = line_of(path), path.read_text(encoding="utf-8")
        if line is None:
            print(f"{path.relative_to(JOBS)}  left out: there are no shards, and its header has no command", flush=True)
            continue
        right = line in text.splitlines()
        print(f"{path.relative_to(JOBS)}  {line}{'' if right else '  NOT as its header says'}", flush=True)
        wrong += not right
        if given.write and not right:
            path.write_text(with_line(text, line), encoding="utf-8")
    sys.exit(1 if wrong and not given.write else 0)


if __name__ == "__main__":
    main()
