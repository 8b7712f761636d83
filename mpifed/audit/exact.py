"""What is sealed, number by number: nothing here is a sample, and next to nothing is left to chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpifed.audit import escrows, graphs, kept, masks, secrets
from mpifed.audit.beside import Beside, copies
from mpifed.audit.stage import Stage
from mpifed.core.round import SETUP
from mpifed.run.transcript import Message, client_of

NO_MASK, REPEATED, LEFT, SHARED, FEW, UNEVEN, ESCROW, ALIKE, SENT, SERVER = (
    "no-mask", "repeated-mask", "mask-left", "shared-stream", "few-streams", "uneven-mask", "opened-more",
    "same-randomness", "key-sent", "key-with-server",
)  # fmt: skip
COPY, UNKNOWN = "plain-copy", "unknown-message"
NAMES = {
    NO_MASK: "numbers were sent as they are in a channel that should mask them",
    REPEATED: "a mask was used twice, moved or not, or with the other sign",
    LEFT: "masks do not cancel in a sum for the server, which is not what the clients' answers add up to",
    SHARED: "a key stream masks messages of others than the two clients whose it is, or more than one message",
    FEW: "clients mask with fewer others than they should, or in groups, or without a mask of their own",
    UNEVEN: "masks do not hide all bits of the numbers",
    ESCROW: "shares of clients' secrets open more than the sum without those who left",
    ALIKE: "two ciphertexts were made with the same randomness, or much alike",
    SENT: "a message has a secret key in it",
    SERVER: "the server has a secret key of the clients",
    COPY: "numbers of a client's answer travel in the clear beside what is sealed",
    UNKNOWN: "a message is of a kind or size that the channel does not send",
}
_NOTHING = {
    NO_MASK: "no zero", REPEATED: "no repeat", LEFT: "all cancel", SHARED: "no shared stream",
    FEW: "no stream missing", UNEVEN: "all bits even", ESCROW: "no shares of two secrets", ALIKE: "no two alike",
    SENT: "no key in a message as bytes, hex or base64", SERVER: "no key with the server",
    COPY: "no copy in the clear", UNKNOWN: "no unknown message",
}  # fmt: skip
_UNKNOWN = {NO_MASK: "zeros: not looked at", LEFT: "sums: not looked at", UNEVEN: "bits: only those of streams"}
_SHOWN = 3


class Exact(NamedTuple):
    """What was looked at, and what was found."""

    what: str  # "masks", "ciphertexts"; "" where nothing is sealed
    clients: int  # whose uploads were looked at
    of_clients: int  # who sent any
    rounds: int
    beside: int  # uploads beside the rounds
    words: int  # of ciphertexts, their number
    of_words: int
    streams: int  # of the auditor's own play
    of_streams: int
    false_alarm: float  # chance, at most
    found: dict[str, list[str]]  # by finding: looked for, and what there was
    of_rounds: int = 0  # that the auditor has played itself

    @property
    def text(self) -> str:
        """What was covered, and the verdict."""
        if not self.what:
            return "seals nothing"
        more = f"of {self.of_rounds} " if self.rounds < self.of_rounds else ""
        unit = "words" if self.what == "masks" else "ciphertexts"
        covered = f"{self.clients:,} of {self.of_clients:,} clients, {self.rounds} {more}rounds"
        covered += f", {self.beside:,} uploads beside them" if self.beside else ""
        covered += f", {self.words:,} of {self.of_words:,} {unit}"
        if self.of_streams:
            covered += f", {self.streams:,} of {self.of_streams:,} streams of the auditor's own play"
        told = [NAMES[name] if some else self._nothing(name) for name, some in self.found.items()]
        return f"{self.what}: {covered}: {', '.join(filter(None, told))}"

    def _nothing(self, name: str) -> str:
        """What is said of a finding that there is not: nothing was found, or nothing was looked at."""
        if name in (SHARED, FEW) and not self.streams:
            return "streams: none seen" if name == SHARED else ""
        if self.what == "masks" and not self.words:  # under secret noise masks are not known
            return {**_NOTHING, **_UNKNOWN}[name]
        return _NOTHING[name]

    @property
    def leaks(self) -> dict[str, list[str]]:
        """By finding, the first few places."""
        more = {name: len(some) - _SHOWN for name, some in self.found.items()}
        return {
            name: [*some[:_SHOWN], *[f"and {more[name]} more"] * (more[name] > 0)]
            for name, some in self.found.items() if some
        }  # fmt: skip


def exact(stage: Stage, rest: Beside, plain: Stage, own: bool) -> Exact:
    """All exact checks of what a channel has sealed.

    Parameters
    ----------
    rest : the messages, told apart by `mpifed.audit.beside.beside`
    plain : the same rounds in the plain channel
    own : whether the messages are of `stage` itself
    """
    channel = stage.transcript.channel
    if channel == "plain":
        return Exact("", 0, 0, 0, 0, 0, 0, 0, 0, 0.0, {})
    keys = {SENT: secrets.sent(stage), SERVER: secrets.with_server(stage)}
    keys |= {COPY: copies(rest.suspect, plain), UNKNOWN: rest.strange}
    found = (_of_masks if channel == "masked" else _of_ciphertexts)(stage, rest.sound, plain, own, keys)
    every = {client_of(one) for one in secrets.encrypted(stage, stage.transcript.messages)}  # who sends, as played here
    return found._replace(of_clients=max(found.of_clients, len(every)), of_rounds=len(stage.scenes))


def _of_masks(stage: Stage, messages: Sequence[Message], plain: Stage, own: bool, keys: dict[str, list[str]]) -> Exact:
    keys[SENT] = list(dict.fromkeys([*keys[SENT], *escrows.sent(stage)]))
    known, sealed, totals, left = masks.masks_of(stage, messages, plain, own)
    sums, lengths = kept.masks_of_kept(stage, plain) if own else ([], [])
    known += sums
    every = [*known, *sealed]
    words, of_words = (sum(len(one.words) for one in some) for some in (known, every))
    tests = 128 * (len({(one.exchange, one.client) for one in known + totals}) + stage.algorithm.problem.clients)
    tested = words + sum(len(one.words) for one in totals)
    times = len({(one.exchange, one.turn) for one in known})  # that a place was filled, at most
    return Exact(
        "masks", len({one.client for one in known}), len({one.client for one in every}),
        len({one.round for one in known} - {SETUP}), sum(one.round == SETUP for one in known), words, of_words,
        len(stage.streams.uses) if stage.streams else 0, stage.streams.made if stage.streams else 0,
        (tested + words * times) / 2.0**64 + tested**2 / 2.0**128 + tests * 2.5e-14 + masks.LEVEL * bool(sealed),
        {
            NO_MASK: [*masks.zeros(known), *masks.zeros(totals), *lengths],
            REPEATED: [
                *masks.repeated(known), *masks.repeated(totals), *masks.same_word(known), *masks.alike(sealed),
            ],
            LEFT: left,
            SHARED: stage.streams.shared() if stage.streams else [],
            FEW: graphs.missing(stage.streams, stage.job) if stage.streams else [],
            UNEVEN: [
                *masks.uneven(known), *masks.uneven(totals), *(stage.streams.uneven() if stage.streams else []),
            ],
            **({ESCROW: escrows.opened(stage)} if stage.job.participation.max_dropouts else {}), **keys,
        },
    )  # fmt: skip


def _of_ciphertexts(
    stage: Stage, messages: Sequence[Message], plain: Stage, own: bool, keys: dict[str, list[str]]
) -> Exact:
    uploads = secrets.encrypted(stage, messages)
    clients = len({client_of(one) for one in uploads})
    count, alike = secrets.made_alike(stage, uploads, messages)
    rounds, beside = len({one.round for one in uploads} - {SETUP}), sum(one.round == SETUP for one in uploads)
    return Exact(
        "ciphertexts", clients, clients, rounds, beside, count, count, 0, 0, count**2 / 2.0**71,
        {ALIKE: alike, **keys},
    )  # fmt: skip
