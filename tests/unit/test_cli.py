"""What holds for every command: help, what a shell completes, outputs that are closed, full or of few characters."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner
from documents import ROOT
from jobs_in_python import fedavg, job_table
from whole_runs import run
from written_files import read_json

from mpifed.cli import main
from mpifed.core.errors import DataError
from mpifed.forecast import job
from mpifed.testing import Job, Solo

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no device here that is always full")


# --- help and completion ---------------------------------------------------------------------------------------------


def all_commands(group: click.Group, words: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command with its words, those of groups included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{words}{name}", command
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{words}{name} ")


def test_help_is_whole_and_says_defaults() -> None:
    text = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert "..." not in text.partition("Commands:")[2] and len(main.commands) >= 12
    for name, command in all_commands(main):
        summary = command.get_short_help_str()
        assert not summary.endswith("...") and (" " in name or f"  {name:9}{summary}\n" in text), name
        for option in (one for one in command.params if isinstance(one, click.Option)):
            said = option.help or ""
            assert len(said) > 3 and not said.startswith("["), f"{name} --{option.name}"
            default = option.get_default(click.Context(command, info_name=name))
            if isinstance(default, str | int | float) and not isinstance(default, bool) and not option.hidden:
                assert option.show_default or "[default:" in said, f"{name} --{option.name}"


def completions(*words: str, last: str = "") -> list[str]:
    """What a shell offers for the last word after the others."""
    items = BashComplete(main, {}, "mpifed", "_MPIFED_COMPLETE").get_completions([*words], last)
    return [item.value for item in items]


def test_a_shell_completes_and_loads_no_heavy_library() -> None:
    assert set(completions()) == set(main.commands) and completions(last="sh") == ["show"]
    assert completions("run", "job.toml", last="--over") == ["--overwrite"]
    assert completions("run", "job.toml", "--progress", last="") == ["auto", "bar", "lines", "none"]
    assert "digits" in completions("data") and completions("data", "digits", last="--par") == ["--partition"]
    program = """
import sys
from click.shell_completion import ZshComplete
from mpifed.cli import main
complete = ZshComplete(main, {}, "mpifed", "_MPIFED_COMPLETE").get_completions
assert complete([], "") and complete(["run"], "--") and complete(["show"], "")
assert not {"numpy", "pydantic", "h5py", "rich"} & set(sys.modules)
assert complete(["explain"], "fedavg") and complete(["new", "--model"], "soft")
assert not {"scipy", "pydantic", "h5py", "mpi4py", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_an_output_takes_all_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, "ascii"))
    main(["--version"], standalone_mode=False)
    print("\xe9\udcff", flush=True)
    assert content.getvalue().endswith(b"\\xe9\\udcff\n")


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_an_output_that_was_closed_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    main(["--version"], standalone_mode=False)
    stream = getattr(sys, name)
    assert stream.name == os.devnull
    stream.write("nobody reads it")
    stream.close()


def test_a_message_steers_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise DataError("a\x1b[2Jb.h5: damaged")

    monkeypatch.setattr(job, "read", fails)
    (tmp_path / "job.toml").write_text("")
    end = CliRunner().invoke(main, ["check", str(tmp_path / "job.toml")])
    assert (end.exit_code, end.stderr) == (3, "mpifed: error: a\\x1b[2Jb.h5: damaged\n")


# --- whatever cannot be written: one sentence, and exit code 3 -------------------------------------------------------


