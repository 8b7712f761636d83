"""What does not go together in a job, and in a job and its data: runs the rows that stand beside what they speak of.

Those of `[privacy]` stand in `mpifed.maths.privacy.settings`, of methods and their guards in these, which `check` runs;
those between tables of a job are here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from mpifed.algorithms import ALGORITHMS
from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.certificate import is_convex, strong_convexity
from mpifed.algorithms.functions import constrains, squares_alone, wrong_functions
from mpifed.algorithms.local_method import LocalMethod
from mpifed.core.record import bare_leaves
from mpifed.core.refusals import Refusal, messages
from mpifed.data.store import Federation
from mpifed.files.columns import column_of
from mpifed.job.goals import has_goals
from mpifed.job.participation import left_out
from mpifed.job.schema import JobSettings, Participation
from mpifed.job.settings import table_of
from mpifed.job.time_model import FIGURES, PRESETS, figures
from mpifed.job.trace import trace_of
from mpifed.maths.objectives import LinearScores, Objective
from mpifed.maths.privacy.settings import Privacy, conflicts
from mpifed.maths.problem import model_template
from mpifed.maths.regularizers import Regularizer
from mpifed.text import shown

# multiplications of a core in about a millisecond or two, which launching the kernels of a minibatch takes too
_PAYS = 1e7
_KIND = {
    "classification": "classes",
    "multilabel": "several labels of each row",
    "regression": "real-valued targets",
}

# --- of a job's tables -----------------------------------------------------------------------------------------------


def wrong_together(job: JobSettings) -> list[str]:
    """Errors in the combination of a job's tables, independent of the data, one message each."""
    private = () if job.privacy is None else conflicts(job.privacy)
    return messages(chain(private, _of_tables(job), _of_asynchrony(job), _of_network(job)))


def _of_tables(job: JobSettings) -> Iterator[Refusal]:
    part, privacy, released_only = job.participation, job.privacy, job.record.released_only
    yield Refusal(
        privacy is not None and privacy.by_coins and part.clients_per_round is None,
        '[privacy] sampling = "poisson" at level "client"',
        "each client takes part by a coin of its own",
        "give [participation] clients_per_round, how many do on average",
    )
    start = job.model.get("start")
    yield Refusal(
        privacy is not None and start is not None,
        f'[model] start = "{shown(str(start))}"',
        "what that model has learned of the data is counted by no epsilon",
        "leave it out with [privacy]",
    )
    yield Refusal(
        job.model.get("bias") is True and not job.method.intercepts,
        "[model] bias = true",
        f'"{job.algorithm["name"]}" has no intercepts: each of its parameters belongs to a column of the data, and is '
        "in the penalty",
        "set bias = false, and for an intercept with a penalty add a column of ones",
    )
    yield Refusal(
        job.algorithm.get("returns") == "best feasible" and not job.record.evaluate_every,
        '[algorithm] returns = "best feasible"',
        "is of the models that are evaluated, and [record] evaluate_every = 0 evaluates none",
        "raise it, or leave returns out",
    )
    yield Refusal(
        job.channel != "plain" and job.aggregation.arithmetic == "exact-blocks",
        '[aggregation] arithmetic = "exact-blocks"',
        f'security = "{job.channel}" takes each client\'s answer by itself',
        'set arithmetic = "exact", or security = "plain"',
    )
    yield Refusal(
        job.compression is not None and job.aggregation.arithmetic == "exact-blocks",
        '[aggregation] arithmetic = "exact-blocks"',
        "[compression] takes each client's upload by itself",
        'set arithmetic = "exact"',
    )
    yield Refusal(
        part.dropout_rate and not part.max_dropouts,
        f"[participation] dropout_rate = {part.dropout_rate:g}",
        "whoever leaves makes the round void",
        "give max_dropouts, how many may",
    )
    yield Refusal(
        job.stop.epsilon is not None and privacy is None,
        f"[stop] epsilon = {job.stop.epsilon or 0:g}",
        "a budget needs the table [privacy]",
        "add it, or drop this",
    )
    yield Refusal(
        job.record.evaluate_rows and has_goals(job),
        f"[record] evaluate_rows = {job.record.evaluate_rows}",
        "no sample of the rows can say whether limits and certificates of [stop] are reached",
        "leave it out, and raise evaluate_every",
    )
    yield Refusal(
        released_only and job.record.client_tests,
        "[record] client_tests and released_only",
        "a client's score is computed from its own data without noise",
        "leave one of them out",
    )
    for name in job.stop.columns:
        column, place = column_of(name), f"[stop] reached, patience: {name}"
        yield Refusal(
            not job.record.evaluate_every,
            place,
            "[record] evaluate_every = 0 measures no column of the history",
            "raise it, or leave this out",
        )
        yield Refusal(
            name in job.stop.patience and (column.better is None or column.since_start),
            place,
            "no value of it says that a model is better",
            "name a loss, an accuracy, or another measure of a model",
        )
        yield Refusal(
            privacy is not None and column.data in ("train", "own test"),
            place,
            "is computed from training data without noise, so epsilon does not cover what the end of the run would "
            "tell of them",
            "leave it out, or stop by rounds, [stop] seconds or [stop] epsilon",
        )


