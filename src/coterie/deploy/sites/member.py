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

from ...checks import DisconnectedError, InputError, TrainingError
from .hub import PROTOCOL
from .link import Aborted, Behind, Channel, LiveCalls, Replay, RunEnded, SiteGroup, Started
from .member_store import Checkpoint, Departure, MemberStore
from .wire import Parcel

Found = TypeVar("Found")


class Step(NamedTuple):
    """A step of the run, the same for all members."""

    number: int
    what: str  # in words
    everybody: bool = False  # whether all members must be present
    sampled: tuple[int, ...] | None = None  # who takes part; None: all


class Finished(NamedTuple):
    """A step in the log of the hub, with the answers for this member."""

    attempt: int
    present: tuple[int, ...]
    what: str
    answers: list[Parcel]


class Member:
    """One member of a run."""

    def __init__(
        self, channel: Channel, store: MemberStore, names: Sequence[str], rank: int
    ) -> None:
        """Prepares the member; `hello` begins.

        Args:
            channel: to the hub.
            store: the member's files.
            names: of all members, by rank.
            rank: of this member.
        """
        self._channel, self.store, self.names = channel, store, list(names)
        self.rank, self.group = rank, SiteGroup(rank, len(names))
        self._log: deque[tuple[int, Finished]] = deque()
        self._quiet = threading.Event()
        self._heart: threading.Thread | None = None

    # The walk.

    def do(
        self,
        step: Step,
        work: Callable[[tuple[int, ...]], Found],
        pack: Callable[[Found], Any] | None = None,
    ) -> Found:
        """The result of a step's work, when it is final at all members.

        Args:
            step: which step.
            work: does the step from the state before it, given who is present.
            pack: what to write to the disk of a result; None: nothing.
        """
        while True:
            started, live = self._begin(step)
            voted = False
            try:
                result = work(started.present)
                if pack is not None:
                    self._prepare(started, pack(result))
                voted = live
                if live:
                    self._vote(started)
            except Aborted:
                continue
            except Behind:
                if not (voted and self._counts(started)):
                    continue
            finally:
                self.group.verbs = None
            if pack is not None:
                self.store.commit()
            return result

    def _begin(self, step: Step) -> tuple[Started, bool]:
        """The attempt, and whether it is live; if not, it is a step in the log."""
        last, after = self.store.greatest()
        header = {"kind": "begin", "step": step.number, "what": step.what}
        header |= {"after": after if last == step.number else 0}
        header |= {"everybody": step.everybody, "sampled": step.sampled}
        while self._log and self._log[0][0] < step.number:
            self._log.popleft()
        found = {"behind": True} if self._log else self._ask(header).header
        if found.get("behind"):
            finished = self._finished(step)
            self.group.verbs = Replay(finished.answers)
            present = finished.present
            started = Started(step.number, finished.attempt, present, present)
            return started, False
        present, asked = tuple(found["present"]), tuple(found["asked"])
        started = Started(step.number, found["attempt"], present, asked)
        self.store.begin(started.step, started.number, step.what)
        self.group.verbs = LiveCalls(
            self._channel.ask,
            started,
            lambda at, parcel: self._note(step, at, parcel),
        )
        return started, True

    def _prepare(self, started: Started, value: Any) -> None:
        """Writes the state after the step to the disk."""
        self.store.prepare(Checkpoint(started.step, started.number, value))

    def _vote(self, started: Started) -> None:
        """Says that this member has the result; returns when all have said so."""
        assert self.group.verbs is not None  # set when the attempt began
        self.group.verbs.call(Parcel({"kind": "vote", "signature": ""}))

    def _counts(self, started: Started) -> bool:
        """Whether this attempt is the one that was finished, by the log of the hub."""
        found = self._ask({"kind": "log", "step": started.step}).header
        steps = found.get("steps", ())
        return bool(steps) and steps[0]["attempt"] == started.number

    def recover(self) -> Checkpoint | None:
        """The last final state, or the prepared one if its attempt was finished.

        A member that was killed after its vote does not know whether all have voted.
        """
        last, ready = self.store.last(), self.store.prepared()
        if ready is None or (last is not None and ready.step <= last.step):
            return last
        if not self._counts(Started(ready.step, ready.attempt, (), ())):
            return last
        self.store.commit()
        return ready

    # Parts of the walk.

    def hello(self, run: str, done: int) -> None:
        """Begins: tells the hub which run this is, and which step was finished last."""
        life = uuid.uuid4().hex
        header = {"kind": "hello", "protocol": PROTOCOL, "run": run, "life": life}
        found = self._ask(header | {"done": done}).header
        pause = float(found["patience"]) / 4
        self._heart = threading.Thread(target=self._beat, args=(pause,), daemon=True)
        self._heart.start()

    def begin_set_up(self, steps: int) -> None:
        """Tells the hub which steps, from the first, are the set-up."""
        self._ask({"kind": "set-up", "steps": steps})

    def finish(self, steps: int) -> str:
        """Tells the hub that all steps are finished; gives how the run ended."""
        return self._ask({"kind": "finish", "steps": steps}).header["ended"]

    def fail(self, reason: str) -> None:
        """Tells the hub that this member cannot go on, if the hub is there."""
        try:
            told = Parcel({"kind": "failure", "reason": reason[:400]})
            self._channel.ask(told, patiently=False)
        except (DisconnectedError, InputError):
            pass

    def close(self) -> None:
        """Ends the connection and the sign of life."""
        self._quiet.set()
        self._channel.close()
        if self._heart is not None:
            self._heart.join()

    def _ask(self, header: dict[str, Any]) -> Parcel:
        """The hub's answer to a message without rows."""
        while True:
            found = self._channel.ask(Parcel(header))
            if found.header.get("wait"):
                continue
            ended = str(found.header.get("ended", ""))
            if ended.startswith(("failed", "stopped")):
                raise RunEnded(ended)
            return found

    def _beat(self, pause: float) -> None:
        """Tells the hub a few times in its patience that this member is alive."""
        while not self._quiet.wait(pause):
            try:
                self._channel.ask(Parcel({"kind": "alive"}), patiently=False)
            except (DisconnectedError, InputError):
                pass
            except ValueError:  # the channel is closed
                return

    def _note(self, step: Step, started: Started, parcel: Parcel) -> None:
        """Keeps what leaves this site, before it leaves."""
        kind, header = parcel.header["kind"], parcel.header
        to = ", ".join(self.names[j] for j in header.get("to", ())) or "hub"
        size = len(parcel.payload)
        place = (time.time(), started.step, started.number)
        self.store.note(Departure(*place, step.what, kind, to, size))

    def _finished(self, step: Step) -> Finished:
        """The step in the log of the hub; several steps come in one message."""
        if not self._log:
            found = self._ask({"kind": "log", "step": step.number})
            if "forgotten" in found.header:
                raise TrainingError(
                    f"this member was away for too long: the hub has no answers before "
                    f"step {found.header['forgotten']}, and step {step.number} is "
                    "needed"
                )
            start = 0
            for about in found.header["steps"]:
                answers = []
                for header, size in about["answers"]:
                    answers.append(Parcel(header, found.payload[start : start + size]))
                    start += size
                present = tuple(about["present"])
                one = Finished(about["attempt"], present, about["what"], answers)
                self._log.append((about["step"], one))
        number, finished = self._log.popleft()
        if number != step.number or finished.what != step.what:
            raise InputError(
                f"the log of the hub has {finished.what!r} as step {number}, but this "
                f"member does {step.what!r} as step {step.number}."
            )
        return finished
