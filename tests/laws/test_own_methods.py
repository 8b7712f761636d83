"""A class derived from a method of mpifed: what it changes is what is run, and nothing is claimed of it in its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import checked
from registry import table
from whole_runs import run

from mpifed.core.errors import UsageError
from mpifed.files.run_folder import summary
from mpifed.testing import Solo

FEDAVG = {"batch_size": 5, "client_optimizer": {"learning_rate": 0.1}}
SSCA = {"batch_size": 5, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
SOFTMAX = {"name": "softmax", "bias": False, "l2": 0.0}
PRIVATE = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7}


def trained(folder: Path, out: Path, name: str, settings: dict[str, Any], /, **tables: Any) -> dict[str, Any]:
    """run.json of a short job."""
    job = table(folder, {"name": name, **settings}, **{"rounds": 2, "model": SOFTMAX, **tables})
    run(checked(job), Solo(), out)
    return summary(out)


def refused(*given: Any, **tables: Any) -> str:
    with pytest.raises(UsageError) as error:
        trained(*given, **tables)
    return str(error.value)


@pytest.mark.parametrize("kind", ["FedAvg", "SSCA"])
def test_its_answer_is_what_is_summed(digits: Path, tmp_path: Path, kind: str) -> None:
    """However sums are computed: to rounding, and in exact sums to the bit."""
    settings, norms, hashes = (FEDAVG if kind == "FedAvg" else SSCA), {}, {}
    for numbers in ("exact", "exact-blocks"):
        for name in (kind.lower(), f"own_methods:Doubled{kind}"):
            sums = {"arithmetic": numbers}
            found = trained(digits, tmp_path / f"{numbers}-{name[-8:]}", name, settings, aggregation=sums, rounds=3)
            norms[numbers, name == kind.lower()] = found["objective"]
            hashes[numbers, name == kind.lower()] = found["model_sha256"]
    assert hashes["exact", False] == hashes["exact-blocks", False]  # without sums over blocks there is none to round
    for numbers in ("exact", "exact-blocks"):
        assert abs(norms[numbers, True] - norms[numbers, False]) > 0.01


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("Plain", {"momentum": 0.9}, "[client_optimizer] momentum"),
        ("Plain", {"weight_decay": 0.2}, None),
        ("Thoughtful", {"momentum": 0.9}, None),
        ("DoubledFedAvg", {"momentum": 0.9}, None),
    ],
    ids=str,
)
def test_settings_that_it_does_not_read(
    digits: Path, tmp_path: Path, name: str, settings: dict[str, Any], said: str | None
) -> None:
    optimizer = {"client_optimizer": {"learning_rate": 0.1, **settings}, "local_steps": 2}
    given = (digits, tmp_path / "run", f"own_methods:{name}", FEDAVG | optimizer)
    if said is None:
        assert trained(*given)["rounds"] == 2
    else:
        assert refused(*given).startswith(f'{said}: "own_methods:{name}" has not read that; leave it out')


def test_what_all_local_methods_share_stays(digits: Path, tmp_path: Path) -> None:
    for name, said in (
        ("Answering", '"answer", which is LocalMethod'),
        ("Counted", '"most_steps", which is LocalSteps'),
    ):
        text = refused(digits, tmp_path / "run", f"own_methods:{name}", FEDAVG)
        assert f"has {said}'s for all methods; leave it out" in text
    assert not (tmp_path / "run" / "run.json").exists()


def test_no_noise_on_an_upload_of_unknown_gain(digits: Path, tmp_path: Path) -> None:
    """On gradients it is processing of what is noisy already; at level client the upload is clipped, whatever it is."""
    for name in ("Unknown", "DoubledFedAvg"):  # which has inherited a gain that is not its own
        given = (digits, tmp_path / "run", f"own_methods:{name}", FEDAVG)
        text = refused(*given, privacy=PRIVATE | {"noise": "paper"})
        assert "how far one record moves an upload is not known" in text
    assert not (tmp_path / "run" / "run.json").exists()
    for number, privacy in enumerate(({}, {"level": "client"})):
        out = tmp_path / f"run-{number}"
        assert trained(digits, out, "own_methods:Unknown", FEDAVG, privacy=PRIVATE | privacy)["epsilon"] > 0


def test_a_regularizer_and_an_epsilon_of_what_a_hook_changes(digits: Path, tmp_path: Path) -> None:
    """Noise and prox are the base's, around the hook."""
    given = (digits, tmp_path / "run", "own_methods:DoubledFedAvg", FEDAVG)
    assert trained(*given, privacy=PRIVATE, regularizer={"name": "l1", "weight": 0.1})["epsilon"] > 0