def _of_asynchrony(job: JobSettings) -> Iterator[Refusal]:
    if job.asynchrony is None:
        return
    network, key = job.simulated_network, "[asynchrony]"
    others = {name for name, value in table_of(job.participation).items() if value != getattr(Participation(), name)}
    yield Refusal(
        network is None or network.delay_s is None,
        key,
        "says nothing of when answers come",
        "give [simulated_network] delay_s",
    )
    yield Refusal(
        job.privacy,
        key,
        "no sensitivity of answers to models of several rounds is proven",
        "leave it out with [privacy]",
    )
    yield Refusal(
        others,
        f"[participation] {', '.join(sorted(others))}",
        "with [asynchrony] its buffer says how many answers make a round, and delays say whose",
    )
    yield Refusal(
        network is not None and (network.deadline_s or network.over_selection > 1),
        "[simulated_network] deadline_s, over_selection",
        "with [asynchrony] the first answers fill the buffer, whenever they come",
    )


def _of_network(job: JobSettings) -> Iterator[Refusal]:
    """The keys of `[simulated_network]` that are missing, or do not go together, or with other tables."""
    network, part, privacy = job.simulated_network, job.participation, job.privacy
    if network is None:
        return
    table, known, delayed = "[simulated_network]", figures(network), network.delay_s is not None
    alone = not known and (network.unsteady or network.speeds or network.mean_absence)  # without a clock
    missing = [] if delayed or alone else [key for key in FIGURES if key not in known]
    remedy = f"give a number, or name = one of {', '.join(PRESETS)}"
    yield Refusal(missing, f"{table} {', '.join(missing)}", "missing", f"{remedy}; or delay_s alone")
    yield Refusal(
        delayed and (known or network.speeds),
        f"{table} delay_s and {', '.join(known) or 'speeds'}",
        "a delay has the whole time from a question to its answer",
        "leave out delay_s, or the others",
    )
    drawn = network.delay_spread or network.client_spread or network.loss or network.over_selection > 1
    yield Refusal(
        drawn and not delayed,
        f"{table} delay_spread, client_spread, loss and over_selection",
        "of delays, of which there are none",
        "give delay_s",
    )
    yield Refusal(
        not network.deadline_s if network.speeds else network.deadline_s and not delayed,
        f"{table} deadline_s, speeds",
        "a deadline is of answers that take delay_s, or of local steps at these speeds, which need one",
        "give delay_s or both",
    )
    yield Refusal(
        network.loss and not network.deadline_s and job.asynchrony is None,
        f"{table} loss = {network.loss:g}",
        "a round would wait for ever",
        "give deadline_s, how long it waits",
    )
    yield Refusal(
        network.over_selection > 1 and part.clients_per_round is None,
        f"{table} over_selection = {network.over_selection:g}",
        "all clients are asked already",
        "give [participation] clients_per_round, how many answers count",
    )
    yield Refusal(
        network.trace is not None and network.availability < 1,
        f"{table} trace and availability",
        "each says who is there",
        "give one of the two",
    )
    least = 1 / network.availability
    yield Refusal(
        network.mean_absence is not None and (network.mean_absence < least or network.availability == 1),
        f"{table} mean_absence = {network.mean_absence}",
        f"where availability = {network.availability:g}, who is away is so for {least:.3g} rounds at least, on average",
        "raise it" if network.availability < 1 else "give availability below 1",
    )
    yield Refusal(
        job.unsteady and part.dropout_rate,
        f"[participation] dropout_rate = {part.dropout_rate:g}",
        "[simulated_network] says whose answers do not come",
        "leave out one of the two",
    )
    yield Refusal(
        privacy is not None and job.unsteady,
        f"{table} availability, trace, loss, deadline_s, over_selection",
        "with [privacy] no accounting is proven of clients who are away, or whose answers do not count",
        "leave it out; [participation] dropout_rate is accounted for",
    )
    yield Refusal(
        privacy is not None and delayed and privacy.by_coins,
        f"{table} delay_s",
        "the time of a round would tell who takes part, which is secret",
        'leave it out, or set [privacy] sampling = "fixed"',
    )