@pytest.fixture(scope="module")
def made(digits: Path, write_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with job.toml and its run."""
    folder = tmp_path_factory.mktemp("made")
    audited = job_table(digits, rounds=2, algorithm=fedavg(batch_size=1), record={"evaluate_every": 1})
    run(Job.read(write_job(folder / "job.toml", audited)), Solo(), folder / "run")
    for kind in ("svg", "png"):  # what draws is imported here, not by each process that is forked
        main.main(["plot", str(folder / "run"), "--out", str(folder / f"figure.{kind}")], standalone_mode=False)
    return folder


def ended(words: Sequence[object], output: Path | None, most: int | None = None) -> tuple[int, list[str]]:
    """(exit code, lines of its standard error) of a command in a process of its own, whose files have `most` bytes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(output or os.devnull, os.O_WRONLY), 1)
        os.dup2(writer, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        code = 99
        try:
            if most is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            main.main(list(map(str, words)), "mpifed")
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.splitlines()


PRINTING = (
    "--help", "--version", "check {job}", "show {run} --json", "compare {run}", "explain fedavg", "new",
    "audit {job}", "doctor", "plot {run} --out {there}/figure.svg", "run {job} --out {there}/run",
    "data digits --split rows --clients 3 --out {there}/data",
    "submit {job} --out {there}/run --time 1:00:00 --dry-run",
)  # fmt: skip
WRITING = (
    "new {there}/job.toml", "plot {run} --out {there}/figure.svg", "plot {run} --out {there}/figure.png",
    "audit {job} --out {there}/audit", "data digits --split rows --clients 3 --out {there}/data",
    "run {job} --out {there}/run",
)  # fmt: skip


def words_of(command: str, made: Path, there: Path) -> list[str]:
    return command.format(job=made / "job.toml", run=made / "run", there=there).split()


@needs_full
@pytest.mark.parametrize("command", PRINTING)
def test_output_to_a_full_disk(command: str, made: Path, tmp_path: Path) -> None:
    code, lines = ended(words_of(command, made, tmp_path), FULL)
    assert code == 3 and [line.startswith("mpifed: error: ") for line in lines].count(True) == 1, lines
    assert "No space left on device; make room" in lines[-1]
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("command", WRITING)
def test_files_that_cannot_be_written(command: str, made: Path, tmp_path: Path) -> None:
    """A disk that is full at once, a folder that is a file, and one in which nobody may make anything."""
    (tmp_path / "file").touch()
    for there, most in ((tmp_path, 0), (tmp_path / "file", None), (Path("/proc/1/nowhere"), None)):
        code, lines = ended(words_of(command, made, there), None, most)
        lines = [line for line in lines if not line.startswith("mpifed: warning")]
        assert (code, len(lines)) == (3, 1), lines
        assert lines[0].startswith("mpifed: error: ") and ("; " in lines[0] or "Errno" in lines[0])


@needs_full
def test_python_says_nothing_more_at_its_end(made: Path) -> None:
    with FULL.open("w") as full:
        for stderr in (full, subprocess.PIPE):
            words = [sys.executable, "-m", "mpifed", "show", made / "run"]
            done = subprocess.run(words, stdout=full, stderr=stderr, check=False)
            assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1


@needs_full
def test_a_run_that_cannot_say_how_it_ended_has_its_exit_code(made: Path, tmp_path: Path) -> None:
    change = ("--set", "client_optimizer.learning_rate=1e30", "--progress", "none")
    words = [sys.executable, "-m", "mpifed", "run", made / "job.toml", "--out", tmp_path / "run", *change]
    with FULL.open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=full, check=False)
    assert done.returncode == read_json(tmp_path / "run/run.json")["exit"] == 68


# --- an installation from a clone ------------------------------------------------------------------------------------

WITHOUT_LOOPS = "import sys; sys.modules['mpifed.core._loops'] = None; from mpifed.cli import main; main()"


def python(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program of a user's, whose path is that of the installation alone."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=kept, capture_output=True, text=True)


def test_a_script_beside_the_clone_imports_the_package(tmp_path: Path) -> None:
    """A folder `mpifed` beside a script is a namespace package, which an import hook of setuptools would come after."""
    (tmp_path / "mpifed").symlink_to(ROOT)
    (tmp_path / "script.py").write_text("import mpifed as mf; print(mf.FedAvg.__name__)", encoding="utf-8")
    done = python("script.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "FedAvg\n"), done.stderr


def test_without_compiled_loops_a_run_says_so_once(digits: Path, tmp_path: Path) -> None:
    settings = ("--set", f"data.path={digits}", "--set", "rounds=2", "--progress", "none", "--out")
    words = ("run", ROOT / "jobs/quickstart.toml", *settings)
    slow = python("-c", WITHOUT_LOOPS, *words, "slow", folder=tmp_path)
    fast = python("-m", "mpifed", *words, "fast", folder=tmp_path)
    assert (slow.returncode, fast.returncode) == (0, 0), slow.stderr + fast.stderr
    assert slow.stderr.count("no compiled loops") == 1
    one, other = (next(line for line in done.stdout.splitlines() if "SHA-256" in line) for done in (slow, fast))
    assert one == other
