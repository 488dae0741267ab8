"""A member's loop: begin, step, prepare, vote, commit.

A step is a transaction. `Member.do` begins it, does the work, writes the result to the
disk, votes, and makes the result final when all have voted. If the attempt ends because
a member was lost, the work begins again from the state before the step. If the others
have finished the step without this member, it does the step from the log of the hub.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...checks import DisconnectedError, InputError
from .away import delete_away_key
from .hub import PROTOCOL
from .keys import sign, verify
from .link import AttemptOver, Behind, Channel, LiveCalls, RunOver, SiteGroup
from .masks import pack_parts
from .member_store import Checkpoint, Departure, MemberStore
from .verbs import (
    ClearVerbs,
    FinalVerbs,
    LiveAttempt,
    MaskedVerbs,
    MemberTrust,
    ReplayVerbs,
    SumChain,
    Verbs,
    refuse_log,
    vote,
)
from .wire import Parcel

Found = TypeVar("Found")

_PAUSE = 0.5  # seconds


class RunStep(NamedTuple):
    """A step of the run, the same for all members."""

    number: int
    what: str  # in words
    everybody: bool = False  # whether all members must be present
    drawn: tuple[int, ...] | None = None  # who may take part; None: everybody


class LoggedStep(NamedTuple):
    """A step in the log of the hub, with the answers for this member."""

    attempt: int
    present: tuple[int, ...]
    what: str
    answers: list[Parcel]
    votes: dict[str, Any]  # signatures by rank


class TooOld(InputError):
    """The error if the hub has no answers for a step that this member needs."""

    def __init__(self, step: int, needed: int, found: dict[str, Any]) -> None:
        """Says so.

        Args:
            step: the oldest one with answers.
            needed: the step that this member needs.
            found: what proves the hash of all sums before the oldest step.
        """
        self.step, self._found = step, found
        super().__init__(
            "this member was away for too long: the hub has no answers before step "
            f"{step}, and step {needed} is needed"
        )

    def memory(self, trust: MemberTrust) -> bytes:
        """The hash of all sums before the oldest step; members must have signed it."""
        proof, memory = self._found.get("proof"), SumChain()
        if not isinstance(proof, dict):
            raise self
        memory.last = bytes.fromhex(str(self._found["memory"]))
        present = tuple(proof["present"])
        place = proof["step"], proof["attempt"], present, present, proof["what"]
        if proof["step"] != self.step - 1:
            raise InputError("the hub proves another step than the one before.")
        refuse_log(dict(proof["votes"]), LiveAttempt(*place), trust, memory)
        return memory.last


class Member:
    """One member of a run."""

    def __init__(
        self,
        channel: Channel,
        store: MemberStore,
        names: Sequence[str],
        trust: MemberTrust,
        *,
        masks: bool = True,
    ) -> None:
        """Prepares the member; `hello` begins.

        Args:
            channel: to the hub.
            store: the member's files.
            names: of all members, by rank.
            trust: the member's keys, and what it knows of the others.
            masks: whether rows are hidden from the hub.
        """
        self.channel, self.store, self.names = channel, store, list(names)
        self.rank, self.group = trust.rank, SiteGroup(trust.rank, len(names))
        self._trust, self._masks, self.memory = trust, masks, SumChain()
        self.group.grid, self.group.chain = trust.grid, self.memory
        self._away_told: tuple[str, str] | None = None  # signed once
        self.group.least = trust.least if masks else 0
        self._results: list[tuple[Any, bytes]] = []  # of the last attempt at a step
        self._debt: list[tuple[int, tuple[int, ...]]] = []  # see `FinalVerbs.debt`
        self._calls: LiveCalls | None = None
        self._replayed: LoggedStep | None = None
        self._log: deque[tuple[int, LoggedStep]] = deque()
        self._quiet = threading.Event()
        self._heart: threading.Thread | None = None

    # The walk.

    def do(
        self,
        step: RunStep,
        work: Callable[[tuple[int, ...]], Found],
        pack: Callable[[Found], Any] | None = None,
        charge: Callable[[int], None] | None = None,
    ) -> Found:
        """The result of a step's work, when it is final at all members.

        Args:
            step: which step.
            work: does the step from the state before it, given who is present.
            pack: what to write to the disk of a result; None: nothing.
            charge: called with the number of an attempt before anything of it leaves.
        """
        while True:
            before, voted = self.memory.last, False
            started, live = self._begin(step, charge)
            try:
                result = work(started.present)
                if pack is not None:
                    self._prepare(started, pack(result))
                voted = live
                if live:
                    self._vote(started)
                else:
                    assert self._replayed is not None  # the step in the log
                    votes = self._replayed.votes
                    refuse_log(votes, started, self._trust, self.memory)
            except (AttemptOver, Behind) as ended:
                verbs = self.group.verbs
                self._debt = verbs.debt if isinstance(verbs, FinalVerbs) else []
                place = started.step, started.number, self.memory
                late = voted and isinstance(ended, Behind)
                if not (late and self._counts(*place)):
                    self.memory.last = before
                    continue
            finally:
                self.group.forget()
            if pack is not None:
                self.store.commit()
            self._results.clear()
            self._debt.clear()
            return result

    def _begin(
        self, step: RunStep, charge: Callable[[int], None] | None
    ) -> tuple[LiveAttempt, bool]:
        """The attempt, and whether it is live; if not, it is a step in the log."""
        last, after = self.store.greatest()
        header = {"kind": "begin", "step": step.number, "what": step.what}
        header |= {"after": after if last == step.number else 0}
        header |= {"everybody": step.everybody, "drawn": step.drawn}
        header |= {"memory": self.memory.last.hex()}
        lists = self.store.lists(step.number) + self._debt
        header |= {"lists": [[at, list(who)] for at, who in lists]}
        while self._log and self._log[0][0] < step.number:
            self._log.popleft()
        answer = Parcel({"behind": True}) if self._log else self._ask(header)
        found = answer.header
        if found.get("behind"):
            finished = self._replayed = self._logged_step(step)
            present, which = finished.present, finished.attempt
            started = LiveAttempt(step.number, which, present, present, step.what)
            self._refuse_undrawn(step, started)
            self.group.verbs = ReplayVerbs(
                *(finished.answers, started, self._trust, self.memory),
                sealed=self._masks,
            )
            return started, False
        present, asked = tuple(found["present"]), tuple(found["asked"])
        started = LiveAttempt(step.number, found["attempt"], present, asked, step.what)
        self._refuse_undrawn(step, started)
        self._refuse_smaller_sum(started, int(found.get("final", 0)))
        if charge is not None:
            charge(started.number)
        self.store.begin(started.step, started.number, step.what)
        self._calls = LiveCalls(self.channel.ask, started, self._note)
        self.group.verbs = self._verbs(started, answer)
        return started, True

    def _verbs(self, started: LiveAttempt, answer: Parcel) -> Verbs:
        """How rows travel in an attempt; opened sums of the one before are final."""
        assert self._calls is not None  # made just before
        verbs: Verbs = ClearVerbs(self._calls, self.memory)
        if self._masks:
            ends = (self._trust, self.memory, lambda: self._note_list(started))
            verbs = MaskedVerbs(self._calls, started, *ends)
        final, opened, start = int(answer.header.get("final", 0)), {}, 0
        for place, header, size in answer.header.get("opened", ()):
            opened[place] = Parcel(header, answer.payload[start : start + size])
            start += size
        given = verbs, started, self._results, opened, self.memory, self._trust
        return FinalVerbs(*given, final=final)

    def _note_list(self, started: LiveAttempt) -> None:
        """Keeps that the sum of these members may be opened from now on."""
        verbs = self.group.verbs
        assert isinstance(verbs, FinalVerbs)  # masks need it
        self.store.note_list(started.step, verbs.place, started.asked)

    def _refuse_smaller_sum(self, started: LiveAttempt, final: int) -> None:
        """Refuses to take part in another sum where one may have been opened.

        The difference of two sums of the same state would show the row of the member
        that is in one of them alone. Whose row is in an opened sum counts as present.
        """
        for place, ranks in self.store.lists(started.step):
            if ranks != (started.asked if place >= final else started.present):
                who = ", ".join(self.names[rank] for rank in ranks)
                raise InputError(
                    f"the hub asks again for a sum in {started.what!r} that may have "
                    f"been opened, now of other members than {who}: this member takes "
                    "no part in it."
                )

    def _refuse_undrawn(self, step: RunStep, started: LiveAttempt) -> None:
        """Refuses an attempt with a member that the draw of the study leaves out."""
        for rank in started.present:
            if step.drawn is not None and rank not in step.drawn:
                raise InputError(
                    f"the hub lets {self.names[rank]} take part in {step.what!r}, but "
                    "`run.participation` of the study draws others."
                )

    def _prepare(self, started: LiveAttempt, value: Any) -> None:
        """Writes the state after the step to the disk."""
        kept = value, self.memory.last.hex()
        self.store.prepare(Checkpoint(started.step, started.number, kept))

    def _vote(self, started: LiveAttempt) -> None:
        """Says that this member has the result; returns when all have said so."""
        assert self._calls is not None  # made when the attempt began
        vote(self._calls, started, self._trust, self.memory)

    def _counts(self, step: int, attempt: int, memory: SumChain) -> bool:
        """Whether this attempt is the one that was finished, by the log of the hub.

        Its members must have signed it after the sums that this member knows.
        """
        found = self._ask({"kind": "log", "step": step}).header
        steps = found.get("steps", ())
        if not steps or steps[0]["attempt"] != attempt:
            return False
        present = tuple(steps[0]["present"])
        ended = LiveAttempt(step, attempt, present, present, steps[0]["what"])
        refuse_log(dict(steps[0]["votes"]), ended, self._trust, memory)
        return True

    def recover(self) -> Checkpoint | None:
        """The last final state, or the prepared one if its attempt was finished.

        The value of a state comes with the memory after it, in hexadecimal digits.

        A member that was killed after its vote does not know whether all have voted.
        """
        last, ready = self.store.last(), self.store.prepared_state()
        if ready is None or (last is not None and ready.step <= last.step):
            return last
        memory = SumChain()
        memory.last = bytes.fromhex(ready.value[1])
        if not self._counts(ready.step, ready.attempt, memory):
            return last
        self.store.commit()
        return ready

    def go_on_after(self, gap: TooOld) -> None:
        """Leaves out the steps whose answers the hub does not have any more."""
        self._log.clear()
        self.memory.last = gap.memory(self._trust)
        self.memory.scales.clear()

    # Parts of the walk.

    def hello(
        self, run: str, done: int, say: Callable[[str], None] = lambda line: None
    ) -> None:
        """Begins: tells the hub which run this is, and which step was finished last.

        If the run has failed, it waits until somebody has started the hub again.
        """
        life = uuid.uuid4().hex
        header = {"kind": "hello", "protocol": PROTOCOL, "run": run, "life": life}
        told = Parcel(header | {"done": done})
        found, waits = self.channel.ask(told).header, False
        while found.get("wait"):
            if not waits:
                say(
                    f"the hub is about to end, because the run has {found['ended']}; "
                    "this site waits until the hub is started again"
                )
            waits = True
            time.sleep(_PAUSE)
            found = self.channel.ask(told).header
        pause = float(found["patience"]) / 4
        self._heart = threading.Thread(target=self._beat, args=(pause,), daemon=True)
        self._heart.start()

    def tell_away_keys(self) -> None:
        """Tells the others the key for mail that waits, and learns theirs."""
        trust = self._trust
        where = (b"away key", trust.study, trust.roster)
        own = trust.away.public
        if self._away_told is None:
            self._away_told = own.hex(), sign(trust.key, *where, own).hex()
        told = self.group.gather(self._away_told)
        for rank, (key, proof) in enumerate(told):
            found = bytes.fromhex(key)
            known = trust.certificates[rank]
            if not verify(known, bytes.fromhex(proof), *where, found):
                raise InputError(f"the key for mail to {self.names[rank]} is forged.")
            trust.away_keys[rank] = found
        # They are new in every run, so no signature of an earlier run is valid in it.
        self.memory.note(np.frombuffer(pack_parts(*trust.away_keys.values()), np.uint8))

    def begin_set_up(self, steps: int, total: int) -> None:
        """Tells the hub how many steps, from the first, are the set-up, and of all."""
        self._ask({"kind": "set-up", "steps": steps, "total": total})

    def finish(self, steps: int) -> str:
        """Tells the hub that all steps are finished; gives how the run ended."""
        ended = self._ask({"kind": "finish", "steps": steps}).header["ended"]
        delete_away_key(self.store.folder)
        return ended

    def fail(self, reason: str) -> None:
        """Tells the hub that this member cannot go on, if the hub is there."""
        try:
            told = Parcel({"kind": "failure", "reason": reason[:400]})
            self.channel.ask(told, patiently=False)
        except (DisconnectedError, InputError):
            pass

    def close(self) -> None:
        """Ends the connection and the sign of life."""
        self._quiet.set()
        self.channel.close()
        if self._heart is not None:
            self._heart.join()

    def _ask(self, header: dict[str, Any]) -> Parcel:
        """The hub's answer to a message without rows."""
        while True:
            found = self.channel.ask(Parcel(header))
            if found.header.get("wait"):
                continue
            ended = str(found.header.get("ended", ""))
            if ended.startswith(("failed", "stopped")):
                raise RunOver(ended)
            return found

    def _beat(self, pause: float) -> None:
        """Tells the hub a few times in its patience that this member is alive."""
        while not self._quiet.wait(pause):
            try:
                self.channel.ask(Parcel({"kind": "alive"}), patiently=False)
            except (DisconnectedError, InputError):
                pass
            except ValueError:  # the channel is closed
                return

    def _note(self, started: LiveAttempt, parcel: Parcel) -> None:
        """Keeps what leaves this site, before it leaves."""
        kind, header = parcel.header["kind"], parcel.header
        to = ", ".join(self.names[j] for j in header.get("to", ())) or "hub"
        size = len(parcel.payload)
        place = (time.time(), started.step, started.number)
        self.store.note(Departure(*place, started.what, kind, to, size))

    def _logged_step(self, step: RunStep) -> LoggedStep:
        """The step in the log of the hub; several steps come in one message."""
        if not self._log:
            found = self._ask({"kind": "log", "step": step.number})
            if "forgotten" in found.header:
                first = int(found.header["forgotten"])
                raise TooOld(first, step.number, found.header)
            start = 0
            for about in found.header["steps"]:
                answers = []
                for header, size in about["answers"]:
                    answers.append(Parcel(header, found.payload[start : start + size]))
                    start += size
                present = tuple(about["present"])
                votes = dict(about["votes"])
                told = about["attempt"], present, about["what"], answers, votes
                one = LoggedStep(*told)
                self._log.append((about["step"], one))
        number, finished = self._log.popleft()
        if number != step.number or finished.what != step.what:
            raise InputError(
                f"the log of the hub has {finished.what!r} as step {number}, but this "
                f"member does {step.what!r} as step {step.number}."
            )
        return finished