# --- of a job with its data ------------------------------------------------------------------------------------------


def here_alone(data: Federation) -> bool:
    """Whether data are for the processor alone."""
    return data.sparse or data.targets > 1


def device_pays(data: Federation, algorithm: Algorithm) -> tuple[bool, str]:
    """Whether `[compute] device = "auto"` takes a device where there is one, and why; alike on every rank."""
    rows, size = min(getattr(algorithm, "batch_size", 0), algorithm.problem.most), algorithm.problem.layout.size
    pays = rows * size >= _PAYS and not here_alone(data)
    takes = "a CUDA device where there is one" if pays else "cpu"
    return pays, (
        f"{takes}: {rows} rows of a minibatch times {size} parameters are {rows * size:.1e}, and a device is taken "
        f"from {_PAYS:.0e} on, for dense rows of one target"
    )


def wrong_data(job: JobSettings, objective: Objective, regularizer: Regularizer | None, data: Federation) -> list[str]:
    """Errors in the combination of a job with its data, before there is an algorithm, one message each."""
    loss = f', loss = "{job.model["loss"]}"' if "loss" in job.model else ""
    task = Refusal(
        objective.task != data.task,
        f'[model] name = "{job.model["name"]}"{loss}',
        f"is for {_KIND[objective.task]}, and {job.data.path} holds {_KIND[data.task]}",
        f"choose another model or loss, or make the data with --task {objective.task}",
    )
    prepared = Refusal(
        job.privacy is not None and not job.privacy.public_preparation and data.fitted,
        "[privacy]",
        f"{job.data.path} was prepared with what was computed from its rows, which no epsilon covers: "
        f"{', '.join(data.fitted)}",
        "state it (--given public.toml; --scale unit-rows, or none; --test), or set public_preparation = true: all may "
        "know it",
    )
    others = chain(_of_model(job, objective, regularizer, data), _of_clients(job, data))
    return messages([task]) or messages([prepared, *others])


def _of_clients(job: JobSettings, data: Federation) -> Iterator[Refusal]:
    """What `[simulated_network]` says of more clients than there are; DataError where the trace cannot be read."""
    if (network := job.simulated_network) is None:
        return
    clients = data.clients
    yield Refusal(
        len(network.speeds) > clients,
        "[simulated_network] speeds",
        f"{len(network.speeds)} numbers for {clients} clients",
        "give one for each, or fewer, of which each client has one",
    )
    last = -1 if network.trace is None else int(trace_of(network.trace).client.max())
    yield Refusal(
        last >= clients,
        f'[simulated_network] trace = "{network.trace}"',
        f"has a client {last}, and {job.data.path} has {clients}, from 0 on",
        "give a trace of these clients",
    )


