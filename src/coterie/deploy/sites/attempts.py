"""One attempt at a step: which verbs the present members have called, and the answers.

A verb is called by all members that are asked. When the last of them has called it, the
answer is made, and all get it. This module has no threads and no network.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ...checks import InputError
from .store import EVERYBODY, Answer
from .wire import Parcel, WireError, arrays_of, bytes_of, describe_arrays, words


@runtime_checkable
class HubPrograms(Protocol):
    """Runs programs on rows in the clear; see `coordinator`."""

    def begin(self, what: str) -> None:
        """Begins an attempt at a step."""

    def memory(self) -> bytes:
        """What the programs have stored; it is kept from now on."""

    def __call__(
        self, header: dict[str, Any], who: Sequence[int], rows: list[list[np.ndarray]]
    ) -> list[list[np.ndarray]] | str:
        """For each of all members a list of arrays, or why the rows are refused."""


_DIGEST = re.compile(r"[0-9a-f]{64}")


class VerbCall(NamedTuple):
    """What one member sent to a verb."""

    parcel: Parcel
    digest: bytes


class Attempt:
    """An attempt at a step by the members that are asked."""

    def __init__(
        self,
        number: int,
        present: Sequence[int],
        asked: Sequence[int],
        names: Sequence[str],
        central: HubPrograms | None = None,
        before: Sequence[Answer] = (),
    ) -> None:
        """Begins without calls.

        Args:
            number: of the attempt, from 1.
            present: who counts as present.
            asked: who calls verbs.
            names: of all members.
            central: runs a coordinator's program, if the study allows it.
            before: answers of the attempt before until its last opened sum.
        """
        self.number, self.present, self.asked = number, list(present), list(asked)
        self._names, self._central = names, central
        self._calls: list[dict[int, VerbCall]] = []
        self._masked: dict[int, np.ndarray] = {}  # rows, until they are opened
        self._exponents: Any = None  # the scale of these rows
        self.replies: list[dict[int, Parcel]] = []  # by call, then by member
        # What a member needs that does the step later.
        self.kept: list[Answer] = list(before)
        self.final = before[-1].number + 1 if before else 0  # answers that are final
        self.votes: dict[str, Any] | None = None

    def take(self, rank: int, number: int, parcel: Parcel) -> None:
        """Takes what a member sends to a call; after the last one, it is answered.

        Raises:
            WireError: if the message does not fit.
        """
        if rank not in self.asked:
            raise WireError("this member does not take part in the attempt.")
        if number > len(self.replies):
            raise WireError(f"call {number} comes before call {len(self.replies)}.")
        while len(self._calls) <= number:
            self._calls.append({})
        digest = hashlib.sha256(parcel.encode()).digest()
        calls = self._calls[number]
        if rank in calls:
            if calls[rank].digest != digest:
                raise WireError(f"call {number} was made with another content before.")
            return
        self._refuse_unlike(calls, parcel, rank)
        calls[rank] = VerbCall(parcel, digest)
        if len(calls) == len(self.asked):
            by_rank = {r: calls[r].parcel for r in self.asked}
            answer = _ANSWERS[words(parcel.header, "kind")]
            self.replies.append(answer(self, number, by_rank))
            for r, call in calls.items():  # rows are no longer needed
                calls[r] = VerbCall(Parcel({}), call.digest)

    def _refuse_unlike(
        self, calls: dict[int, VerbCall], parcel: Parcel, rank: int
    ) -> None:
        """Refuses a message of another kind or shape than the others sent."""
        kind = words(parcel.header, "kind")
        if kind not in _ANSWERS:
            raise WireError(f"a call of the kind {kind!r} is not known.")
        if kind in ("sum", "rows", "central", "mail"):
            arrays = arrays_of(parcel.header.get("arrays"), parcel.payload)
            if kind in ("sum", "rows") and len(arrays) != 1:
                raise WireError("a sum needs one array.")
            if kind == "rows" and arrays[0].dtype.kind != "u":
                raise WireError("masked rows must be whole numbers.")
            if kind == "rows" and not _DIGEST.fullmatch(words(parcel.header, "digest")):
                raise WireError("a masked row must come with its digest.")
            if kind == "mail":
                self._receivers(parcel, rank)
        keys = ["kind"]
        keys += ["arrays"] if kind in ("sum", "rows", "central") else []
        keys += ["exponents"] if kind == "rows" else []
        keys += ["program", "options"] if kind == "central" else []
        for other, call in calls.items():
            for key in keys:
                if call.parcel.header.get(key) != parcel.header.get(key):
                    raise WireError(
                        f"{self._names[rank]} and {self._names[other]} do not run the "
                        f"same code: they call a verb with another `{key}`."
                    )

    def _receivers(self, parcel: Parcel, rank: int) -> list[int]:
        to: Any = parcel.header.get("to")
        about, members = parcel.header.get("arrays"), range(len(self._names))
        sound = isinstance(to, list) and all(type(r) is int for r in to)
        if not sound or len(set(to)) < len(to) or len(to) != len(about or []):
            raise WireError("mail must name every receiver once.")
        if rank in to or not set(to) <= set(members):
            raise WireError("mail must go to other members.")
        return to

    # Answers, one function for each kind.

    def _next_place(self) -> int:
        return self.kept[-1].number + 1 if self.kept else 0

    def _for_all(self, parcel: Parcel, *, keep: bool) -> dict[int, Parcel]:
        if keep:
            place = self._next_place()
            self.kept.append(Answer(place, EVERYBODY, parcel.header, parcel.payload))
        return dict.fromkeys(self.asked, parcel)

    def _for_each(self, parcels: Mapping[int, Parcel]) -> dict[int, Parcel]:
        """Each member's own answer. Those of absent members are kept for them."""
        place = self._next_place()
        self.kept.append(Answer(place, EVERYBODY, {"own": True}, b""))
        for rank, parcel in parcels.items():
            if rank not in self.asked:
                self.kept.append(Answer(place, rank, parcel.header, parcel.payload))
        return {rank: parcels[rank] for rank in self.asked}

    def _sum(self, number: int, sent: dict[int, Parcel]) -> dict[int, Parcel]:
        rows = [arrays_of(p.header["arrays"], p.payload)[0] for p in sent.values()]
        exact = rows[0].dtype.kind != "f"
        total = rows[0].astype(rows[0].dtype if exact else np.float64)
        for row in rows[1:]:
            total += row
        found = total.astype(rows[0].dtype)
        header = {"kind": "sum", "arrays": describe_arrays([found])}
        return self._for_all(Parcel(header, bytes_of([found])), keep=True)

    def _rows(self, number: int, sent: dict[int, Parcel]) -> dict[int, Parcel]:
        """Keeps masked rows until their masks are opened; tells which have arrived.

        If a row does not fit, all are asked again with more bits.
        """
        if not all(parcel.header.get("fits", True) for parcel in sent.values()):
            return self._for_all(Parcel({"kind": "rows", "fits": False}), keep=False)
        self._exponents = next(iter(sent.values())).header.get("exponents")
        self._masked = {
            rank: arrays_of(p.header["arrays"], p.payload)[0]
            for rank, p in sent.items()
        }
        ranks = list(sent)
        digests = b"".join(bytes.fromhex(sent[r].header["digest"]) for r in ranks)
        return self._for_all(
            Parcel({"kind": "rows", "digests": ranks}, digests), keep=False
        )

    def _open(self, number: int, sent: dict[int, Parcel]) -> dict[int, Parcel]:
        """The sum of masked rows, whose members have opened their self-masks."""
        if len({parcel.payload for parcel in sent.values()}) > 1:
            raise WireError("members do not open the same self-masks.")
        return self._open_with(next(iter(sent.values())).payload)

    def _open_with(self, openings: bytes) -> dict[int, Parcel]:
        from .masks import HASH, open_sum

        if len(openings) != HASH * len(self._masked):
            raise WireError("a member must open the self-masks of all rows.")
        pieces = {
            rank: openings[HASH * j : HASH * (j + 1)]
            for j, rank in enumerate(self._masked)
        }
        try:
            total = open_sum(self._masked, pieces)
        except InputError as error:
            raise WireError(str(error)) from None
        finally:
            self._masked = {}
        header = {"kind": "open", "arrays": describe_arrays([total])}
        header |= {"exponents": self._exponents}
        found = self._for_all(Parcel(header, bytes_of([total])), keep=True)
        self.final = self.kept[-1].number + 1
        return found

    def end(self) -> None:
        """Ends the attempt; a sum that any member has opened is still made.

        That member has seen that all have signed the list of rows, so the sum is final,
        and nobody would take part in another one.
        """
        calls = self._calls[-1] if len(self._calls) > len(self.replies) else {}
        for call in calls.values():
            if self._masked and call.parcel.header.get("kind") == "open":
                with contextlib.suppress(WireError):
                    self._open_with(call.parcel.payload)
        self._masked = {}

    def _mail(self, number: int, sent: dict[int, Parcel]) -> dict[int, Parcel]:
        if self.final:  # a member that is lost now cannot be left out of the sum
            raise WireError(
                "the method sends mail after a sum in the same round, so a round could "
                "not go on without a lost member: it cannot run with masks."
            )
        boxes: dict[int, list[tuple[int, np.ndarray]]] = {
            rank: [] for rank in range(len(self._names))
        }
        for sender, parcel in sent.items():
            parts = arrays_of(parcel.header["arrays"], parcel.payload)
            for receiver, part in zip(parcel.header["to"], parts, strict=True):
                boxes[receiver].append((sender, part))
        parcels = {}
        for rank, box in boxes.items():
            parts = [part for _, part in box]
            senders = [sender for sender, _ in box]
            header = {"kind": "mail", "from": senders, "arrays": describe_arrays(parts)}
            parcels[rank] = Parcel(header, bytes_of(parts))
        return self._for_each(parcels)

    def _gather(self, number: int, sent: dict[int, Parcel]) -> dict[int, Parcel]:
        sizes = [[rank, len(parcel.payload)] for rank, parcel in sent.items()]
        payload = b"".join(parcel.payload for parcel in sent.values())
        passing = any(parcel.header.get("passing") for parcel in sent.values())
        found = Parcel({"kind": "gather", "sizes": sizes}, payload)
        return self._for_all(found, keep=not passing)

    def _vote(self, number: int, sent: dict[int, Parcel]) -> dict[int, Parcel]:
        votes = {str(r): words(p.header, "signature") for r, p in sent.items()}
        self.votes = votes
        return self._for_all(Parcel({"kind": "vote", "votes": votes}), keep=False)

    def _ask_coordinator(
        self, number: int, sent: dict[int, Parcel]
    ) -> dict[int, Parcel]:
        if self._central is None:
            raise WireError("the study does not let the hub see rows (`central`).")
        rows = [arrays_of(p.header["arrays"], p.payload) for p in sent.values()]
        header = next(iter(sent.values())).header
        answers = self._central(header, list(sent), rows)
        if isinstance(answers, str):
            text = {"kind": "central", "refused": answers, "arrays": []}
            return self._for_all(Parcel(text), keep=True)
        parcels = {
            rank: Parcel(
                {"kind": "central", "arrays": describe_arrays(own)}, bytes_of(own)
            )
            for rank, own in enumerate(answers)
        }
        return self._for_each(parcels)


_ANSWERS: dict[str, Callable[[Attempt, int, dict[int, Parcel]], dict[int, Parcel]]] = {
    "sum": Attempt._sum,
    "mail": Attempt._mail,
    "gather": Attempt._gather,
    "rows": Attempt._rows,
    "open": Attempt._open,
    "vote": Attempt._vote,
    "central": Attempt._ask_coordinator,
}
