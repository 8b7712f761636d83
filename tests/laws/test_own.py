"""Classes of a user: wrong ones are refused, right ones run, and of what is derived nothing is claimed in our name."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from registry import table
from whole_runs import run

from mpifed.core.errors import UsageError
from mpifed.core.record import leaves
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import summary
from mpifed.testing import Job, Solo, check_model

AVG = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.1}}
SSCA = {"name": "ssca", "batch_size": 5, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "slack_cost": 9.0}
SOFTMAX = {"name": "softmax", "bias": False}
PRIVATE = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7}


def job(folder: Path, algorithm: dict[str, Any] = AVG, **changes: Any) -> Job:
    return checked(table(folder, algorithm, **({"rounds": 1} | changes)))


Check = Callable[..., str]


@pytest.fixture
def check(launch: Callable[..., Any], write_job: Any, tmp_path: Path) -> Check:
    """What `mpifed check` says is wrong with a job; "" where it is right."""

    def check(task: Job) -> str:
        ended = launch(None, "check", write_job(tmp_path / "job.toml", task.table()))
        assert ended.code in (0, 2), ended.text
        return str(ended.err) if ended.code else ""

    return check


# --- models, terms and regularizers ----------------------------------------------------------------------------------

SLOPE = "the gradient by slope() is"
ALONE = "by single samples alone"
SHAPES = {  # which a run compares, too
    "own_functions:WideStart": "start() gives arrays of {'float64'}; {'float32'} is expected",
    "own_functions:TooManyFeatures": "start().first has axes of (10, 64); (64, 64) is expected",
    "own_functions:Widened": "'head.bias': ((3, 10), 'float64')}; {'first': ((3, 64, 10), 'float32')",
    "own_functions:WrongShape": "loss() has shape (3, 6, 1); (3, 6) is expected",
    "own_functions:Transposed": "the slope of the loss has shape (3, 10, 6); (3, 6, 10) is expected",
    "own_networks:WideOutputs": "'float64'",
    "own_networks:NotFinite": "start() gives numbers that are not finite",
}
MODELS = dict.fromkeys(
    (
        f"own_functions:{name}"
        for name in (
            "OnePercent", "PositiveWeights", "MeanOfSamples", "OneBiasMissing", "NextClass", "InPlace",
            "OneHeadForAll", "SumOverClients", "BatchNormalized", "NeverFinite", "NotAdjoint",
        )
    ),
    SLOPE,
) | {
    "own_functions:MeanOfLosses": f"loss() of a sample among others is .*{ALONE}",
    "own_functions:Random": "loss.*other bits the second time",
    "own_functions:RandomStart": "start.*other bits the second time",
    "own_functions:FalselyConvex": "convex = True, and halfway between two models",
    "own_networks:WrongWayBack": SLOPE,
    "own_networks:Noisy": "other bits the second time",
    "own_networks:Centered": ALONE,
    "own_networks:DropsByOthers": "loss() in training of a sample among others",
    "own_networks:DropsAnew": "loss() in training: its function gives other bits the second time",
}  # fmt: skip
TERMS = {
    "RateWithoutWeights": SLOPE,
    "FalselyConvexRate": "convex = True",
    "CountedAsNumbers": "counted() is {'': ((3, 6), 'float32')}; {'': ((3, 6), 'bool')} is expected",
    "CountedAtOnce": "counted() is {'': ((), 'bool')}",
}
REGULARIZERS = {
    "HalfStep": "is no minimizer",
    "BiasesToo": "is no minimizer",
    "OutOfTheBox": "is no minimizer",
    "WideProx": "prox() gives {'first': ((64, 10), 'float64')",
    "ProxInPlace": "prox(): its function changes what it is given",
    "RandomProx": "prox(): its function gives other bits the second time",
    "ValueIsNone": "value() gives None; a number is expected",
}


@pytest.mark.parametrize("name", SHAPES | MODELS)
def test_a_wrong_model(digits: Path, tmp_path: Path, check: Check, name: str) -> None:
    task = job(digits, model={"name": name})
    text = check(task)
    assert f'[model] name = "{name}": ' in text
    if name in MODELS:
        with pytest.raises(AssertionError, match=MODELS[name].replace("()", r"\(\)")):
            check_model(task)
        return
    assert SHAPES[name] in text
    with pytest.raises(UsageError) as error:
        run(task, Solo(), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
    assert str(error.value).startswith(f'[model] name = "{name}": ') and SHAPES[name] in str(error.value)


@pytest.mark.parametrize("name", TERMS)
def test_a_wrong_term(digits: Path, check: Check, name: str) -> None:
    """All that is wrong is said at once, by its place."""
    term = {"name": f"own_functions:{name}"}
    limits = [{"name": "loss", "limit": 2.0}, {"name": "own_functions:Rate", "limit": 0.3}, term | {"limit": 1.0}]
    text = check(job(digits, SSCA, model=SOFTMAX, minimize=term, constraint=limits))
    for place in ("minimize", "constraint 3"):
        assert f'[{place}] name = "own_functions:{name}": ' in text
    assert text.count(TERMS[name]) == 2


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_wrong_regularizer(digits: Path, check: Check, name: str) -> None:
    settings = {"low": -1.0, "high": 1.0} if name == "OutOfTheBox" else {"weight": 1.0}
    own = {"name": f"own_functions:{name}", **settings}
    text = check(job(digits, model=SOFTMAX | {"bias": True}, regularizer=own))
    assert f'[regularizer] name = "own_functions:{name}": ' in text and REGULARIZERS[name] in text


@pytest.mark.parametrize("level", ["sample", "client"])
def test_a_record_ends_no_private_run(digits: Path, tmp_path: Path, level: str) -> None:
    """Where its pass raises, it counts as zero; where others do, the run ends."""
    model = {"name": "own_networks:Raising"}
    with pytest.raises(IndexError):
        run(job(digits, model=model), Solo(), tmp_path / "open")
    privacy = PRIVATE | {"level": level, "public_preparation": True, "noise": "test"}
    run(job(digits, model=model, record={"released_only": True}, privacy=privacy), Solo(), tmp_path / "run")
    assert all(np.isfinite(leaf).all() for leaf in read_model(tmp_path / "run" / "model.safetensors").values())


# right ones: the shipped examples, mpifed's own as a user's, with kinks, in float32, exploding
def own(name: str, **more: Any) -> dict[str, Any]:
    return {"model": {"name": name, **more}}


NOISY = {"privacy": PRIVATE | {"noise": "test", "public_preparation": True}}
BIASED = own("own_functions:Softmax", bias=True)
RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("digits", own("own_functions:MLP", hidden=6) | NOISY),
    ("sides", own("own_functions:MLP", hidden=6, bias=True)),
    ("classes", BIASED),
    ("digits", own("own_functions:InSingle", bias=True)),
    ("digits", own("own_functions:Deep") | NOISY),
    ("sides", own("own_functions:Deep")),
    ("regression", own("own_functions:Absolute")),
    ("regression", own("own_functions:Exponential")),
    ("regression", own("jobs.examples.own_objective:Huber", delta=0.01)),
    ("columns", own("jobs.examples.own_objective:Huber")),
    ("digits", own("own_networks:Hidden")),
    ("regression", own("own_networks:Values")),
    ("digits", own("own_networks:Dropping") | NOISY),
    *(("digits", BIASED | {"regularizer": {"name": f"own_functions:{name}"}}) for name in ("Ball", "Picture", "L1")),
    ("digits", {"algorithm": SSCA, "minimize": {"name": "own_functions:Rate", "classes": [1, 2]}}),
    (
        "halves",
        {
            "algorithm": SSCA,
            "model": {"name": "logistic", "bias": False},
            "constraint": [{"name": "jobs.examples.own_constraint:PositiveRate", "classes": [0], "limit": 0.3}],
        },
    ),
]


@pytest.mark.parametrize(("data", "changes"), RIGHT)
def test_right_classes(
    data: str, changes: dict[str, Any], tmp_path: Path, check: Check, request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2])
    vertical = {"name": "vertical-sgd", "batch_size": 5, "server_optimizer": {"learning_rate": 1e-3}}
    rows = AVG | {"client_optimizer": {"learning_rate": 1e-3}}
    algorithm = vertical if data in ("sides", "columns") else rows
    task = job(request.getfixturevalue(data), **({"algorithm": algorithm} | changes))
    assert not check(task)
    run(task, Solo(), tmp_path / "run")


def test_no_bit_of_a_run_depends_on_it(digits: Path, tmp_path: Path) -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    found = []
    for name in ("own_functions:MLP", "mlp"):
        state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        result = run(job(digits, model={"name": name, "hidden": 6}), Solo(), tmp_path / name.partition(":")[2])
        assert state == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
        found.append(model_sha256(dict(leaves(result.model))))
    assert found[0] == found[1]


# --- methods ---------------------------------------------------------------------------------------------------------


def trained(folder: Path, out: Path, name: str, settings: dict[str, Any], **tables: Any) -> dict[str, Any]:
    """What a short run comes to."""
    base = {"rounds": 2, "model": SOFTMAX | {"l2": 0.0}}
    run(checked(table(folder, AVG | settings | {"name": name}, **(base | tables))), Solo(), out)
    return summary(out)


TWICE = {"local_steps": 2}
PAPER = PRIVATE | {"noise": "paper"}
GAIN = "how far one record moves an upload is not known"
HOOK = "a hook of the method reads rows"
REFUSED: list[tuple[str, dict[str, Any], Any, str]] = [  # class, settings, [privacy], and what is said
    ("Plain", TWICE | {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.9}}, None,
     '[client_optimizer] momentum: "own_methods:Plain" has not read that; leave it out'),
    ("Answering", {}, None, '"answer", which is LocalMethod\'s for all methods; leave it out'),
    ("Counted", {}, None, '"most_steps", which is LocalSteps\'s for all methods; leave it out'),
    ("Unknown", {}, PAPER, GAIN),  # no noise on an upload of unknown gain
    ("DoubledFedAvg", {}, PAPER, GAIN),  # it has inherited a gain that is not its own
    ("Beginning", {}, PAPER, GAIN),
    ("Unchecked", {}, PAPER, GAIN),
    ("InTwoParts", {}, PRIVATE | {"level": "client"}, "noise on the upload is for uploads of one part"),
    # an epsilon is of all that hooks release
    *((name, {}, PRIVATE | {"noise": noise}, HOOK) for name in ("Pushing", "Again") for noise in ("test", "paper")),
    # both gradients of a step would be released with the same noise; and what clients hear is a hook, too
    ("Unlisted", {}, PRIVATE, "local steps that are no multiple of a minibatch's gradient"),
    ("Unlisted", {}, PAPER, "local steps that are no multiple of a minibatch's gradient"),
    ("Telling", {"rho": 2.0}, PAPER, "clients keep what its `retain` gives"),
    ("SettingUp", {}, PRIVATE, "`released` is inherited, and does not count what its `setup`"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "privacy", "said"), REFUSED)
def test_what_is_not_claimed(
    digits: Path, tmp_path: Path, name: str, settings: dict[str, Any], privacy: Any, said: str
) -> None:
    tables = {"privacy": privacy} if privacy else {}
    with pytest.raises(UsageError) as error:
        trained(digits, tmp_path / "run", f"own_methods:{name}", settings, **tables)
    assert said in str(error.value)
    in_a_round = name in ("Plain", "Pushing", "Again")  # by what is played: all others are refused before
    assert (tmp_path / "run" / "run.json").exists() == in_a_round


@pytest.mark.parametrize(
    ("name", "privacy"),
    [
        ("Unknown", {}),  # noise on gradients: the upload is processing of what is noisy already
        ("DoubledFedAvg", {}),
        *((name, {"level": "client"}) for name in ("Unknown", "Pushing", "Again")),  # it is clipped, whatever it is
    ],
)
def test_an_epsilon_of_what_a_hook_changes(digits: Path, tmp_path: Path, name: str, privacy: dict[str, Any]) -> None:
    regularizer = {"regularizer": {"name": "l1", "weight": 0.1}} if name == "DoubledFedAvg" else {}  # it says its prox
    found = trained(digits, tmp_path, f"own_methods:{name}", {}, privacy=PRIVATE | privacy, **regularizer)
    assert found["epsilon"] > 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Plain", {"client_optimizer": {"learning_rate": 0.1, "weight_decay": 0.2}}),
        ("Thoughtful", {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.9}}),
        ("DoubledFedAvg", {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.9}}),
    ],
)
def test_settings_that_it_reads(digits: Path, tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    assert trained(digits, tmp_path, f"own_methods:{name}", TWICE | settings)["rounds"] == 2


# (class, another with the same bits, settings, tables), whether the change is made before it is looked at or not
ADAM = {"server_optimizer": {"name": "adam", "tau": 0.1, "learning_rate": 0.05}}
ALIKE: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    *((name, other, {"local_steps": steps}, {}) for steps in (1, 2) for name, other in (
        ("InPlace", "own_methods:DoubledFedAvg"), ("Keeping", "fedavg"), ("SameTwice", "fedavg"),
        ("Counting", "fedavg"), ("InTwoParts", "fedavg"))),
    ("InTwoParts", "fedavg", TWICE, NOISY),
    ("InTwoParts", "fedavg", {"server_optimizer": {"momentum": 0.9}}, {}),  # which its own class reads, not the method
    ("InTwoParts", "fedavg", ADAM, {}),
    ("ByLoss", "fedavg", {}, NOISY),  # a model knows no loss that was measured without noise
]  # fmt: skip


@pytest.mark.parametrize(("name", "other", "settings", "tables"), ALIKE)
def test_the_same_bits(skewed: Path, tmp_path: Path, name: str, other: str, settings: Any, tables: Any) -> None:
    found, expected = (
        trained(skewed, tmp_path / str(number), one, settings, **tables)["model_sha256"]
        for number, one in enumerate((f"own_methods:{name}", other))
    )
    assert found == expected


@pytest.mark.parametrize("kind", ["FedAvg", "SSCA"])
def test_its_answer_is_what_is_summed(digits: Path, tmp_path: Path, kind: str) -> None:
    """However sums are computed: to rounding, and in exact sums to the bit."""
    settings, found = {} if kind == "FedAvg" else SSCA, {}
    for numbers in ("exact", "exact-blocks"):
        for name in (kind.lower(), f"own_methods:Doubled{kind}"):
            base = table(digits, (AVG if kind == "FedAvg" else {}) | settings | {"name": name}, rounds=3)
            job = checked(base | {"model": SOFTMAX, "aggregation": {"arithmetic": numbers}})
            run(job, Solo(), tmp_path / f"{numbers}-{name[-8:]}")
            found[numbers, name == kind.lower()] = summary(tmp_path / f"{numbers}-{name[-8:]}")
        assert abs(found[numbers, True]["objective"] - found[numbers, False]["objective"]) > 0.01
    # without sums over blocks there is none to round
    assert found["exact", False]["model_sha256"] == found["exact-blocks", False]["model_sha256"]


def test_what_all_clients_are_sent_cannot_be_written_to(skewed: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        trained(skewed, tmp_path / "run", "own_methods:Spoiling", {})


def test_a_void_round_gives_back_what_a_hook_has_written_to(skewed: Path, tmp_path: Path) -> None:
    """Whether the clients of a block are all in the round, or some, whose states are copies."""
    leaving = {"participation": {"dropout_rate": 0.2, "max_dropouts": 1, "clients_per_round": 6}, "rounds": 4}
    masked = {"aggregation": {"security": "masked"}}
    found = set()
    for block in (1, 4):
        data = {"data": {"path": str(skewed), "block": block}}
        found.add(trained(skewed, tmp_path / str(block), "own_methods:Accumulating", {}, **leaving, **masked, **data)[
            "model_sha256"])  # fmt: skip
    assert len(found) == 1