def _of_model(
    job: JobSettings, objective: Objective, regularizer: Regularizer | None, data: Federation
) -> Iterator[Refusal]:
    """What a device takes, what needs scores that are linear in the features, and clients' test rows."""
    place, path, whole = f'[model] name = "{job.model["name"]}"', job.data.path, not isinstance(objective, LinearScores)
    linear = "take mlp, softmax or another whose scores are linear in the features"
    what = "sparse rows" if data.sparse else f"{data.targets} targets of each row"
    yield Refusal(
        job.compute.device == "cuda" and here_alone(data),
        '[compute] device = "cuda"',
        f"{path} has {what}, which need the cpu",
        'set "cpu"',
    )
    yield Refusal(
        not whole and data.targets > 1 and data.task == "regression",
        place,
        f"has one output, and {path} has {data.targets} targets",
        'take name = "torch"',
    )
    yield Refusal(
        whole and data.split != "rows",
        place,
        f"needs all features of a sample, and {path} is split by {data.split}",
        f"{linear}, or make the data with --split rows",
    )
    yield Refusal(whole and data.sparse, place, f"needs dense data, and {path} is sparse", linear)
    yield Refusal(
        whole and regularizer is not None and regularizer.of_features,
        "[regularizer] name",
        f"groups the weights of features, which {place} has not",
        f'take "l1", or {linear}',
    )
    yield Refusal(
        job.record.client_tests and not data.test_counts.any(),
        "[record] client_tests",
        f"{path} has no test rows of the clients' own",
        "make the data with `mpifed data ... --client-test-fraction 0.2`, or leave it out",
    )


# --- of a job with its algorithm and data ----------------------------------------------------------------------------


def wrong_fit(job: JobSettings, algorithm: Algorithm) -> list[str]:
    """Errors in the combination of a job with its algorithm and data, one message each."""
    problem = algorithm.problem
    privacy = problem.privacy
    if privacy is not None and not algorithm.accounts():
        others, what = (
            ", ".join(known for known, kind in ALGORITHMS.items() if kind.accounts()),
            algorithm.why_no_privacy,
        )
        if what == Algorithm.why_no_privacy and type(algorithm).released is not Algorithm.released:
            what = "`released` is inherited, and does not count what its `setup`, `prepare`, `answer` or exchanges send"
        unaccounted = Refusal(
            True,
            f'[algorithm] name = "{job.algorithm["name"]}"',
            what,
            f"a class of your own has `released` beside its `answer` and `absorb`; [privacy] goes with {others}",
        )
        return messages([unaccounted])
    if privacy is not None and privacy.noise_multiplier is None:
        algorithm = replace(algorithm, problem=problem.with_noise(1.0))  # the checks do not depend on its value
    wrong = [*wrong_functions(problem), *algorithm.check()]
    if privacy is not None and not wrong:
        wrong += messages(_of_releases(job, algorithm, privacy))
    wrong += messages(_of_data(job, algorithm))
    if not (algorithm.regularized and algorithm.holds("regularized")):
        wrong += squares_alone(problem)
    return wrong or messages(_of_gaps(job, algorithm))


