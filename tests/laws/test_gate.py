"""Ranks that differ, and ranks that leave: all end soon, well or with one message, under every launcher."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment, mpiexec
from lengths import covering

pytestmark = pytest.mark.launch
SCRIPT = Path(__file__).with_name("leaving.py")
LIMIT_S = 280.0  # a world that ends takes some seconds, on a busy machine a minute; one that hangs takes for ever
LEAVE = {"raise": 1, "exit0": 0, "exit3": 3, "fewer": 0}  # and with which code
DIFFER = {
    "rate": ("run: client_optimizer.learning_rate", "0.1", "0.2"),
    "data": ("FederatedDataset: data.X", *2 * [r"'float32 \[60, 3\], SHA-256 \w{12}'"]),
}
FORMS, MOMENTS = [*LEAVE, *DIFFER, "nothing"], ["before", "between", "after"]
CHILDREN = ["none", "spawn", "subprocess", "fork", "reader"]


def launched(ranks: int, *program: str, cwd: Path) -> tuple[int, str]:
    """(exit code of the launcher, what all ranks have said)."""
    ended = subprocess.run(
        [mpiexec(), "-n", str(ranks), sys.executable, *program],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, cwd=cwd, env=environment({}),
    )  # fmt: skip
    return ended.returncode, ended.stdout


# what a rank has started has ended before it does something else
@covering({"form": FORMS, "when": MOMENTS, "child": CHILDREN}, together=1)
def test_the_last_rank_does_something_else(form: str, when: str, child: str, tmp_path: Path) -> None:
    ranks = 2 + (len(form) + len(when) + len(child)) % 2
    code, text = launched(ranks, str(SCRIPT), form, when, child, cwd=tmp_path)
    told = [line for line in text.splitlines() if "mpifed: error" in line]
    if form in DIFFER:
        key, ours, theirs = DIFFER[form]
        said = f"mpifed: error: {key}: {ours} on rank 0, {theirs} on rank {ranks - 1}; all ranks must make the same"
        assert code == 2 and len(told) == 1 and re.match(said, told[0]), text
    elif form != "nothing" and (when != "after" or form == "fewer"):
        assert len(told) == 1, text
        assert re.match(f"mpifed: error: rank {ranks - 1} has left the program, while rank 0 is in ", told[0]), text
        assert code in {1, LEAVE[form] | 1}, text  # that of either, or of both, as the launcher has it
    else:
        assert code == LEAVE.get(form, 0) and told == [], text
    assert text.count("Traceback") == (form == "raise"), text


def test_what_differs_is_named_with_both_values(tmp_path: Path) -> None:
    """The script says what is expected of each of its calls; runs at its end are compared once, however long."""
    code, text = launched(2, str(SCRIPT.with_name("differing.py")), cwd=tmp_path)
    assert code == 0 and "Traceback" not in text, text
    expected = re.findall(r"^expected: (.*)$", text, re.MULTILINE)
    told = re.findall(r"^mpifed: error: (.*(?:\n  .*)*)", text, re.MULTILINE)
    assert len(told) == len(expected) == 15, text
    assert all(re.match(*both) for both in zip(expected, told, strict=True)), text
    assert sorted(re.findall(r"rank (\d): run, run(?!,)", text)) == ["0", "1"], text


def test_a_command_that_one_rank_has_wrong(tmp_path: Path) -> None:
    """As where a file is missing on one node, or the others have the arguments of another command."""
    ranks = ["-c", "import mpifed.cli; mpifed.cli.main(['run'])", ":", "-n", "1", sys.executable]
    code, text = launched(1, *ranks, "-m", "mpifed", "run", str(tmp_path / "job.toml"), cwd=tmp_path)
    assert "Missing argument 'JOB'" in text and code in {1, 2, 3}, text
    assert "mpifed: error: rank 0 has left the program, while rank 1 is in mpifed run" in text, text
