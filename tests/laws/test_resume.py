"""Interrupted, stopped, killed and damaged runs go on, on other numbers of ranks, to the bits of one left alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from disturbed import TASKS, assert_readable, end_before_step, forked, play
from ended import same_runs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from jobs_in_python import in_text
from written_files import contents, read_json

from mpifed.files.write import PART
from mpifed.maths.schedules import SCHEDULES

pytestmark = pytest.mark.launch
ROUNDS = 8
TROUBLES = {"SIGUSR1": 75, "SIGTERM": 75, "raise": 1, "SIGKILL": -9}  # in round 5 of task "own", and the exit code
RANKS = st.sampled_from([None, 2, 3])
OTHER = ["seed=4", "model.l2=0.5", "data.path='OTHER'", "compute.dtype='float64'"]


@pytest.fixture(scope="module")
def undisturbed(
    request: pytest.FixtureRequest, write_job: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """undisturbed(task): the folder of its job, and of a whole run."""
    base = tmp_path_factory.mktemp("undisturbed")

    @cache
    def undisturbed(name: str) -> Path:
        folder = base / name.replace(" ", "-")
        folder.mkdir()
        job = TASKS[name].table(request.getfixturevalue(TASKS[name].data), ROUNDS)
        write_job(folder / "job.toml", job)
        play(job, folder / "whole")
        return folder

    return undisturbed


class Disturbed(RuleBasedStateMachine):
    """A run in a folder, whatever happens to it."""

    undisturbed: Callable[[str], Path]
    launch: Callable[..., Any]
    other: Path

    @initialize(name=st.sampled_from([*TASKS]))
    def begin(self, name: str) -> None:
        self.name, self.folder = name, self.undisturbed(name)
        self.out = Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def rounds(self) -> list[int]:
        """Of its checkpoints."""
        return sorted(int(path.name[-8:]) for path in self.out.glob("checkpoint/round-*[0-9]"))

    def resume(self, ranks: int | None, *words: str, trouble: str = "") -> Any:
        given = ("run", self.folder / "job.toml", "--out", self.out, "--resume", *words)
        ended = self.launch(ranks, *given, env={"MPIFED_TEST_TROUBLE": trouble})
        assert "Traceback" not in ended.text or trouble == "raise", ended.text
        assert_readable(self.out)
        return ended

    @rule(ranks=RANKS, more=st.integers(1, 4))
    def go_on(self, ranks: int | None, more: int) -> None:
        """For some rounds."""
        rounds = min(ROUNDS, max([0, *self.rounds()]) + more)
        ended = self.resume(ranks, "--set", f"rounds={rounds}")
        assert ended.code == 0, ended.text

    @rule(ranks=RANKS)
    def have_no_time(self, ranks: int | None) -> None:
        if max([0, *self.rounds()]) < ROUNDS:
            ended = self.resume(ranks, "--max-hours", "0")
            assert ended.code == 75 and ended.text.count("mpifed: interrupted") == 1, ended.text

    @rule(step=st.integers(1, 80))
    def die_at_a_step_on_the_disk(self, step: int) -> None:
        job = in_text((self.folder / "job.toml").read_text())

        def ended() -> None:
            end_before_step(step)
            play(job, self.out, resume=self.out.exists())

        assert forked(ended) in (-9, 0)
        assert_readable(self.out)

    @precondition(lambda self: self.name == "own")
    @rule(ranks=st.sampled_from([0, 2, 3]), trouble=st.sampled_from([*TROUBLES]))
    def have_trouble(self, ranks: int, trouble: str) -> None:
        happens = max([0, *self.rounds()]) <= 5
        ended = self.resume(ranks, trouble=trouble)
        if trouble == "SIGKILL" and happens:
            assert ended.code not in (0, 75), ended.text
        else:
            assert ended.code == (TROUBLES[trouble] if happens else 0), ended.text
        if happens:
            told = read_json(self.out / "run.json")
            assert told["exit"] == (None if trouble == "SIGKILL" else TROUBLES[trouble])
            if told["exit"] == 75:
                assert 5 < told["rounds"] < ROUNDS and "--resume" in ended.text
                assert ended.text.count("mpifed: interrupted") == 1, ended.text

    @precondition(lambda self: len(self.rounds()) > 1 and self.rounds()[-1] < ROUNDS)
    @rule(number=st.integers(0, 9), part=st.floats(0, 1, exclude_max=True), cut=st.booleans(), ranks=RANKS)
    def lose_a_part_of_the_newest_checkpoint(self, number: int, part: float, cut: bool, ranks: int | None) -> None:
        *_, before, newest = self.rounds()
        files = sorted((self.out / f"checkpoint/round-{newest:08d}").iterdir())
        path = files[number % len(files)]
        content = bytearray(path.read_bytes())
        at = int(part * len(content))
        content[at] ^= 1
        path.unlink()  # the one before may be linked to the same file
        path.write_bytes(content[:at] if cut else content)
        ended = self.resume(ranks, "--set", f"rounds={newest + 1}")
        assert ended.code == 0 and f"resumed after round {before}" in ended.out, ended.text

    def kept(self) -> dict[str, bytes | None]:
        """All files but the lock, and what a killed process had not written to its end, which the next one removes."""
        named = contents(self.out).items()
        return {name: what for name, what in named if name != "lock" and not PART.fullmatch(Path(name).name)}

    @precondition(lambda self: self.rounds())
    @rule(ranks=RANKS, change=st.sampled_from(OTHER))
    def be_mistaken_for_another(self, ranks: int | None, change: str) -> None:
        """What does not fit is refused, and nothing is touched; so is a run that is not to be resumed."""
        before = self.kept()
        ended = self.resume(ranks, "--set", change.replace("OTHER", str(self.other)))
        assert ended.code == 2 and ended.text.count("mpifed: error") == 1, ended.text
        again = self.launch(ranks, "run", self.folder / "job.toml", "--out", self.out)
        assert again.code == 2 and again.text.count("holds a run already") == 1, again.text
        assert self.kept() == before

    def teardown(self) -> None:
        for _ in range(2):  # the second finds it finished
            ended = self.resume(None)
            assert ended.code == 0, ended.text
            same_runs(self.out, self.folder / "whole")


@pytest.fixture
def machine(undisturbed: Any, launch: Any, skewed: Path) -> type[Disturbed]:
    Disturbed.undisturbed, Disturbed.launch = staticmethod(undisturbed), staticmethod(launch)
    Disturbed.other = skewed
    return Disturbed


@pytest.mark.parametrize(("signal", "ranks"), [("SIGUSR1", 3), ("SIGTERM", 2)])
def test_everything_once(signal: str, ranks: int, machine: type[Disturbed]) -> None:
    """In an order in which it can happen."""
    run = machine()
    run.begin("own")
    run.have_no_time(ranks)
    run.go_on(ranks, 2)
    for change in OTHER:
        run.be_mistaken_for_another(None, change)
    run.be_mistaken_for_another(ranks, OTHER[0])
    for number in range(3):
        run.lose_a_part_of_the_newest_checkpoint(number, 0.5, cut=number == 0, ranks=None)
    run.have_trouble(ranks, "raise")
    run.die_at_a_step_on_the_disk(30)
    run.have_trouble(ranks, "SIGKILL")
    run.have_trouble(ranks, signal)
    run.teardown()


def test_rounds_may_grow(machine: type[Disturbed]) -> None:
    """With memories of clients, and steps that fall by each of the schedules."""
    names = ("control variates", "limits", "private", "compressed")
    assert all(f"'name': '{schedule}'" in repr([TASKS[name] for name in names]) for schedule in SCHEDULES)
    for name in names:
        run = machine()
        run.begin(name)
        run.go_on(None, 3)
        run.go_on(2, 3)
        run.teardown()


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_whatever_happens_to_a_run(examples: int, machine: type[Disturbed]) -> None:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=8, derandomize=examples < 10, suppress_health_check=slow,
            database=None,
        ),
    )  # fmt: skip