def _of_releases(job: JobSettings, algorithm: Algorithm, privacy: Privacy) -> Iterator[Refusal]:
    """Where epsilon assumes a secret that the job does not keep: who takes part, or how many."""
    release, part, name = algorithm.released(), job.participation, f'[algorithm] name = "{job.algorithm["name"]}"'
    secret, shared = release.by_chance, job.aggregation
    yield Refusal(
        privacy.level == "client" and not privacy.by_coins and (secret or (release.rate < 1).any()),
        name,
        '`released` has a rate below 1, or by_chance, at level "client": a client who is left out of a fixed number of '
        "participants is replaced by another, which no proof covers",
        'set [privacy] sampling = "poisson", or let rates be 1',
    )
    yield Refusal(
        secret and any(exchange.keeps or exchange.who for exchange in algorithm.exchanges),
        name,
        "absent clients go on counting, which tells who takes part",
        "`released` must not say by_chance, and so has no amplification",
    )
    yield Refusal(
        secret and (part.dropout_rate or part.max_dropouts),
        f"[participation] dropout_rate = {part.dropout_rate:g}, max_dropouts = {part.max_dropouts}",
        'with [privacy] sampling = "poisson" of clients a round would be void depending on how many take part, which '
        "is secret",
        'leave both out, or set sampling = "fixed"',
    )
    hidden = {exchange.name for exchange in algorithm.exchanges if not exchange.clear} - set(shared.allow)
    yield Refusal(
        secret and job.channel != "plain" and job.min_clients > 1 and hidden,
        f"[aggregation] min_clients = {job.min_clients}",
        'with [privacy] sampling = "poisson" of clients the run would end in a round of fewer, and tell their number, '
        "which is secret",
        'set min_clients = 1, or security = "plain": the server is trusted',
    )


