"""`mpifed show JOB.toml`: who will hear what, and how many bytes, how much memory and time a run will take.

All of it follows from the job and `federation.h5`; MPI is not started, and no shard is opened. Time and memory are
those of a rehearsal: the rank with the most to do plays a round in this process, on random rows in the shapes of its
shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mpifed.comm.placement import place
from mpifed.comm.sums import make_sum
from mpifed.core.exchange import Algorithm, Exchange, Field, ToClients
from mpifed.core.record import Record, leaves, nbytes
from mpifed.run.calibration import settle
from mpifed.run.config import Job, read_table
from mpifed.run.environment import peak_rss_bytes
from mpifed.run.fit import with_noise
from mpifed.run.memory import keep_freed_memory
from mpifed.run.outlook import outlook, outlook_lines
from mpifed.run.protection import warnings_of
from mpifed.run.rehearsal import (
    NOTHING,
    Stage,
    load_libraries,
    rehearse_measuring,
    rehearse_round,
    stock_like,
    typical_round,
)
from mpifed.run.setup import measures_of, problem_of
from mpifed.run.show import human_bytes
from mpifed.run.sweep import points
from mpifed.shards import store


def forecast(job_path: Path, changes: tuple[str, ...], ranks: int) -> dict[str, Any]:
    """What a job will send, to whom, and what it will take on so many ranks; of a sweep, its first point.

    Raises
    ------
    UsageError, DataError
        as `mpifed run` would before its first round.
    """
    found = points(read_table(job_path, changes), str(job_path))
    job, process_bytes = found[0].job, peak_rss_bytes()
    data = store.open_federation(job.data.path)
    stage = Stage(job, data, _algorithm(job, data), stock_like(data))
    placement = place(data.counts, job.data.block, ranks, job.dedicated)
    host = np.repeat(placement.ranks, [len(block) for block in placement.blocks])  # [N] each client's rank
    now, busiest = typical_round(job, data, host)
    keep_freed_memory()
    load_libraries(job.privacy)
    with threadpool_limits(1):
        a_round = rehearse_round(stage, placement, now, busiest)
        most = int(np.bincount(host, data.counts).max())
        measuring, certifying = (
            rehearse_measuring(stage, most, certify) if job.record.every else NOTHING for certify in (False, True)
        )
    questions = a_round.questions | certifying.questions
    measures = measures_of(job, stage.algorithm) if job.record.every else ()
    measurements = len({*range(0, job.rounds, job.record.every), job.rounds}) if job.record.every else 0
    certificates = _certificates(job, measurements) if any(one.certificate for one in measures) else 0
    training_s = min(job.rounds * a_round.seconds, job.stop.seconds or np.inf)
    setup_bytes, round_bytes = np.array(a_round.setup_bytes), np.array(a_round.bytes)
    memory = {
        "process": process_bytes,
        "data": _data_bytes(job, data, host),
        "work": max(a_round.memory, certifying.memory),
    }
    return {
        "job": job.name,
        "points": len(found),
        "rounds": job.rounds,
        "clients": data.clients,
        "clients_per_round": int(now.present.sum()),
        "channel": job.sum.channel,
        "numbers": job.sum.numbers,
        "setup": [_exchange(job, data, one, questions) for one in stage.algorithm.setup],
        "exchanges": [_exchange(job, data, one, questions) for one in stage.algorithm.exchanges],
        "measures": [_exchange(job, data, one, questions) for measure in measures for one in measure.exchanges],
        "privacy": outlook(job, stage.algorithm),
        "warnings": [
            *getattr(stage.algorithm, "warnings", lambda: [])(),
            *warnings_of(job, stage.algorithm.problem.privacy),
        ],
        "up_bytes_per_round": int(round_bytes[0]),
        "down_bytes_per_round": int(round_bytes[1]),
        "up_bytes": int(setup_bytes[0] + job.rounds * round_bytes[0]),
        "down_bytes": int(setup_bytes[1] + job.rounds * round_bytes[1]),
        "who_learns": _who_learns(stage.algorithm, ranks, bool(measures)),
        "ranks": ranks,
        "placement": [
            {"rank": rank, "clients": int((host == rank).sum()), "rows": int(data.counts[host == rank].sum())}
            for rank in range(ranks)
        ],
        "memory_bytes": {**memory, "largest_rank": sum(memory.values())},
        "seconds": {
            "round": a_round.seconds,
            "measurement": measuring.seconds,
            "measurements": measurements,
            "certificate": max(certifying.seconds - measuring.seconds, 0.0),
            "certificates": certificates,
            "elapsed": training_s,
            "run": training_s
            + measurements * measuring.seconds
            + certificates * max(certifying.seconds - measuring.seconds, 0.0),
        },
    }


def _algorithm(job: Job, data: store.Federation) -> Algorithm:
    """The job's algorithm, with as much noise as it needs."""
    algorithm = job.make_algorithm(problem_of(job, data))
    return algorithm if job.privacy is None else with_noise(algorithm, settle(job, algorithm))


