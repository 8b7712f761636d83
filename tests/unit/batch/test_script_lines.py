"""No value ends its line of a batch script, or becomes an option that nobody gave."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mpifed.batch.script import filled, options_of, parsed, read_script
from mpifed.cli import main
from mpifed.core.errors import UsageError

ENDS = ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\0"]
TEXT = read_script()


@pytest.mark.parametrize("end", ENDS)
def test_no_value_ends_its_line(end: str) -> None:
    value = f"a{end}#SBATCH --wrap=id"
    for options, arguments, before in (
        ({"comment": value}, ["job.toml", "out"], []), ({}, ["job.toml", value], []), ({}, ["a", "b"], [value]),
        ({f"comment{end}": None}, [], []),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"control character.*becomes a line of the batch script"):
            filled(TEXT, options, arguments, before)
    for words in ([f"--comment={value}"], ["--comment", value]):
        with pytest.raises(UsageError, match="control character"):
            parsed(words)


@pytest.mark.parametrize("value", ["a b", " a", "a#b", '"', "'", "a\\", "a\"b'c\\ #d", "$(id)", "", "é", "#", "--x"])
def test_sbatch_reads_what_was_given(value: str) -> None:
    text = filled(TEXT, {"comment": value}, ["job.toml", value])
    assert options_of(text)["comment"] == value
    (line,) = (line for line in text.splitlines() if line.startswith("set -- "))
    assert shlex.split(line) == ["set", "--", "job.toml", value]


def test_words_that_sbatch_blanks_wherever_they_stand() -> None:
    with pytest.raises(UsageError, match="a reserved word of sbatch"):
        filled(TEXT, {"job-name": "myPackJob"}, [])


def dry_run(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    """`mpifed submit --dry-run` of a job, where there is no Slurm."""
    monkeypatch.setenv("PATH", str(folder))
    job = folder / "job.toml"
    job.write_text(
        f'name = "t"\nrounds = 3\ndata.path = "{folder}"\nmodel.name = "softmax"\n'
        'algorithm = {name = "fedavg", batch_size = 4}\nclient_optimizer = {learning_rate = 0.1}\n'
    )
    return CliRunner().invoke(main, ["submit", str(job), "--dry-run", *words])


def test_percent_signs_of_a_folder_are_doubled_for_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = dry_run(tmp_path, monkeypatch, "--time", "60", "--out", "50%j")
    assert "#SBATCH --output=50%%j-%j.log" in end.output.splitlines(), end.output


@pytest.mark.parametrize("option", ["--out", "--account", "--partition", "--time", "--sbatch", "--set"])
def test_the_command_line_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    value = {"--sbatch": "--comment=a\n#SBATCH --wrap=id", "--set": "name=a\nb"}.get(option, "a\n#SBATCH --wrap=id")
    given = [] if option == "--time" else ["--time", "60"]
    end = dry_run(tmp_path, monkeypatch, *given, option, value)
    assert end.exit_code == 2, end.output
    assert "#SBATCH --wrap" not in [line.strip() for line in end.output.splitlines()]


@pytest.mark.parametrize("path", ["a\nb", "x" * 300, "/".join(["x" * 200] * 30)])
@pytest.mark.parametrize("command", ["run", "check", "show", "compare", "submit", "audit", "status"])
def test_paths_that_no_file_has(command: str, path: str) -> None:
    end = CliRunner().invoke(main, [command, path])
    assert end.exit_code == 2, end.output
    assert "control character" in end.output or "is too long" in end.output
