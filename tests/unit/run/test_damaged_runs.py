"""Damaged run folders: errors that name file and key, older checkpoints, and what can go on nevertheless."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs_in_python import checked, fedavg, job_table

from mpifed.cli import main
from mpifed.core.errors import DataError
from mpifed.files.json_file import read_json, write_json
from mpifed.files.run_folder import read_run, summary
from mpifed.run.api import run
from mpifed.run.progress import Reporter
from mpifed.testing import Job, Solo

PRIVATE = {"privacy": {"noise_multiplier": 2.0, "noise": "test", "delta": 1e-5, "clip": 0.3}}


class Heard(Reporter):
    """What was warned of."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def job(folder: Path, rounds: int, **more: Any) -> Job:
    base = {"name": "small", "algorithm": fedavg(4, 0.2), "record": {"evaluate_every": 1, "checkpoint_every": 1}}
    return checked(job_table(folder, rounds=rounds, **base | more))


@pytest.fixture(params=[{}, PRIVATE], ids=["plain", "private"])
def more(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def resumed(digits: Path, out: Path, **more: Any) -> list[str]:
    """Resume to the third round; what was warned of."""
    reporter = Heard()
    run(job(digits, 3, **more), Solo(), out, resume=True, reporter=reporter)
    return reporter.warnings


def mpifed(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


SPOILT: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text.replace("0.5", "0.25"), "was changed or damaged: its sha256 is .*was expected"),
    (lambda text: text.replace("{\n", "{ \n", 1), "was changed or damaged"),
    (lambda text: text.rstrip(), "was changed or damaged: .*one at its end was expected"),
    (lambda text: text[:-20], "cannot be read as JSON"),
    (lambda text: "", "cannot be read as JSON"),
    (lambda text: '{"a":' * 5000, "recursion limit"),
    (lambda text: '{"a": NaN}', "cannot be read as JSON"),
    (lambda text: '{"a": "\\ud800"}', "cannot be read as JSON"),
]
VALUES: list[tuple[dict[str, Any], str]] = [
    ({"exit": "0"}, 'exit = "0"'), ({"exit": 0, "rounds": -1}, "rounds = -1: expected a number of at least 0"),
    ({"exit": 0, "rounds": 2**64}, "rounds = 18446744073709551616"), ({"exit": 0, "rounds": True}, "rounds = true"),
    ({"rounds": 1}, "exit missing"), ({"exit": 0, "name": "\x1b[31m"}, "name = "),
    ({"exit": 0, "process": {"host": "x", "pid": "1", "started": None}}, "process.pid"),
    ({"exit": 0, "slurm_job": "--all"}, "slurm_job"), ({"exit": 0, "elapsed_s": 10**400}, "elapsed_s = 1000"),
    ({"exit": 0, "exchanges": {"x": {"up_bytes": 1}}}, "exchanges.x.down_bytes missing"),
]  # fmt: skip


def test_a_run_json_that_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for spoil, said in SPOILT:
        write_json(path, {"exit": 0, "elapsed_s": 0.5})
        path.write_text(spoil(path.read_text()))
        with pytest.raises(DataError, match=rf"run\.json: .*{said}"):
            read_json(path)
    for change, said in VALUES:
        write_json(path, change)
        with pytest.raises(DataError, match=rf"run\.json: {said}.*put back the file"):
            read_run(tmp_path)


@pytest.fixture(scope="module")
def two_rounds(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, to be copied."""
    run(job(digits, 2), Solo(), out := tmp_path_factory.mktemp("two") / "run")
    return out


@pytest.fixture(scope="module")
def whole(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SHA-256 of the model after three rounds at once."""
    run(job(digits, 3), Solo(), out := tmp_path_factory.mktemp("whole") / "run")
    return str(summary(out)["model_sha256"])


def test_an_edited_run_json(digits: Path, whole: str, tmp_path: Path, more: dict[str, Any]) -> None:
    """It is written anew from the checkpoint; but where it counts what was released, the run is refused."""
    out = tmp_path / "run"
    run(job(digits, 2, **more), Solo(), out)
    text = (out / "run.json").read_text()
    (out / "run.json").write_text(text.replace('"rounds": 2', '"rounds": 1'))
    shown = mpifed("show", out)
    assert shown.exit_code == 3 and "run.json: was changed or damaged" in shown.output
    if more:
        with pytest.raises(DataError, match=r"run\.json: was changed or damaged"):
            resumed(digits, out, **more)
        return
    assert any("run.json: was changed or damaged" in one for one in resumed(digits, out))
    assert summary(out)["model_sha256"] == whole


def spoil(folder: Path, **changes: Any) -> None:
    """Write other values into a manifest, with a checksum that fits."""
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | changes)


MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "a number as text": ({"round": "2"}, 'round = "2"'),
    "another round": ({"round": 1}, "is of round 1"),
    "a negative number": ({"up_bytes": -1}, "up_bytes = -1"),
    "a huge number": ({"attempt": 10**400}, "attempt = 1000"),
    "a name elsewhere": ({"files": {"../../x": "0" * 64}}, "files"),
    "no server": ({"files": {}}, "does not name all files"),
    "no identity": ({"run": {"job": {}, "identity": {}}}, "run.identity.data missing"),
    "half of the first iterate": ({"first": {"objective": 1.0}}, "first"),
    "tables in tables": ({"exchanges": {"x": {"y": {}}}}, "exchanges.x"),
}


@pytest.mark.parametrize(("changes", "said"), MANIFESTS.values(), ids=MANIFESTS)
def test_manifests_fall_back(
    digits: Path, two_rounds: Path, whole: str, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    out = shutil.copytree(two_rounds, tmp_path / "run")
    shutil.copytree(out, tmp_path / "both")
    spoil(out / "checkpoint" / "round-00000002", **changes)
    warned = resumed(digits, out)
    because = "goes on after round 1; round-00000002: manifest.json: "
    assert any(because in one and said in one for one in warned), warned
    assert summary(out)["model_sha256"] == whole
    for name in ("round-00000001", "round-00000002"):
        spoil(tmp_path / "both" / "checkpoint" / name, attempt=-1)
    both = r"round-00000002: manifest\.json: attempt = -1.*round-00000001: .*attempt = -1"
    with pytest.raises(DataError, match=both):
        resumed(digits, tmp_path / "both")


def killed(two_rounds: Path, folder: Path) -> Path:
    """A copy of a run, as it is before run.json says how it ended."""
    out = Path(shutil.copytree(two_rounds, folder / "run"))
    write_json(out / "run.json", read_run(out) | {"exit": None, "digests": None})
    return out


def test_what_was_half_written_goes(digits: Path, two_rounds: Path, tmp_path: Path) -> None:
    out = killed(two_rounds, tmp_path)
    mine = {out / ".notes.0123456789abcdef.new", out / ".run.json.new", out / ".run.json.0123456789abcdeF.new"}
    for path in (*mine, out / ".run.json.0123456789abcdef.new", out / ".model.safetensors.00000000deadbeef.new"):
        path.write_text("half")
    assert resumed(digits, out) == []
    assert set(out.glob(".*")) == mine


def test_a_history_that_is_gone_or_has_a_row_less_or_more(digits: Path, two_rounds: Path, tmp_path: Path) -> None:
    out = killed(two_rounds, tmp_path)
    lines = (out / "history.csv").read_text().splitlines(keepends=True)
    none = r"(not as a run|has 0 whole rows up to round 2, .* 3 had been)"
    for text, said in (
        (None, none), ("", none), ("round,elap", none), ("\n", none),
        ("".join([*lines[:2], *lines[3:]]), "has 2 whole rows up to round 2, .* 3 had been measured"),
    ):  # fmt: skip
        (out / "history.csv").unlink()
        if text is not None:
            (out / "history.csv").write_text(text)
        with pytest.raises(DataError, match=rf"history\.csv: {said}"):
            resumed(digits, out)
        (out / "history.csv").touch()
    (out / "history.csv").write_text("".join([*lines, "9,torn"]))
    resumed(digits, out)
    assert summary(out)["rounds"] == 3