def _of_data(job: JobSettings, algorithm: Algorithm) -> Iterator[Refusal]:
    """What is minimized with this method, and how many clients take part, records count and sums need."""
    problem, part, name, least = (
        algorithm.problem,
        job.participation,
        job.algorithm["name"],
        job.min_clients,
    )
    clients, privacy, most = problem.clients, problem.privacy, part.max_dropouts
    present, network = job.asked or clients, job.simulated_network
    lost = network is not None and network.loses and job.asynchrony is None
    absent = f"[participation] dropout_rate = {part.dropout_rate:g}"
    if lost:
        absent = "[simulated_network] loss, deadline_s or over_selection"
    some, leaving = f"[participation] clients_per_round = {job.per_round}", f"[participation] max_dropouts = {most}"
    slow = f"[participation] stragglers = {part.stragglers or 0:g}"
    everybody = f'"{name}" needs all {clients} clients in every round, since {algorithm.why_everybody}'
    if privacy is not None:
        count, what = (clients, "clients") if privacy.level == "client" else (problem.samples, "samples")
        yield Refusal(
            privacy.delta >= 1 / count,
            f"[privacy] delta = {privacy.delta:g}",
            f'must lie below 1/{count} = {1 / count:.2g}, since at level "{privacy.level}" there are {count} {what}, '
            f"and a delta of 1/{count} would allow to publish one of them whole",
            f"{0.1 / count:.0e} is usual",
        )
    yield Refusal(
        constrains(problem) and not algorithm.constrained,
        f'[algorithm] name = "{name}"',
        "takes no [[constraint]] and no [minimize] but the mean loss",
        "take ssca, or leave them out, as by --set 'constraint=[]' --set 'minimize={name=\"loss\"}'",
    )
    if asynchrony := job.asynchrony:
        some = f"[asynchrony] buffer = {present}"
        at_work = f"[asynchrony] concurrency = {asynchrony.concurrency}"
        yield Refusal(asynchrony.concurrency > clients, at_work, f"{job.data.path} has {clients} clients", "lower it")
        yield Refusal(
            not isinstance(algorithm, LocalMethod),
            "[asynchrony]",
            f'"{name}" takes no local steps on rows',
            "leave it out",
        )
    over = "" if present == (job.per_round or clients) else ", or over_selection"
    yield Refusal(present > clients, some, f"{job.data.path} has {clients} clients", f"lower it{over}")
    timed = problem.steps_in_time is not None
    for fewer, key in (part.stragglers, slow), (timed, "[simulated_network] speeds"):
        yield Refusal(
            fewer and not isinstance(algorithm, LocalMethod),
            key,
            f'"{name}" takes no local steps on rows, of which there could be fewer',
        )
        yield Refusal(
            fewer and privacy is not None,
            key,
            "with [privacy] all clients take the local steps, and all take part, that are accounted for",
        )
    yield Refusal(
        problem.compression is not None and not isinstance(algorithm, LocalMethod),
        "[compression]",
        f'"{name}" has no uploads of local steps on rows, which could be compressed',
    )
    late = left_out(part, present)
    yield Refusal(late and algorithm.needs_everybody, slow, everybody, "set drop_stragglers = false")
    yield Refusal(late >= present, slow, "all clients of a round would be dropped", "lower it")
    present -= late
    yield Refusal(present + late < clients and algorithm.needs_everybody, some, everybody)
    yield Refusal((part.dropout_rate or lost) and algorithm.needs_everybody, absent, everybody)
    away = network is not None and network.unsteady
    cohorts = algorithm.refuses.get("cohorts", "") if isinstance(algorithm, LocalMethod) else ""
    for applies, what in (algorithm.needs_everybody, everybody), (cohorts, cohorts):
        yield Refusal(away and applies, "[simulated_network] availability or trace", what)
    if problem.compression is not None and isinstance(algorithm, LocalMethod):
        yield Refusal(
            (part.dropout_rate or present < clients or job.unsteady)
            and problem.compression.counts_absent
            and algorithm.guard.work.remembers,
            f'[compression] memory = "{problem.compression.memory}"',
            f'"{name}" needs the mean upload of those present, and where clients are absent that of all is known',
            'take memory = "error-feedback" or "none", or let all clients take part',
        )
    yield Refusal(
        (part.dropout_rate or lost) and any(exchange.keeps for exchange in algorithm.exchanges),
        absent,
        f'"{name}" goes on counting the last answers of absent clients, and knows none who leave within a round',
    )
    yield Refusal(
        (part.dropout_rate or lost) and any(not bare_leaves(exchange.fields) for exchange in algorithm.exchanges),
        absent,
        f'clients of "{name}" must hear what became of their uploads, and those who leave within a round would not',
    )
    least_lost = max(present - (job.per_round or clients), 1)
    yield Refusal(
        lost and job.channel != "plain" and most < least_lost,
        leaving,
        f"answers that do not count are dropouts, of which there will be {least_lost} or more",
        "raise it",
    )
    there = f"there are {present} clients in a round"
    few = job.channel != "plain" and present - most < least
    yield Refusal(present and most >= present, leaving, there, "lower it")
    yield Refusal(
        few and most < present,
        f"[aggregation] min_clients = {least}",
        f"{there}{f' of whom {most} may leave' if most else ''}, and the sum of fewer is not opened",
        "let more take part",
    )
    # before the last exchange all may leave
    several = part.dropout_rate and sum(not exchange.clear for exchange in algorithm.exchanges) > 1
    needed = (3 if several else 2) * most + 2
    yield Refusal(
        not few and job.channel == "masked" and most and present < needed,
        leaving,
        f"{there}, and masked sums need {needed}, so that of those who hold shares of a client's secrets a "
        "majority stays",
        "lower it, or let more take part",
    )


def _of_gaps(job: JobSettings, algorithm: Algorithm) -> Iterator[Refusal]:
    """Bounds in [stop] that this job can never reach."""
    problem, name = algorithm.problem, job.algorithm["name"]
    measured = any("duality_gap" in measure.certificate for measure in algorithm.measures)
    for gap in {"duality_gap", "lower_bound"}.intersection(() if algorithm.certifies_gap else job.stop.columns):
        place = f"[stop] reached, patience: {gap}"
        yield Refusal(not measured, place, f'"{name}" has none that could end a run: {algorithm.why_no_gap}')
        yield Refusal(
            measured and not (is_convex(problem) and strong_convexity(problem, model_template(problem)).any()),
            place,
            "a lower bound needs an objective and constraints that are convex, one of them strongly, as with [model] "
            "l2 > 0 of all parameters (bias = false, where l2 leaves the intercepts out) or the norm, no regularizer, "
            "and all rows measured",
        )
