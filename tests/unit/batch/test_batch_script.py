"""Batch scripts, filled."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from mpifed.batch import script
from mpifed.core.errors import UsageError

TEXT = """\
#!/bin/bash
# A script
#SBATCH --nodes=2
#SBATCH --time=24:00:00   # long
#SBATCH --requeue
# mpifed submit puts the arguments here

echo "$#"; printf '%s\\n' "$@"
"""


def test_arguments_reach_the_script_as_they_are() -> None:
    arguments = ["a job.toml", "runs/$HOME", "--set", "algorithm.step=[0.1, 0.2]", "--set", "name='it''s'", "*"]
    text = script.filled(TEXT, {}, arguments, ["export MPIFED_TEST=yes"])
    ended = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [str(len(arguments)), *arguments]
    assert text.index("MPIFED_TEST") < text.index("set --")


def test_a_script_without_a_place_for_arguments() -> None:
    with pytest.raises(UsageError, match="lacks the line '# mpifed submit puts"):
        script.filled("#!/bin/bash\n", {}, [])


def test_the_script_that_is_shipped() -> None:
    text = script.read_script()
    filled = script.filled(text, {"nodes": "7"}, ["job.toml", "runs/x"])
    options = script.options_of(filled)
    assert options["nodes"] == "7" and options["signal"] == "B:USR1@120" and "requeue" in options
    subprocess.run(["/bin/bash", "-n", "-c", filled], check=True)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--qos=high --exclusive", {"qos": "high", "exclusive": None}),
        ("--qos high -C fast --hold", {"qos": "high", "constraint": "fast", "hold": None}),
        ("-qhigh -c4 -x n1,n2", {"qos": "high", "cpus-per-task": "4", "exclude": "n1,n2"}),
        ("--comment='a = b'", {"comment": "a = b"}),
        ("", {}),
    ],
)
def test_options_as_they_are_typed(words: str, found: dict[str, str | None]) -> None:
    assert script.parsed(shlex.split(words)) == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("qos", "qos: not an option of sbatch"),
        ("--nodes=3", "--nodes=3: give it to mpifed submit itself"),
        ("-t 5", "-t: give it to mpifed submit itself"),
        ("-A me", "-A: give it to mpifed submit itself"),
        ("--array=1-3", "--array=1-3: give it to mpifed submit itself"),
        ("-n 4", "-n: not with mpifed submit: use --nodes and --ntasks-per-node"),
        ("--wrap=x", "--wrap=x: not with mpifed submit"),
        ("-Z", "-Z: not an option of sbatch"),
    ],
)
def test_options_that_would_break_it(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        script.parsed(shlex.split(words))
