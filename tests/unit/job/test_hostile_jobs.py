"""Jobs that nobody writes by mistake: each is refused with one message, before anything is made of its values."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forecasts import forecast
from test_job import complaints, table

from mpifed.core.errors import UsageError
from mpifed.job.job import set_value
from mpifed.testing import Job

NESTED: Any = []
for _ in range(40):
    NESTED = [NESTED]


@pytest.fixture
def check_sweep(tmp_path: Path, write_job: Callable[..., Path]) -> Callable[[dict[str, Any]], Any]:
    """check_sweep(sweep): what `mpifed check` says of a job with it."""
    return lambda sweep: forecast(write_job(tmp_path / "my.toml", table(sweep=sweep)), (), 1)


@pytest.mark.parametrize(
    "name", ["", "  ", ".", "..", "../../x", "/abs", "a/b", "-x", "--wrap=id", "x" * 201, "é" * 101],
)  # fmt: skip
def test_a_name_is_that_of_one_folder(name: str) -> None:
    (line,) = complaints(table(name=name))
    assert line.startswith("name = ") and ("must be the name of one folder" in line or "and may have 200" in line)


@pytest.mark.parametrize("character", ["\n", "\0", "\x1b", "\u2028"])
def test_control_characters_are_refused_in_all_texts(character: str) -> None:
    text = f"a{character}b"
    for changes in ({"name": text}, {"data": {"path": text}}, {"audit": {"accept": [text]}}):
        (line,) = complaints(table(**changes))
        assert f"has the control character {character!a} at " in line
        assert character not in line
    (line,) = complaints(table(**{f"x{character}": 1}))
    assert "the key has the control character" in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 2**63}, "rounds = 9223372036854775808: must be less than 2^63"),
        ({"rounds": 16**5000}, "rounds = a number of 20001 bits"),
        ({"rounds": 10**8}, "rounds = 100000000: expected a number below 100000000"),
        ({"seed": datetime.date(2024, 1, 1)}, "seed = 2024-01-01: is a date or a time"),
        ({"aggregation": {"allow": NESTED}},
        "[aggregation] allow: has more than 16 tables and lists within each other"),
        ({"model": {"name": "softmax", "bias": False, "l2": 3.5e38}}, "l2 = 3.5e+38: expected a number of at most"),
        ({"model": {"name": "softmax", "bias": False, "l2": float("nan")}}, "[model] l2 = NaN: "),
        ({"model": {"name": "mlp", "bias": False, "hidden": 10**12}
        }, "[model] hidden = 1000000000000: expected a number"),
        ({"record": {"evaluate_every": 2**62}}, "[record] evaluate_every = 4611686018427387904: expected a number "),
        ({"minimize": {"name": "mpifed.maths.objectives:Softmax"}}, "is no Term; derive it from mpifed.maths"),
        ({"minimize": {"name": "os:environ"}}, "is no class"),
        ({"minimize": {"name": "a\u200b b:B"}}, 'name = "a\\u200b b:B": is not known'),
        ({"seed": "x" * 10**6}, f'seed = "{"x" * 199}...'),
    ],
)  # fmt: skip
def test_values_that_are_refused_by_what_they_are(changes: dict[str, Any], said: str) -> None:
    (line,) = complaints(table(**changes))
    assert said in line
    assert len(line) < 500


def test_a_module_that_ends_the_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it_ends.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    (line,) = complaints(table(minimize={"name": "it_ends:X"}))
    assert line.startswith('[minimize] name = "it_ends:X": importing it_ends: SystemExit')


@pytest.mark.parametrize(
    "content", [b"x = " + b"9" * 5000, b"x = " + b"[" * 5000, b"x = " + b"{a=" * 5000, b"\xff", b"x = 0x" + b"f" * 5000]
)
def test_files_that_no_reader_takes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "job.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"job\.toml: (not a TOML file|1 error)"):
        Job.read(tmp_path / "job.toml")


@pytest.mark.parametrize(
    "change",
    ["rounds=1\nname=2", "a=1\u2028", "{a=1,b=2}=1", "rounds=" + "9" * 5000, "rounds=" + "[" * 5000, "=", "a"],
)  # fmt: skip
def test_changes_that_are_none(change: str) -> None:
    with pytest.raises(UsageError) as caught:
        set_value({}, change)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.parametrize("key", ["a={b=1,c=2}#", "a=1#", "a\nb", "a..b", "", "\u2028"])
def test_keys_of_a_sweep_that_are_none(check_sweep: Any, key: str) -> None:
    with pytest.raises(UsageError, match=r"no key of TOML|the key has the control character"):
        check_sweep({key: [1]})


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"seeds": 10**9}, "seeds = 1000000000: expected how many, from 1 to 10000"),
        ({"seeds": True}, "seeds = True: expected how many"),
        ({f"algorithm.k{i}": list(range(10)) for i in range(12)}, "has 1000000000000 points, and may have 10000"),
        ({"seeds": 3, "seed": [1, 2]}, "each sets the seeds; give one of them"),
        ({"rounds": 5}, "must be a list"),
        ({"name": ["a", "../b"]}, "must be the name of one folder"),
        ({"algorithm.batch_size": [1, "x"]}, '[algorithm] batch_size = "x"'),
        ({"algorithm.bath": [1, 2]}, "[algorithm] bath: unknown key"),
        ({"rounds.more": [1]}, "rounds.more: is not there"),
        ([1], "[sweep] must be a table"),
    ],
)
def test_sweeps_that_are_none(check_sweep: Any, grid: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_sweep(grid)
    assert said in str(caught.value)