def _certificates(job: Job, measurements: int) -> int:
    """How many of the measured rounds are certified."""
    every, record = job.record.certify_every, job.record
    if job.stop.kkt_residual is not None:
        return measurements
    found = {job.rounds}
    if every:
        found |= {index for index in range(0, job.rounds, record.every) if index % every == 0}
    return len(found)


def _data_bytes(job: Job, data: store.Federation, host: NDArray[np.int64]) -> int:
    """Bytes on the rank that holds most: values in memory, labels, numbers of rows and columns; test data."""
    values = np.minimum(np.bincount(host, data.nbytes), job.data.memory_gib * 2**30)
    values += np.bincount(host, 8 * (2 * data.counts + data.widths))
    if job.record.every:
        values[0] += data.test_samples * (data.nbytes.sum() / data.counts.sum() + 16)
    return int(values.max())


def _exchange(job: Job, data: store.Federation, exchange: Exchange, questions: dict[str, Record]) -> dict[str, Any]:
    """One exchange: what is asked, what is answered, who hears."""
    question = questions[exchange.name]
    adder = make_sum(exchange, data.clients, **job.sum_settings())
    return {
        "name": exchange.name,
        "hears": _hears(exchange),
        "channel": job.sum.channel,
        "numbers": job.sum.numbers,
        "question": [
            {
                "field": name,
                "shape": list(np.shape(leaf)),
                "dtype": str(np.asarray(leaf).dtype),
                "bytes": nbytes(leaf),
                **({"of": "own columns"} if name in exchange.told_by_columns else {}),
            }
            for name, leaf in leaves(question)
        ],
        "answer": [
            {
                "field": place.name.removeprefix(exchange.name + "."),
                "shape": list(place.field.shape),
                "dtype": str(adder.message.dtype),
                "bytes": (place.stop - place.start) * adder.message.itemsize,
                **(place.form._asdict() if job.sum.numbers == "exact" else {}),
                **_of_whom(place.field),
            }
            for place in adder.places
        ],
        "question_bytes": nbytes(question),
        "answer_bytes": adder.nbytes,
    }


def _hears(exchange: Exchange) -> str:
    if not isinstance(exchange, ToClients):
        return "server"
    return "clients" if exchange.hearer is None else f"client {exchange.hearer}"


def _of_whom(field: Field) -> dict[str, str]:
    """Where every value comes from a single client, from which."""
    if field.columns is not None:
        return {"of": "own columns"}
    return {} if field.sender is None else {"of": f"client {field.sender}"}


def _who_learns(algorithm: Algorithm, ranks: int, measured: bool) -> list[str]:
    """What the plain channel shows to whom."""
    parts = any(exchange.told_by_columns for exchange in algorithm.exchanges)
    lines = ["every client present learns the question" + ", of `own columns` its own part" * parts]
    fields = [field for exchange in algorithm.exchanges for _, field in leaves(exchange.fields)]
    if any(field.single for field in fields):
        lines += ["each value marked `own columns` or with a client is one client's own, known to who hears the sum"]
    lines += ["plain hides nothing: in a deployment the server would see every client's own answer"]
    lines += ["here each rank's process sees the data and answers of the clients it hosts"]
    if ranks > 1:
        lines += ["rank 0 sees every rank's partial sum, which is an answer where one client is present"]
    if measured:
        lines += ["measuring reveals to rank 0 every rank's sum of losses, over all rows it hosts"]
    return lines


