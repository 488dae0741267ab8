"""How a member's rows travel in an attempt: clear, masked and sealed, or replayed.

    Clear    the hub reads what it adds up and relays: `sites.masks = false`
    Masked   the hub sees sums alone, and mail that it cannot read
    Replay   nothing is sent: the answers come from the log of the hub

All three answer in the same way, so the code of a method does not know which one it is.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ...checks import InputError, TrainingError
from .away import AwayKey, open_for_absent, seal_for_absent
from .keys import Certificate, Key, sign, verify
from .mail import OVERHEAD, open_mail, seal
from .masks import (
    HASH,
    AttemptKeys,
    Exponents,
    Grid,
    MessageContext,
    PublicKeys,
    Row,
    TooLarge,
    arrival_list,
    exponents_after,
    from_grid,
    from_narrow,
    grid_for,
    mask_row,
    refuse_list,
    row_digest,
    to_grid,
    to_narrow,
)
from .wire import Parcel, WireError, arrays_of, bytes_of, describe_arrays


class LiveAttempt(NamedTuple):
    """An attempt at a step."""

    step: int
    number: int
    present: tuple[int, ...]  # who counts as present
    asked: tuple[int, ...]  # who answers
    what: str = ""


@runtime_checkable
class Calls(Protocol):
    """Calls of verbs, which the hub answers when all members have made them."""

    def call(self, parcel: Parcel) -> Parcel:
        """The answer of the hub."""


@runtime_checkable
class Verbs(Protocol):
    """What a member can ask of the others."""

    def sum(self, row: np.ndarray) -> np.ndarray:
        """The sum of all members' rows."""

    def mail(self, parts: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """What others sent to this member, which sends these parts to others."""

    def call(self, parcel: Parcel) -> Parcel:
        """The answer to another call."""


def refuse_other_kind(kind: str, found: Parcel) -> Parcel:
    """The answer; refuses an answer to another kind of call."""
    if found.header.get("kind") != kind:
        raise WireError(
            f"the hub answers a call of the kind {kind!r} with "
            f"{found.header.get('kind')!r}."
        )
    return found


def one_array(found: Parcel) -> np.ndarray:
    """The only array of a message."""
    arrays = arrays_of(found.header.get("arrays"), found.payload)
    if len(arrays) != 1:
        raise WireError(f"a message needs one array, and has {len(arrays)}.")
    return arrays[0]


def _mail_in(found: Parcel) -> dict[int, np.ndarray]:
    arrays = arrays_of(found.header.get("arrays"), found.payload)
    senders = found.header.get("from")
    if not isinstance(senders, list) or len(senders) != len(arrays):
        raise WireError("mail does not name its senders.")
    return dict(zip(senders, arrays, strict=True))


class ClearVerbs:
    """Rows in the clear."""

    def __init__(self, calls: Calls, memory: SumChain) -> None:
        self.call, self._memory = calls.call, memory

    def sum(self, row: np.ndarray) -> np.ndarray:
        """The sum, which the hub makes from rows that it reads."""
        header = {"kind": "sum", "arrays": describe_arrays([row])}
        found = self.call(Parcel(header, bytes_of([row])))
        total = one_array(refuse_other_kind("sum", found))
        self._memory.note(total)
        return total

    def mail(self, parts: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Mail that the hub can read."""
        to, arrays = list(parts), list(parts.values())
        header = {"kind": "mail", "to": to, "arrays": describe_arrays(arrays)}
        return _mail_in(
            refuse_other_kind("mail", self.call(Parcel(header, bytes_of(arrays))))
        )


class MemberTrust(NamedTuple):
    """What a member needs to hide its rows and to check the others."""

    study: bytes
    roster: bytes
    rank: int
    key: Key  # of the roster
    certificates: Sequence[Certificate]  # of all members
    scale: float
    largest: float
    least: int
    away: AwayKey
    away_keys: dict[int, bytes]  # public, of all members; known after the set-up
    bits: int = 32  # of the masked numbers of averages in single precision

    @property
    def grid(self) -> Grid:
        """The grid of sums, other than those in 32 bits."""
        return grid_for(self.scale, self.largest, len(self.certificates))

    def context(self, started: LiveAttempt, number: int, last: bytes) -> MessageContext:
        """What a row of this attempt belongs to."""
        return MessageContext(
            self.study,
            self.roster,
            run=0,
            entry=started.what,
            seed=0,
            round=started.step,
            attempt=started.number,
            number=number,
            present=started.asked,
            last=last,
        )


class SumChain:
    """What all members know of the sums until now.

    `last` is a hash of all of them; empty at first. Masks vanish only if members agree
    on it. `scales` has the length and the exponents of averages by their place in a
    round. Members that have been restarted lack them: then the next sum has 64 bits.
    """

    def __init__(self) -> None:
        self.last = bytes(32)
        self.place = 0  # of the call that is going on
        self.scales: dict[int, tuple[int, Exponents]] = {}

    def note(self, total: np.ndarray, exponents: Exponents | None = None) -> None:
        """Goes on after a sum."""
        told = self.last + bytes_of([total]) + _scales_text(exponents)
        self.last = hashlib.sha256(told).digest()

    def note_scale(self, total: np.ndarray) -> None:
        """Keeps the scale for the next average at this place."""
        found = exponents_after(total)
        self.scales.pop(self.place, None)
        if found is not None:
            self.scales[self.place] = total.size, found

    def scale(self, places: set[tuple[int, ...]], size: int) -> Exponents | None:
        """The scale on which all agree for an average of this length."""
        length, exponents = self.scales.get(self.place, (0, None))
        agreed = exponents is not None and (self.place, length, *exponents) in places
        return exponents if agreed and length == size else None

    def told_scales(self) -> bytes:
        """All scales, for the other members."""
        return json.dumps([[p, n, *e] for p, (n, e) in self.scales.items()]).encode()


def _scales_text(exponents: Exponents | None) -> bytes:
    return b"" if exponents is None else json.dumps(exponents).encode()


def _scales_in(told: bytes) -> set[tuple[int, ...]]:
    """The scales that a member has told; none if they cannot be read."""
    try:
        return {tuple(map(int, one)) for one in json.loads(told)}
    except (ValueError, TypeError):
        return set()


def opened_sum(
    found: Parcel, like: np.ndarray, trust: MemberTrust, memory: SumChain
) -> np.ndarray:
    """The sum in an answer to an opening, which becomes part of what all know.

    Args:
        found: the answer.
        like: a row of the same shape and type.
        trust: of the member.
        memory: of the member.
    """
    total = one_array(refuse_other_kind("open", found))
    exponents = _exponents_in(found)
    grid = trust.grid
    if total.dtype != (grid.dtype if exponents is None else np.uint32):
        raise WireError("an opened sum has another type than its rows.")
    memory.note(total, exponents)
    if exponents is None:
        real = from_grid(total, grid).reshape(like.shape)
    else:
        real = from_narrow(total, exponents, like.shape)
    if like.dtype == np.float32:
        memory.note_scale(real)
    if like.dtype.kind in "iu":
        real = np.rint(real)
    return real.astype(like.dtype)


def _exponents_in(found: Parcel) -> Exponents | None:
    told = found.header.get("exponents")
    if told is None:
        return None
    sound = isinstance(told, list) and len(told) == 2
    if not sound or not all(type(e) is int and abs(e) < 400 for e in told):
        raise WireError("an opened sum must come with two exponents.")
    return Exponents(*told)


class MaskedVerbs:
    """Rows with masks, and sealed mail; see `masks` and `mail`.

    When all rows of a sum have arrived, every member signs the list of them, and sends
    the opening of its self-mask to every other member, sealed. A member that has seen
    all signatures sends all openings to the hub. So from then on, the sum can be opened
    even if all members but one are lost, and nobody may ask for another sum instead.
    """

    def __init__(
        self,
        calls: Calls,
        started: LiveAttempt,
        trust: MemberTrust,
        memory: SumChain,
        note_list: Callable[[], None],
    ) -> None:
        """Hides the rows of an attempt.

        Args:
            calls: to the hub.
            started: the attempt.
            trust: of the member.
            memory: of the member.
            note_list: called before this member signs that all rows have arrived.
        """
        self.call, self._note_list = calls.call, note_list
        self._started, self._trust, self._memory = started, trust, memory
        self._keys = AttemptKeys.fresh()
        self._others: dict[int, PublicKeys] = {}
        self._agreed: set[tuple[int, ...]] = set()  # scales that all have told
        self._number = 0

    def sum(self, row: np.ndarray) -> np.ndarray:
        """The sum; the hub sees nothing else of the rows.

        Averages in single precision have 32 bits if all members know a scale. If the
        row of a member does not fit, this member says so, and all send their rows
        again, with 64 bits and other masks. The masks of the first rows stay closed.
        """
        self._exchange_keys()
        exponents = None
        if self._trust.bits == 32 and row.dtype == np.float32:
            exponents = self._memory.scale(self._agreed, row.size)
        if exponents is not None:
            try:
                whole = to_narrow(row, exponents, len(self._started.asked))
            except TooLarge:
                whole = None
            found = self._sum(whole, row, exponents)
            if found is not None:
                return found
        found = self._sum(to_grid(row, self._trust.grid), row, None)
        if found is None:
            raise WireError("the hub says that a row of 64 bits does not fit.")
        return found

    def _sum(
        self, whole: Row | None, row: np.ndarray, exponents: Exponents | None
    ) -> np.ndarray | None:
        """The sum of whole rows; None if a row does not fit into 32 bits.

        Args:
            whole: of this member; None: it does not fit.
            row: of this member.
            exponents: the scale of rows with 32 bits.
        """
        trust, context = self._trust, self._next_context()
        hidden = np.zeros(row.size, np.uint32)
        if whole is not None:
            ends = (self._others, trust.rank, context)
            hidden = mask_row(whole, self._keys, *ends, least=trust.least)
        payload = bytes_of([hidden])
        digest = row_digest(context, trust.rank, payload)
        header: dict[str, Any] = {"kind": "rows", "arrays": describe_arrays([hidden])}
        header |= {"digest": digest.hex(), "exponents": exponents}
        header |= {"fits": whole is not None}
        found = refuse_other_kind("rows", self.call(Parcel(header, payload)))
        if whole is None or found.header.get("fits") is False:
            return None
        told = arrival_list(context, self._digests(found))
        refuse_list(told, context, trust.rank, digest)
        opening = self._all_openings(context, told)
        found = refuse_other_kind("open", self.call(Parcel({"kind": "open"}, opening)))
        if _exponents_in(found) != exponents:
            raise WireError("the hub tells another scale of a sum than its members'.")
        return opened_sum(found, row, trust, self._memory)

    def _digests(self, found: Parcel) -> dict[int, bytes]:
        told = found.header.get("digests")
        size, asked = 32, self._started.asked
        if told != list(asked) or len(found.payload) != size * len(asked):
            raise WireError("the hub must say which rows have arrived.")
        return {
            rank: found.payload[size * j : size * (j + 1)]
            for j, rank in enumerate(asked)
        }

    def mail(self, parts: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Mail that only its receivers can read, also those that are away."""
        self._exchange_keys()
        trust, context = self._trust, self._next_context()
        sealed = {}
        for rank, part in parts.items():
            plain = Parcel(
                {"arrays": describe_arrays([part])}, bytes_of([part])
            ).encode()
            if rank in self._others:
                ends = (self._others[rank], context, trust.rank, rank)
                closed = seal(plain, self._keys, *ends)
            else:
                theirs = trust.away_keys[rank]
                closed = seal_for_absent(
                    plain, theirs, context, trust.rank, rank, trust.key
                )
            sealed[rank] = np.frombuffer(closed, np.uint8)
        received = ClearVerbs(self, self._memory).mail(sealed)
        found = {}
        for sender, arrived in received.items():
            if sender not in self._others:
                raise WireError("mail must come from a present member.")
            ends = (self._others[sender], context, sender, trust.rank)
            found[sender] = _array_in(open_mail(arrived.tobytes(), self._keys, *ends))
        return found

    def _next_context(self) -> MessageContext:
        self._number += 1
        return self._trust.context(self._started, self._number, self._memory.last)

    def _exchange_keys(self) -> None:
        """Gives this attempt's public keys to the others, once, and checks theirs."""
        if self._others:
            return
        about = self._trust.context(self._started, 0, self._memory.last)
        own = self._keys.public.to_bytes() + self._memory.told_scales()
        told = about.attempt_bytes + about.last
        found = self._exchange_signed(b"keys", told, own)
        self._others = {
            rank: PublicKeys.from_bytes(theirs[: 2 * HASH])
            for rank, theirs in found.items()
            if rank != self._trust.rank
        }
        scales = [_scales_in(theirs[2 * HASH :]) for theirs in found.values()]
        self._agreed = set.intersection(*scales)

    def _all_openings(self, context: MessageContext, told: bytes) -> bytes:
        """The openings of all self-masks, when all have signed the list of arrivals."""
        rank, own = self._trust.rank, self._keys.opening(context)
        sealed = [
            seal(own, self._keys, self._others[k], context, rank, k)
            for k in context.present
            if k != rank
        ]
        self._note_list()
        found = self._exchange_signed(b"arrived", told, b"".join(sealed))
        size, opened = HASH + OVERHEAD, []
        for sender in context.present:
            if sender == rank:
                opened.append(own)
                continue
            place = [k for k in context.present if k != sender].index(rank)
            closed = found[sender][size * place : size * (place + 1)]
            ends = (self._others[sender], context, sender, rank)
            opened.append(open_mail(closed, self._keys, *ends))
        if any(len(each) != HASH for each in opened):
            raise InputError("the opening of a self-mask has another length.")
        return b"".join(opened)

    def _exchange_signed(
        self, purpose: bytes, told: bytes, own: bytes
    ) -> dict[int, bytes]:
        """What every asked member sends with its signature of this and of `told`."""
        trust = self._trust
        where = (purpose, trust.study, trust.roster, told)
        signature = sign(trust.key, *where, own)
        payload = len(own).to_bytes(4, "big") + own + signature
        found = self.call(Parcel({"kind": "gather", "passing": True}, payload))
        values = values_of_all(found, self._started.asked)
        opened = {}
        for rank, value in values.items():
            end = 4 + int.from_bytes(value[:4], "big")
            theirs, proof = value[4:end], value[end:]
            if not verify(trust.certificates[rank], proof, *where, theirs):
                raise InputError(
                    f"the signature of member {rank} is wrong: it does not agree with "
                    "this member on the run, on who is present or on the last average."
                )
            opened[rank] = theirs
        return opened


def vote(
    calls: Calls, started: LiveAttempt, trust: MemberTrust, memory: SumChain
) -> None:
    """Signs the end of an attempt, and checks that all have signed it."""
    told = _vote_text(started, memory)
    signature = sign(trust.key, b"vote", trust.study, trust.roster, told).hex()
    header = {"kind": "vote", "signature": signature}
    found = refuse_other_kind("vote", calls.call(Parcel(header)))
    refuse_votes(found.header.get("votes"), started, trust, memory)


def _vote_text(started: LiveAttempt, memory: SumChain) -> bytes:
    numbers = (started.step, started.number, *started.present)
    told = b"".join(each.to_bytes(8, "big") for each in numbers)
    return told + memory.last + started.what.encode()


def refuse_log(
    votes: Mapping[str, Any], started: LiveAttempt, trust: MemberTrust, memory: SumChain
) -> None:
    """Refuses a finished step in the log if members have not signed just this.

    Members that were lost after an opened sum count as present, and have not signed.
    """
    signers = [rank for rank in started.present if str(rank) in votes]
    if not signers or len(signers) != len(votes):
        raise InputError(f"nobody has signed {started.what!r} in the log of the hub.")
    asked = started._replace(asked=tuple(signers))
    refuse_votes(votes, asked, trust, memory)


def refuse_votes(
    votes: Any, started: LiveAttempt, trust: MemberTrust, memory: SumChain
) -> None:
    """Refuses a step that not all asked members have signed."""
    told = _vote_text(started, memory)
    for rank in started.asked:
        text = votes.get(str(rank)) if isinstance(votes, dict) else None
        proof = bytes.fromhex(text) if isinstance(text, str) else b""
        where = (b"vote", trust.study, trust.roster, told)
        if not verify(trust.certificates[rank], proof, *where):
            raise InputError(
                f"member {rank} has not signed the end of {started.what!r}: the hub "
                "must show the signatures of all that were present."
            )


def values_of_all(found: Parcel, asked: Sequence[int]) -> dict[int, bytes]:
    """The bytes of every asked member."""
    refuse_other_kind("gather", found)
    sizes, start, values = found.header.get("sizes"), 0, {}
    if not isinstance(sizes, list) or [rank for rank, _ in sizes] != list(asked):
        raise InputError("a member is absent whose answer all need.")
    for rank, size in sizes:
        values[rank] = found.payload[start : start + size]
        start += size
    return values


def _array_in(plain: bytes) -> np.ndarray:
    """The array in opened mail."""
    from .wire import decode

    return one_array(decode(plain, len(plain)))


class ReplayVerbs:
    """The verbs of a step that the others have finished: answers from the log."""

    def __init__(
        self,
        answers: Sequence[Parcel],
        started: LiveAttempt,
        trust: MemberTrust,
        memory: SumChain,
        *,
        sealed: bool,
    ) -> None:
        """Takes the answers of a step, in order; mail may be `sealed`."""
        self._left, self._started = deque(answers), started
        self._trust, self._memory, self._sealed = trust, memory, sealed
        self._place = 0

    def call(self, parcel: Parcel) -> Parcel:
        """The next answer in the log. Nothing is sent."""
        self._memory.place = self._place
        self._place += 1
        found = self._left.popleft() if self._left else Parcel({"own": True})
        if found.header.get("own"):
            raise TrainingError(
                "this member was present in a step and lost its result: the hub keeps "
                "no mail for those who are present, so the step cannot be repeated"
            )
        return found

    def sum(self, row: np.ndarray) -> np.ndarray:
        """The sum in the log."""
        found = self.call(Parcel({}))
        if found.header.get("kind") != "sum":
            return opened_sum(found, row, self._trust, self._memory)
        total = one_array(found)
        self._memory.note(total)
        return total

    def mail(self, parts: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """What others sent to this member while it was away."""
        found = refuse_other_kind("mail", self.call(Parcel({})))
        received, trust = _mail_in(found), self._trust
        if not self._sealed:
            return received
        return {
            sender: _array_in(
                open_for_absent(
                    closed.tobytes(),
                    trust.away,
                    trust.certificates[sender],
                    (trust.study, trust.roster, self._started.step),
                    sender,
                    trust.rank,
                )
            )
            for sender, closed in received.items()
        }


class FinalVerbs:
    """The verbs of an attempt, which remember their results for a next attempt.

    An opened sum is final. If a member is lost after it, the next attempt of the step
    uses the results until that sum, and asks only for the rest. If nothing is left to
    ask, the lost member counts as present. Otherwise the others wait for it: a second
    sum without its row would be no round of any simulation.
    """

    def __init__(
        self,
        verbs: Verbs,
        started: LiveAttempt,
        results: list[tuple[Any, bytes]],
        opened: Mapping[int, Parcel],
        memory: SumChain,
        trust: MemberTrust,
        *,
        final: int,
    ) -> None:
        """Wraps verbs.

        Args:
            verbs: of this attempt.
            started: the attempt.
            results: of the attempt before, each with the memory after it; they change.
            opened: final sums by their place, if this member has not heard them.
            memory: of the member.
            trust: of the member.
            final: how many results are final.
        """
        self._verbs, self._started, self._results = verbs, started, results
        self._opened, self._memory, self._trust = opened, memory, trust
        self._final, self._has_opened = final, final > 0
        self._place, self._asking = 0, False
        self.place = 0  # of the call that is going on
        del results[final:]

    @property
    def debt(self) -> list[tuple[int, tuple[int, ...]]]:
        """The place that was not answered, and who must be there when it is."""
        if not (self._asking and self._has_opened):
            return []
        return [(self.place, self._started.present)]

    def _result(self, ask: Callable[[], Any], like: np.ndarray | None = None) -> Any:
        self.place = self._memory.place = place = self._place
        self._place += 1
        if place >= self._final:
            self._refuse_fewer()
            self._asking = True
            found = ask()
            self._asking = False
            self._results.append((found, self._memory.last))
            return found
        if place < len(self._results):
            found, self._memory.last = self._results[place]
            return found
        if like is None or place not in self._opened:
            raise WireError("the hub does not send the sum that was opened.")
        found = opened_sum(self._opened[place], like, self._trust, self._memory)
        self._results.append((found, self._memory.last))
        return found

    def _refuse_fewer(self) -> None:
        """Refuses to go on without a member whose row is in an opened sum."""
        one = self._started
        if self._final and one.asked != one.present:
            raise InputError(
                f"the hub asks for more in {one.what!r} without members whose rows are "
                "in an opened sum of it: this member takes no part in it."
            )

    def sum(self, row: np.ndarray) -> np.ndarray:
        """The sum: the one that was opened, or a new one."""
        found: np.ndarray = self._result(lambda: self._verbs.sum(row), row)
        self._has_opened |= isinstance(self._verbs, MaskedVerbs)
        return found

    def mail(self, parts: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The mail of this attempt, or of the one with the opened sum."""
        return self._result(lambda: self._verbs.mail(parts))

    def call(self, parcel: Parcel) -> Parcel:
        """The answer to another call."""
        return self._result(lambda: self._verbs.call(parcel))
