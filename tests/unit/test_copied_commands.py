"""Commands that are printed can be copied, whatever the folders are called."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpifed.core.errors import UsageError
from mpifed.job.loading import check_data
from mpifed.results.show import must_be_run
from mpifed.run.folder import same_job
from mpifed.testing import Job

NAME = "a b'c"
Launch = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of that name, from above which commands are called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm
    Path(NAME).mkdir()
    return Path(NAME)


def words_after(text: str, start: str) -> list[str]:
    """The words, as a shell reads them, of a command that begins so and ends at a backtick or with its line."""
    (command,) = re.findall(rf"{re.escape(start)}[^`\n]*", text)
    return shlex.split(command)


def written(path: Path, data: str) -> Path:
    path.write_text(
        f'name = "t"\nrounds = 3\ndata.path = "{data}"\nmodel.name = "softmax"\n'
        'algorithm = {name = "fedavg", batch_size = 4}\nclient_optimizer = {learning_rate = 0.1}\n'
    )
    return path


def test_what_comes_after_a_new_job(folder: Path, launch: Launch) -> None:
    ended = launch(None, "new", folder / "job.toml")
    assert words_after(ended.out, "mpifed check") == ["mpifed", "check", f"{NAME}/job.toml"]


def test_what_makes_data(folder: Path) -> None:
    with pytest.raises(Exception, match="no such folder") as raised:
        check_data(written(folder / "job.toml", f"{NAME}/data"), folder / "data")
    assert words_after(str(raised.value), "mpifed data SOURCE")[-2:] == ["--out", f"{NAME}/data"]
    made = shlex.join(["mpifed", "data", "digits", "--split", "rows", "--out", f"{NAME}/data"])
    (folder / "job.toml").write_text(f"# Make the shards:  {made}\n")
    with pytest.raises(Exception, match=r"as .* says") as raised:
        check_data(folder / "job.toml", folder / "data")
    assert words_after(str(raised.value), "mpifed data digits")[-1] == f"{NAME}/data"


@pytest.mark.parametrize("sweep", [(), ("--set", "sweep.seeds=2"), ("--set", "sweep.seeds=2", "--point", "1")])
def test_what_resumes(sweep: tuple[str, ...], folder: Path, digits: Path, launch: Launch) -> None:
    """The command that is printed, as it is, goes on with the whole."""
    out = str(folder / "run 1")
    job = str(written(folder / "job.toml", str(digits)))
    words = ["mpifed", "run", job, "--set", "rounds=4", *sweep[:2], "--out", out, *sweep[2:]]
    ended = launch(None, *words[1:], "--max-hours", 0)
    assert ended.code == 75, ended.text
    assert words_after(ended.err, "mpifed run") == [*words[: len(words) - len(sweep[2:])], "--resume", *sweep[2:]]
    assert launch(None, *words[1:], "--resume").code == 0
    points = sorted(path.parent.name for path in Path(out).glob("**/model.h5"))
    assert points == {0: ["run 1"], 2: ["point-0000", "point-0001"], 4: ["point-0001"]}[len(sweep)]


@pytest.mark.launch
def test_what_resumes_on_ranks(digits: Path, tmp_path: Path, launch: Launch) -> None:
    path = written(tmp_path / "job.toml", str(digits))
    words = [str(path), "--set", "sweep.seeds=2", "--out", str(tmp_path / "s")]
    ended = launch(2, "run", *words, "--max-hours", 0)
    assert ended.code == 75, ended.text
    assert words_after(ended.err, "go on with") == ["go", "on", "with", "mpirun", "-n", "2", "mpifed", "run", *words,
                                                    "--resume"]  # fmt: skip


def test_a_batch_script_goes_on_by_itself(
    digits: Path, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It queues its job again: nobody has to go on with --resume."""
    monkeypatch.setenv("MPIFED_JOINED", str(tmp_path / "joined"))
    path = written(tmp_path / "job.toml", str(digits))
    ended = launch(None, "run", path, "--out", tmp_path / "run", "--max-hours", 0)
    assert ended.code == 75 and "interrupted after round 0" in ended.err and "go on" not in ended.err, ended.text


def test_what_resumes_another_job(folder: Path) -> None:
    job = Job.read(written(folder / "job.toml", "data"))
    with pytest.raises(UsageError) as raised:
        same_job(folder, job.table(), {**job.table(), "seed": 2})
    assert words_after(str(raised.value), "; resume with") == [";", "resume", "with", f"{NAME}/job.toml"]


def test_what_shows_a_sweep(folder: Path) -> None:
    (folder / "sweep.csv").touch()
    with pytest.raises(UsageError) as raised:
        must_be_run(folder)
    assert words_after(str(raised.value), "mpifed compare") == ["mpifed", "compare", NAME]


def test_what_comes_next(folder: Path, launch: Launch) -> None:
    (folder / "run 1").mkdir()
    written(folder / "run 1" / "job.toml", "data")
    text = launch(None, "status", folder / "run 1").out
    assert words_after(text, "mpirun") == [
        "mpirun", "-n", "P", "mpifed", "run", f"{NAME}/run 1/job.toml", "--out", f"{NAME}/run 1", "--resume",
    ]  # fmt: skip
    text = launch(None, "status", folder).out
    assert words_after(text, "mpifed status") == ["mpifed", "status", f"{NAME}/run 1"]


def test_no_command_is_written_with_a_bare_path() -> None:
    """Paths behind `mpifed COMMAND` in the source pass through `command_line`."""
    import mpifed

    quoted = re.compile(r"(?:mpifed (?:run|show|compare|status|check|submit|plot|export|new) |next: mpifed )\{(\w+)")
    sources = Path(mpifed.__file__).parent.rglob("*.py")
    assert not [f"{path}: {match[0]}" for path in sources for match in quoted.finditer(path.read_text())]