def forecast_text(found: dict[str, Any]) -> str:
    """The same for a person."""
    return "\n".join(_lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if found["points"] > 1:
        yield f"A sweep of {found['points']} points; this is the first.\n"
    present = f"{found['clients_per_round']} of {found['clients']} clients"
    yield f"{found['job']}: {present} in each of {found['rounds']} rounds"
    for title, part in (("Once, before round 0", "setup"), ("Every round", "exchanges"), ("When measured", "measures")):
        for exchange in found[part]:
            who = "the clients present hear" if exchange["hears"] == "clients" else f"{exchange['hears']} hears"
            who = f"the {who}" if who == "server hears" else who
            yield f'\n{title}: "{exchange["name"]}", {who} the sum ({exchange["channel"]}, {exchange["numbers"]})'
            for what in ("question", "answer"):
                yield from (_field_line(what, field) for field in exchange[what])
    yield f"\n{'Sent':12}{_both(found, '_per_round')} a round"
    yield f"{'':12}{_both(found, '')} in the whole run; measuring is not counted"
    yield f"{'Who learns':12}" + f"\n{'':12}".join(found["who_learns"])
    yield f"{'Placement':12}{_placement(found['placement'])}"
    memory, seconds = found["memory_bytes"], found["seconds"]
    parts = ", ".join(f"{human_bytes(memory[part])} {part}" for part in ("process", "data", "work"))
    yield f"{'Memory':12}{human_bytes(memory['largest_rank'])} on the largest rank: {parts}"
    measuring = f"; {seconds['measurements']} measurements of {_seconds(seconds['measurement'])}"
    if seconds["certificates"]:
        many = "s" * (seconds["certificates"] > 1)
        measuring += f", {seconds['certificates']} certificate{many} of {_seconds(seconds['certificate'])}"
    yield (
        f"{'Time':12}{_seconds(seconds['elapsed'])} for the rounds, {_seconds(seconds['round'])} each"
        f"{measuring if seconds['measurements'] else ''}"
    )
    yield f"{'':12}rehearsed here, on random rows: messages, files and MPI's own memory are left out"
    if found["privacy"] is not None:
        yield from outlook_lines(found["privacy"], found["rounds"])
    for warning in found["warnings"]:
        yield f"{'Warning':12}{warning}"


def _field_line(what: str, field: dict[str, Any]) -> str:
    shape = " x ".join(map(str, field["shape"])) or "1"
    name = field["field"].removeprefix("statistics.")
    line = f"  {what:10}{name:24}{shape:>14}  {field['dtype']:8}{human_bytes(field['bytes']):>10}"
    if "limbs" in field:
        wide = f", {field['limbs']} limbs" if field["limbs"] > 1 else ""
        line += f"  2^{int(np.log2(field['scale']))}, within {_bound(field['bound'])}{wide}"
    return f"{line}  ({field['of']})" if "of" in field else line


def _bound(value: float) -> str:
    """1024 -> '1024', 2.0**28 -> '2^28', 1e15 -> '1e+15'."""
    power = np.log2(value)
    return f"2^{power:.0f}" if value > 2**13 and power == round(power) else f"{value:.4g}"


def _both(found: dict[str, Any], when: str) -> str:
    return f"{human_bytes(found[f'up_bytes{when}'])} up and {human_bytes(found[f'down_bytes{when}'])} down"


def _placement(ranks: list[dict[str, int]]) -> str:
    hosting = sorted(Counter(one["clients"] for one in ranks).items(), reverse=True)
    parts = [f"{count} rank{'s' * (count > 1)} with {clients or 'none'}" for clients, count in hosting]
    return f"clients: {', '.join(parts)}; rank 0, the server, with {ranks[0]['clients'] or 'none'}"


def _seconds(seconds: float) -> str:
    """0.0021 -> '2.1 ms'."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
