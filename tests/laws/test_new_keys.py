"""Protected runs that are interrupted agree on new keys and still have the same bits; and no key is ever written."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from channel_algorithms import progress_of
from ended import of_certificate, run
from jobs_in_python import checked
from methods import private
from registry import table

from mpifed.comm.channels.dropouts import Dropouts
from mpifed.comm.channels.keys import Keyring
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.testing import Solo

PDM = {
    "name": "fedpdm",
    "batch_size": 5,
    "client_optimizer": {"learning_rate": {"initial": 0.3, "exponent": 0.2}},
    "rho": 2.0,
    "local_steps": 2,
    "start": "own",
}
# With seed 2 rounds are void at the first attempt before the interruption and after it.
SOME_LEAVE = {"clients_per_round": 9, "dropout_rate": 0.2, "max_dropouts": 2}
CHANNELS: dict[str, dict[str, Any]] = {
    "masked": {"aggregation": {"security": "masked"}},
    "encrypted": {"aggregation": {"security": "encrypted"}},
}


def given(skewed: Path, **changes: Any) -> dict[str, Any]:
    """Clients with a memory, some of whom are away or leave; and the noise of a test."""
    base: dict[str, Any] = {
        "rounds": 6, "seed": 2, "record": {"evaluate_every": 3, "checkpoint_every": 0, "evaluate_rows": 40},
        "participation": SOME_LEAVE, "data": {"path": str(skewed), "block": 2},
        **private(level="client", noise_multiplier=1.0),
    }  # fmt: skip
    return table(skewed, PDM, **(base | changes))


# --- resume ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(skewed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run, in the plain channel."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run(checked(given(skewed)), Solo(), out)
    return out


@pytest.mark.launch
@pytest.mark.parametrize(
    ("channel", "ranks"),
    [
        ("masked", (None, 2)),
        ("encrypted", (3, None)),
        pytest.param("masked", (3, None), marks=pytest.mark.long),
    ],
)
def test_resumed_on_another_number_of_ranks(
    channel: str, ranks: tuple[int | None, int | None], whole: Path, skewed: Path, launch: Callable[..., Any],
    write_job: Any, tmp_path: Path,
) -> None:  # fmt: skip
    job, out = write_job(tmp_path / "job.toml", given(skewed, **CHANNELS[channel])), tmp_path / "run"
    for number, rounds in zip(ranks, (3, 6), strict=True):
        resume = ["--resume"] if out.exists() else []
        ended = launch(number, "run", job, "--out", out, "--set", f"rounds={rounds}", *resume)
        assert ended.code == 0, ended.text
    assert summary(out)["model_sha256"] == summary(whole)["model_sha256"]
    found, expected = read_history(out), read_history(whole)
    for name in (
        one for one in found.keys() - {"elapsed_s", "rss_bytes", "up_bytes", "down_bytes"} if not of_certificate(one)
    ):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    here, there = (progress_of(one).exchanges for one in (out, whole))
    assert here["changes"]["played"] == there["changes"]["played"] > 6  # some rounds were void
    # keys were agreed on twice
    once = tmp_path / "once"
    run(checked(given(skewed, rounds=1, **CHANNELS[channel])), Solo(), once)
    assert here["keys"]["up_bytes"] == 2 * progress_of(once).exchanges["keys"]["up_bytes"] > 0


# --- keys --------------------------------------------------------------------------------------------------------


class Keys(list[bytes]):
    """All secrets of a run, of at least 16 bytes."""

    def found_in(self, text: bytes) -> list[bytes]:
        """Those that stand in a text, as they are or as people write bytes."""
        forms = [lambda key: key, lambda key: key.hex().encode(), lambda key: repr(key)[2:-1].encode()]
        return [
            key
            for key in self
            if any(form(key) in text for form in forms) or base64.b64encode(key).rstrip(b"=")[:-1] in text
        ]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Keys:
    """Filled by every run of this process."""
    found = Keys()

    def kept(owner: Any, name: str, secrets: Callable[..., Iterator[bytes]]) -> None:
        before = getattr(owner, name)

        def after(self: Any, *arguments: Any) -> Any:
            result = before(self, *arguments)
            found.extend(secrets(self, result))
            return result

        monkeypatch.setattr(owner, name, after)

    def own(keyring: Any, result: Any) -> Iterator[bytes]:
        yield keyring.group

    kept(Keyring, "prepare", own)
    kept(Keyring, "introduce", lambda keyring, made: (keyring._private[client].private_bytes_raw() for client in made))
    kept(Keyring, "pair", lambda keyring, secret: iter([secret]))
    kept(Dropouts, "deposit", lambda secrets, given: iter([secrets.seeds[given.client]]))
    kept(Dropouts, "message_key", lambda secrets, key: iter([key]))
    urandom = os.urandom

    def drawn(size: int) -> bytes:
        made = urandom(size)
        if size >= 16:
            found.append(made)
        return made

    monkeypatch.setattr(os, "urandom", drawn)
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("channel", CHANNELS)
def test_no_key_is_written(
    channel: str, keys: Keys, skewed: Path, tmp_path: Path, capfd: Any, caplog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Neither in checkpoints nor in what is told on the way, before the run is resumed and after."""
    if channel == "encrypted":
        from mpifed.comm.channels.bfv import Bfv

        make_keys = Bfv.make_keys

        def shown(self: Any) -> tuple[bytes, bytes]:
            public, made = make_keys(self)
            keys.extend(made[at : at + 32] for at in range(len(made) // 4, len(made) - 32, len(made) // 8))
            return public, made

        monkeypatch.setattr(Bfv, "make_keys", shown)
    caplog.set_level(logging.DEBUG)
    out = tmp_path / "run"
    record = {"evaluate_every": 1, "checkpoint_every": 1, "evaluate_rows": 20}
    for rounds in (2, 3):
        tables = given(skewed, rounds=rounds, record=record, **CHANNELS[channel])
        run(checked(tables), Solo(), out, resume=rounds == 3)
    written = files(out)
    assert sum("checkpoint" in name for name in written) > 4
    owners = 1 if channel == "encrypted" else 11  # who makes the keys of all, or all who take part
    assert len(set(keys)) > 2 * (owners + 1)  # twice, and of their group
    for name, text in written.items():
        assert not keys.found_in(text), name
    told = capfd.readouterr()
    for text in (told.out, told.err, caplog.text):
        assert not keys.found_in(text.encode())


def test_two_runs_have_different_keys(keys: Keys, skewed: Path, tmp_path: Path) -> None:
    """Whatever the job's seed; a resumed run has new ones as well."""
    seen: list[set[bytes]] = []
    for name, rounds in (("one", 1), ("other", 1), ("one", 2)):
        keys.clear()
        tables = given(skewed, rounds=rounds, record={"evaluate_every": 0, "checkpoint_every": 0}, **CHANNELS["masked"])
        run(checked(tables), Solo(), tmp_path / name, resume=rounds == 2)
        seen.append(set(keys))
    assert all(len(some) > 12 for some in seen)
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