def test_an_upload_of_several_arrays(digits: Path, tmp_path: Path) -> None:
    """Its mean change is that of FedAvg, also under noise on gradients; but an upload that is clipped is one array."""
    for number, privacy in enumerate(({}, {"privacy": PRIVATE | {"noise": "test"}})):
        sent = [
            trained(digits, tmp_path / f"{number}{name[-3:]}", name, FEDAVG | {"local_steps": 2}, **privacy)
            for name in ("fedavg", "own_methods:InTwoParts")
        ]
        assert sent[0]["model_sha256"] == sent[1]["model_sha256"]
    text = refused(digits, tmp_path / "run", "own_methods:InTwoParts", FEDAVG, privacy=PRIVATE | {"level": "client"})
    assert "noise on the upload is for uploads of one part" in text


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    ("name", "as_other"),
    [("InPlace", "DoubledFedAvg"), ("Keeping", None), ("SameTwice", None), ("Counting", None)],
)
def test_what_hooks_do_to_arrays(skewed: Path, tmp_path: Path, name: str, as_other: str | None, steps: int) -> None:
    """Whether the change is made before it is looked at, or not."""
    sent = [
        trained(skewed, tmp_path / which, which, FEDAVG | {"local_steps": steps})["model_sha256"]
        for which in (f"own_methods:{name}", f"own_methods:{as_other}" if as_other else "fedavg")
    ]
    assert sent[0] == sent[1]


def test_what_all_clients_are_sent_cannot_be_written_to(skewed: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        trained(skewed, tmp_path / "run", "own_methods:Spoiling", FEDAVG)


def test_a_void_round_gives_back_what_a_hook_has_written_to(skewed: Path, tmp_path: Path) -> None:
    """Whether the clients of a block are all in the round, or some, whose states are copies."""
    leaving = {"participation": {"dropout_rate": 0.2, "max_dropouts": 1, "clients_per_round": 6}, "rounds": 4}
    found = {
        trained(
            skewed, tmp_path / str(block), "own_methods:Accumulating", FEDAVG, **leaving,
            aggregation={"security": "masked"}, data={"path": str(skewed), "block": block},
        )["model_sha256"]
        for block in (1, 4)
    }  # fmt: skip
    assert len(found) == 1


@pytest.mark.parametrize("noise", ["test", "paper"])
@pytest.mark.parametrize(
    ("name", "said"),
    [("Pushing", "a hook of the method reads rows"), ("Again", "a hook of the method reads rows")],
)
def test_an_epsilon_is_of_all_that_hooks_release(
    digits: Path, tmp_path: Path, name: str, said: str, noise: str
) -> None:
    given = (digits, tmp_path / "run", f"own_methods:{name}", FEDAVG)
    assert said in refused(*given, privacy=PRIVATE | {"noise": noise})
    assert trained(digits, tmp_path / "people", *given[2:], privacy=PRIVATE | {"level": "client"})["epsilon"] > 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Beginning", "how far one record moves an upload is not known"),
        ("Unchecked", "how far one record moves an upload is not known"),
    ],
)
def test_a_gain_that_does_not_hold(digits: Path, tmp_path: Path, name: str, said: str) -> None:
    text = refused(digits, tmp_path / "run", f"own_methods:{name}", FEDAVG, privacy=PRIVATE | {"noise": "paper"})
    assert said in text


def test_refusals_of_privacy_hold_whatever_a_class_leaves_out(digits: Path, tmp_path: Path) -> None:
    """Both gradients of a step would be released with the same noise; and what clients hear is a hook, too."""
    for privacy in ({}, {"noise": "paper"}):
        text = refused(digits, tmp_path / "run", "own_methods:Unlisted", FEDAVG, privacy=PRIVATE | privacy)
        assert "local steps that are no multiple of a minibatch's gradient" in text
    given = (digits, tmp_path / "run", "own_methods:Telling", FEDAVG | {"rho": 2.0})
    assert "clients keep what its `retain` gives" in refused(*given, privacy=PRIVATE | {"noise": "paper"})


def test_nothing_is_released_beside_the_rounds(digits: Path, tmp_path: Path) -> None:
    """What a set-up would send is counted by no epsilon; and a model knows no loss that was measured without noise."""
    given = (digits, tmp_path / "run", "own_methods:SettingUp", FEDAVG)
    assert "`released` is inherited, and does not count what its `setup`" in refused(*given, privacy=PRIVATE)
    noisy = {"privacy": PRIVATE | {"noise": "test"}}
    sent = [trained(digits, tmp_path / n[-6:], n, FEDAVG, **noisy) for n in ("fedavg", "own_methods:ByLoss")]
    assert sent[0]["model_sha256"] == sent[1]["model_sha256"]


def test_its_server_takes_all_optimizers(digits: Path, tmp_path: Path) -> None:
    """Which are read by their own class, not by the method."""
    for number, server in enumerate(({"momentum": 0.9}, {"name": "adam", "tau": 0.1, "learning_rate": 0.05})):
        job = FEDAVG | {"server_optimizer": server}
        sent = [trained(digits, tmp_path / f"{number}{n[-3:]}", n, job) for n in ("fedavg", "own_methods:InTwoParts")]
        assert sent[0]["model_sha256"] == sent[1]["model_sha256"]
