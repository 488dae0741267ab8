"""The hub: it adds up rows, relays mail, and decides when a step is finished.

A run is a list of steps, numbered from 0: the set-up, the start of an algorithm, its
rounds. A step is a transaction. The members that are present when an attempt begins
call verbs, and at the end vote. When all have voted, the step is written to the log and
counts. If a member is silent for too long, the attempt ends, and the others begin the
step again without it.

The hub knows rows only as arrays of bytes. It does not import torch.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .attempts import Attempt, HubPrograms
from .store import Answer, Commit, HubStore
from .wire import LARGEST_HEADER, Parcel, WireError, whole_number, words

PROTOCOL = 1
"""Members and hub must agree on it."""

_POLL = 10.0
"""The longest time in seconds that a call waits; then the member asks again."""

_BATCH, _BATCH_BYTES = 64, 2**22
"""The most steps, and about the most bytes, of the log in one message."""

_PRUNE = 100
"""The number of steps after which the hub looks whether its log is too large."""

_NEAR = 2
"""The others wait for a member that lacks at most this number of steps."""


class HubSettings(NamedTuple):
    """What the study says about the hub."""

    least: int = 3  # members for a step
    patience: float = 30.0  # seconds without a sign until a member is lost
    attempts: int = 3  # at a round
    log_bytes: int = 2**30  # for members that are away
    wait: float = 600.0  # seconds for enough members to return


class _Ready(NamedTuple):
    """What a member said when it was ready for a step."""

    what: str
    after: int  # the last attempt that it saw
    everybody: bool  # whether all members must be present
    bound: tuple[int, ...] = ()  # if it has signed a list of rows: whose rows
    drawn: frozenset[int] | None = None  # who may take part; None: everybody
    memory: str = ""  # the hash of all sums before the step


class _Frozen(NamedTuple):
    """What is final in a step after a sum was opened, even if members are lost."""

    present: list[int]
    kept: list[Answer]


def _parcel_of(attempt: Attempt) -> Parcel:
    """What a member hears about an attempt, and its final sums."""
    header: dict[str, Any] = {
        "attempt": attempt.number,
        "present": attempt.present,
        "asked": attempt.asked,
        "final": attempt.final,
    }
    before = [a for a in attempt.kept if a.number < attempt.final]
    opened = [a for a in before if a.header.get("kind") == "open"]
    about = [[a.number, a.header, len(a.payload)] for a in opened]
    return Parcel(header | {"opened": about}, b"".join(a.payload for a in opened))


class Hub:
    """The state of a run at the hub; `answer` may be called by many threads."""

    def __init__(
        self,
        names: Sequence[str],
        run: str,
        store: HubStore,
        settings: HubSettings,
        *,
        central: HubPrograms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Goes on where the log ends.

        Args:
            names: of the members, by rank.
            run: what identifies the study and the roster.
            store: the log.
            settings: from the study.
            central: runs a coordinator's program; None: the study does not allow it.
            clock: gives seconds.
        """
        self.names, self.settings, self.store = list(names), settings, store
        self._run, self._central, self._clock = run, central, clock
        if store.fact("run", run) != run:
            raise WireError("the log belongs to another study or another roster.")
        self.step = store.last_step() + 1
        self.ended = ""  # why the run ended; empty: it goes on
        self._attempt: Attempt | None = None
        self._what = self._before = ""
        self._ready: dict[int, _Ready] = {}
        self._gone: set[int] = set()  # lost in this step
        final = store.frozen(self.step)  # what is final in this step
        self._frozen = None if final is None else _Frozen(*final)
        now = clock()
        members = range(len(self.names))
        self._heard = dict.fromkeys(members, now)
        self._done = dict.fromkeys(members, self.step - 1)  # the last step of each
        self._lives: dict[int, str] = {}
        self._torch: dict[int, str] = {}  # versions, for `join --check`
        self._columns: dict[int, bytes] = {}  # the same; see `columns`
        self._left = store.leavers()  # for good
        self._spoke: set[int] = set()  # since this process began
        self._told: set[int] = set()  # that the run has ended
        self._returning: set[int] = set()  # after they were lost
        self._finished: set[int] = set()
        self._short_since: float | None = None
        self._first, self._began, self._total = self.step, now, 0
        self._turn = threading.Condition()

    # What members call.

    def answer(self, rank: int, parcel: Parcel) -> Parcel:
        """The answer to a member's message; waits until there is one."""
        try:
            kind = words(parcel.header, "kind")
            with self._turn:
                self._heard[rank] = self._clock()
                if kind not in ("leave", "check"):
                    self._spoke.add(rank)
                    if rank in self._left:
                        raise WireError(f"{self.names[rank]} has left this run.")
                found = self._kinds.get(kind, Hub._on_call)(self, rank, parcel)
                if kind != "alive" and found.header.get("ended"):
                    self._told.add(rank)
                return found
        except WireError as error:
            return Parcel({"error": str(error)})
        except sqlite3.Error as error:  # such as a full disk
            with self._turn:
                self._end(f"stopped: the hub cannot write its log: {error}")
            return Parcel({"ended": self.ended})

    def _on_hello(self, rank: int, parcel: Parcel) -> Parcel:
        """A process of a member begins."""
        header = parcel.header
        if header.get("protocol") != PROTOCOL:
            raise WireError(
                f"the hub speaks protocol {PROTOCOL}, and this member "
                f"{header.get('protocol')!r}: install the same version of coterie."
            )
        if header.get("run") != self._run:
            raise WireError(
                f"{self.names[rank]} has another study or another roster than the hub."
            )
        if self._has_failed():  # it does not hear an error that it has corrected
            return Parcel({"ended": self.ended, "wait": True})
        life = words(header, "life")
        if self._lives.get(rank) != life:
            self._lives[rank] = life
            self._ready.pop(rank, None)
            if self._attempt is not None and rank in self._attempt.asked:
                self._abort(f"{self.names[rank]} began again", {rank})
        self._done[rank] = whole_number(header, "done", least=-1)
        self._returning.add(rank)
        if self._done[rank] >= self.step:
            raise WireError(
                f"{self.names[rank]} has finished step {self._done[rank]}, but the log "
                f"of the hub ends before step {self.step}: the hub has an old log."
            )
        about = {"patience": self.settings.patience, "least": self.settings.least}
        return Parcel({"step": self.step, "ended": self.ended, **about})

    def _on_begin(self, rank: int, parcel: Parcel) -> Parcel:
        """A member is ready for a step, and gets the attempt in which it takes part."""
        header = parcel.header
        step, after = whole_number(header, "step"), whole_number(header, "after")
        if step > self.step:
            raise WireError(f"the hub is at step {self.step}, it has an old log.")
        self._note_done(rank, step - 1)
        everybody = bool(header.get("everybody"))
        bound = self._bound_by(header.get("lists", []))
        drawn = self._draw_in(header)
        memory = words({"memory": "", **header}, "memory", longest=64)
        ready = _Ready(words(header, "what"), after, everybody, bound, drawn, memory)
        if step == self.step and not self._is_asked(rank, after):
            self._ready[rank] = ready
            self._start_if_ready()

        def look_up() -> Parcel | None:
            if step < self.step:
                return Parcel({"behind": True})
            if self._attempt is None or not self._is_asked(rank, after):
                return None
            return _parcel_of(self._attempt)

        return self._wait(look_up)

    def _draw_in(self, header: dict[str, Any]) -> frozenset[int] | None:
        """The members that may take part in a step; None: all of them."""
        drawn, members = header.get("drawn"), set(range(len(self.names)))
        if drawn is None:
            return None
        if not isinstance(drawn, list) or not drawn or not set(drawn) <= members:
            raise WireError("`drawn` of a message must be a list of ranks.")
        return frozenset(drawn)

    def _bound_by(self, lists: object) -> tuple[int, ...]:
        """Whose rows must be in the sum that a member waits for; empty: anybody's."""
        final = self._frozen.kept[-1].number + 1 if self._frozen else 0
        members = set(range(len(self.names)))
        if not isinstance(lists, list):
            raise WireError("`lists` of a message must be a list.")
        for one in lists:
            sound = isinstance(one, list) and len(one) == 2 and type(one[0]) is int
            if not sound or not isinstance(one[1], list) or not set(one[1]) <= members:
                raise WireError("`lists` of a message must be places with ranks.")
            if one[0] >= final:
                return tuple(one[1])
        return ()

    def _on_call(self, rank: int, parcel: Parcel) -> Parcel:
        """A member calls a verb, or votes."""
        header = dict(parcel.header)
        step, number = whole_number(header, "step"), whole_number(header, "number")
        which = whole_number(header, "attempt", least=1)
        for key in ("step", "attempt", "number"):
            del header[key]
        attempt = self._attempt
        if step != self.step or attempt is None or attempt.number != which:
            return self._too_late(step)
        if not header.pop("again", False):
            final = attempt.final
            attempt.take(rank, number, Parcel(header, parcel.payload))
            if attempt.final > final and self.step >= int(self._set_up_steps()):
                kept = [a for a in attempt.kept if a.number < attempt.final]
                self.store.freeze(self.step, attempt.present, kept)
            if attempt.votes is not None and self._attempt is attempt:
                self._commit(attempt, attempt.votes)
            self._turn.notify_all()

        def look_up() -> Parcel | None:
            if len(attempt.replies) > number:
                return attempt.replies[number][rank]
            return self._too_late(step) if self._attempt is not attempt else None

        return self._wait(look_up)

    def _too_late(self, step: int) -> Parcel:
        """What a member hears whose attempt has ended."""
        return Parcel({"behind": True} if step < self.step else {"aborted": True})

    def _on_log(self, rank: int, parcel: Parcel) -> Parcel:
        """The finished steps from one on, with the answers for this member."""
        step = whole_number(parcel.header, "step")
        self._note_done(rank, step - 1)
        forgotten = range(int(self._set_up_steps()), self.store.first_step())
        if step in forgotten:
            return self._oldest_step(forgotten.stop)
        steps: list[dict[str, Any]] = []
        pieces: list[bytes] = []
        size = 0
        while step < self.step and len(steps) < _BATCH and size < _BATCH_BYTES:
            commit, answers = self.store.commit_of(step), []
            assert commit is not None  # steps are finished in order
            for answer in self.store.answers(step, rank):
                answers.append([answer.header, len(answer.payload)])
                pieces.append(answer.payload)
                size += len(answer.payload)
            about = {**commit._asdict(), "answers": answers}
            steps.append(about)
            step += 1
            if step in forgotten:  # its answers are gone
                break
        return Parcel({"steps": steps, "step": self.step}, b"".join(pieces))

    def _oldest_step(self, first: int) -> Parcel:
        """Where a member goes on that was away longer: at the oldest step in the log.

        The members that have signed the step before it prove the hash of all sums.
        """
        here, before = self.store.commit_of(first), self.store.commit_of(first - 1)
        proof = None if here is None or before is None else before._asdict()
        told = {"proof": proof, "memory": "" if here is None else here.before}
        return Parcel({"forgotten": first, **told})

    def _on_alive(self, rank: int, parcel: Parcel) -> Parcel:
        """A sign of life."""
        return Parcel({"step": self.step, "ended": self.ended})

    def _on_check(self, rank: int, parcel: Parcel) -> Parcel:
        """A member looks whether it could take part; nothing of the run changes.

        It may tell its columns (`columns`), and hears those of the others.
        """
        self._torch[rank] = words(parcel.header, "torch", longest=50)
        if len(parcel.payload) > LARGEST_HEADER:
            raise WireError("a member that looks must send at most 1 MB.")
        if parcel.payload and parcel.header.get("run") == self._run:
            self._columns[rank] = parcel.payload
        others = {r: told for r, told in self._columns.items() if r != rank}
        return Parcel(
            {
                "columns": [[r, len(told)] for r, told in others.items()],
                "protocol": PROTOCOL,
                "run": self._run,
                "clock": time.time(),
                "step": self.step,
                "ended": self.ended,
                "torch": {self.names[r]: text for r, text in self._torch.items()},
            },
            b"".join(others.values()),
        )

    def _on_leave(self, rank: int, parcel: Parcel) -> Parcel:
        """A member leaves the run for good; what was kept for it is deleted."""
        self._left.add(rank)
        self._ready.pop(rank, None)
        self._lives.pop(rank, None)
        self.store.forget_member(rank)
        if self._attempt is not None and rank in self._attempt.asked:
            self._abort(f"{self.names[rank]} has left", {rank})
        self._turn.notify_all()
        return Parcel({"left": True})

    def _on_finish(self, rank: int, parcel: Parcel) -> Parcel:
        """A member has finished all steps of the study."""
        if whole_number(parcel.header, "steps") == self.step:
            self._finished.add(rank)
            if len(self._finished) == len(self.names):
                self._end("done")
        return Parcel({"ended": self.ended})

    def _on_failure(self, rank: int, parcel: Parcel) -> Parcel:
        """A member cannot go on, and says why."""
        self._end(f"failed: {self.names[rank]}: {words(parcel.header, 'reason')}")
        return Parcel({"ended": self.ended})

    def _on_set_up(self, rank: int, parcel: Parcel) -> Parcel:
        """The first steps, whose answers stay in the log, are the set-up."""
        steps = whole_number(parcel.header, "steps")
        self.store.fact("steps of set-up", str(steps))
        self._total = whole_number(parcel.header, "total")
        return Parcel({})

    _kinds: dict[str, Callable[[Hub, int, Parcel], Parcel]] = {  # noqa: RUF012
        "hello": _on_hello,
        "begin": _on_begin,
        "log": _on_log,
        "alive": _on_alive,
        "check": _on_check,
        "leave": _on_leave,
        "finish": _on_finish,
        "failure": _on_failure,
        "set-up": _on_set_up,
    }

    # Attempts.

    def _is_asked(self, rank: int, after: int) -> bool:
        one = self._attempt
        return one is not None and rank in one.asked and one.number > after

    def _set_up_steps(self) -> str:
        return self.store.fact("steps of set-up", "0")

    def _note_done(self, rank: int, done: int) -> None:
        """Keeps how far a member is; mail that it has read is deleted."""
        if done > self._done[rank]:
            self.store.forget_mail(done, rank)
        self._done[rank] = max(done, self._done[rank])

    def _wait(self, found: Callable[[], Parcel | None]) -> Parcel:
        """What `found` gives, as soon as it gives something."""
        end = self._clock() + _POLL
        while True:
            if self._has_failed():
                return Parcel({"ended": self.ended})
            answer = found()
            if answer is not None:
                return answer
            left = end - self._clock()
            if left <= 0:
                return Parcel({"wait": True})
            self._turn.wait(min(left, 1.0))

    def is_lost(self, rank: int) -> bool:
        """Whether a member has left, or has been silent for too long."""
        silent = self._clock() - self._heard[rank]
        return rank in self._left or silent > self.settings.patience

    def _is_far(self, rank: int) -> bool:
        """Whether a member lacks more steps than the others wait for."""
        return self.step - 1 - self._done[rank] > _NEAR

    def _start_if_ready(self) -> None:
        """Begins an attempt as soon as all are ready who can be."""
        if self._attempt is not None or self.ended or not self._ready:
            return
        members = set(range(len(self.names)))
        drawn = next(iter(self._ready.values())).drawn or members
        if self._frozen is not None:
            drawn = drawn & set(self._frozen.present)
        back = {rank for rank in self._ready if not self.is_lost(rank)} & drawn
        ready = back - self._gone
        least = 1 if self._frozen is not None else self.settings.least
        if len(ready) < least:  # those that were lost in this step may be back
            ready = back
        everybody = any(one.everybody for one in self._ready.values())
        away = self._gone | {rank for rank in self._returning if self._is_far(rank)}
        expected = {rank for rank in drawn - away if not self.is_lost(rank)}
        if everybody:
            expected = members
        bound = next((one.bound for one in self._ready.values() if one.bound), ())
        if bound:  # a sum of these may have been opened, so nobody joins a smaller one
            expected = set(bound)
            ready = {rank for rank in self._ready if not self.is_lost(rank)} & expected
            if ready != expected:
                self._short_since = self._short_since or self._clock()
                return
        if not expected <= ready:
            return
        if len(ready) < least:
            self._short_since = self._short_since or self._clock()
            return
        self._short_since = None
        said = {rank: self._ready[rank] for rank in sorted(ready)}
        first = next(iter(said))
        for rank, one in said.items():
            if (one.what, one.drawn) != (said[first].what, said[first].drawn):
                self._end(
                    f"failed: {self.names[first]} and {self.names[rank]} do not do the "
                    f"same: {said[first].what!r} and {one.what!r}"
                )
                return
        self._before = said[first].memory
        self._begin_attempt(list(said), said[first].what)

    def _begin_attempt(self, asked: list[int], what: str) -> None:
        number = self.store.last_attempt(self.step) + 1
        frozen, self._what = self._frozen, what
        present = asked if frozen is None else frozen.present
        before = () if frozen is None else frozen.kept
        self.store.begin(self.step, number, what, present, time.time())
        if self._central is not None:
            self._central.begin(what)
        self._attempt = Attempt(
            number, present, asked, self.names, self._central, before
        )
        for rank in asked:
            self._ready.pop(rank, None)
        self._turn.notify_all()

    def _abort(self, reason: str, lost: set[int]) -> None:
        """Ends the attempt; the others begin the step again without the lost."""
        one = self._attempt
        assert one is not None  # only called during an attempt
        self.store.end(self.step, one.number, reason)
        self._attempt = None
        one.end()
        if self.step >= int(self._set_up_steps()):
            if one.final:
                kept = [a for a in one.kept if a.number < one.final]
                self.store.freeze(self.step, one.present, kept)
                self._frozen = _Frozen(one.present, kept)
            self._gone |= lost
            if one.number >= self.settings.attempts:
                self._end(f"failed: {self._what} failed {one.number} times: {reason}")
        self._turn.notify_all()

    def _commit(self, attempt: Attempt, votes: dict[str, Any]) -> None:
        """Writes the finished step to the log, and goes on with the next."""
        who = tuple(attempt.present)
        commit = Commit(self.step, attempt.number, self._what, who, votes, self._before)
        memory = None if self._central is None else self._central.memory()
        self.store.commit(commit, attempt.kept, memory)
        if self.step % _PRUNE == 0:
            self.store.prune(self.settings.log_bytes)
        for rank in attempt.asked:
            self._done[rank] = self.step
        self.step += 1
        self._attempt, self._gone, self._ready = None, set(), {}
        self._frozen = None
        self._turn.notify_all()

    def _end(self, how: str) -> None:
        self.ended = self.ended or how
        with contextlib.suppress(sqlite3.Error):  # the disk may be full
            self.store.set_fact("ended", self.ended)
        self._turn.notify_all()

    def _has_failed(self) -> bool:
        """Whether the run has ended before its last step."""
        return self.ended.startswith(("failed", "stopped"))

    # What the hub's own clock does.

    def look(self) -> None:
        """Ends an attempt whose member is silent; call it a few times a second."""
        with self._turn:
            now, one = self._clock(), self._attempt
            for rank in range(len(self.names)):
                if self.is_lost(rank):
                    self._returning.add(rank)
                elif not self._is_far(rank):
                    self._returning.discard(rank)
            if one is not None:
                lost = {rank for rank in one.asked if self.is_lost(rank)}
                if lost:
                    who = " and ".join(self.names[r] for r in sorted(lost))
                    self._abort(f"{who} did not answer", lost)
            self._start_if_ready()
            short = self._short_since
            if short is not None and now - short > self.settings.wait:
                self._end(f"failed: {self._shortage()}")

    def _shortage(self) -> str:
        """Why a step could not begin for too long."""
        wait, lost = self.settings.wait, {r for r in self._done if self.is_lost(r)}
        bound = {r for one in self._ready.values() for r in one.bound}
        if bound & lost:
            who = " and ".join(self.names[rank] for rank in sorted(bound & lost))
            return (
                f"{who} was lost when its row was in a sum already, and did not return "
                f"for {wait:g} seconds"
            )
        there = [name for r, name in enumerate(self.names) if r not in lost]
        return (
            f"a step needs at least {self.settings.least} of its members, but for "
            f"{wait:g} seconds only these were present: {', '.join(there) or 'nobody'}"
        )

    def stop(self) -> None:
        """Ends the hub's part, and tells all that wait; the run can go on later."""
        with self._turn:
            if not self.ended:
                self.ended = "stopped: somebody stopped the hub"
            self._turn.notify_all()

    def all_finished(self) -> bool:
        """Whether nobody needs the hub: all have finished, except those lost."""
        with self._turn:
            left = set(range(len(self.names))) - self._finished
            return bool(self._finished) and all(map(self.is_lost, left))

    def all_told(self) -> bool:
        """Whether all members that are there know that the run has ended."""
        with self._turn:
            there = {rank for rank in self._spoke if not self.is_lost(rank)}
            return there <= self._told | self._finished

    def status(self) -> dict[str, Any]:
        """What the page shows."""
        with self._turn:
            members = [
                {
                    "name": name,
                    "there": not self.is_lost(rank) and rank in self._spoke,
                    "step": self._done[rank],
                }
                for rank, name in enumerate(self.names)
            ]
            return {
                "step": self.step,
                "what": self._what,
                "members": members,
                "aborts": self.store.aborts(),
                "ended": self.ended,
                "total": self._total,
                "seconds_left": self._seconds_left(),
            }

    def _seconds_left(self) -> float | None:
        """The time that is left if all steps take as long as those until now."""
        done = self.step - self._first
        if done < 2 or not self._total:
            return None
        each = (self._clock() - self._began) / done
        return each * (self._total - self.step)
