"""The other members as a group of processes, and calls that wait for all of them.

`SiteGroup` is the group (`coterie.clients.groups`) of a process that holds one client.
The other processes are the other members, and the hub connects them. How rows travel is
in `verbs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ...checks import InputError
from ..messages import decode, encode
from .masks import grid_for, pack_parts
from .noise import site_noise, with_noise
from .verbs import (
    LiveAttempt,
    ReplayVerbs,
    SumChain,
    Verbs,
    refuse_other_kind,
    values_of_all,
)
from .wire import Parcel, WireError, arrays_of, bytes_of, describe_arrays


class AttemptOver(RuntimeError):
    """The signal that the attempt has ended, because a member was lost."""


class Behind(RuntimeError):
    """The signal that the others have finished this step without this member."""


class RunOver(RuntimeError):
    """The signal that the hub has ended the run; the text says why."""


@runtime_checkable
class Channel(Protocol):
    """A connection to the hub."""

    def ask(self, parcel: Parcel, *, patiently: bool = True) -> Parcel:
        """The hub's answer to a message."""

    def close(self) -> None:
        """Ends the connection."""


class LiveCalls:
    """The calls of an attempt that is going on."""

    def __init__(
        self,
        ask: Callable[[Parcel], Parcel],
        started: LiveAttempt,
        note: Callable[[LiveAttempt, Parcel], None],
    ) -> None:
        """Calls verbs in this attempt.

        Args:
            ask: sends a message to the hub.
            started: the attempt.
            note: keeps what leaves this site, before it leaves.
        """
        self._ask, self._started, self._note = ask, started, note
        self._number = 0

    def call(self, parcel: Parcel) -> Parcel:
        """The hub's answer, when all members have made the same call."""
        self._note(self._started, parcel)
        place = {
            "step": self._started.step,
            "attempt": self._started.number,
            "number": self._number,
        }
        found = self._ask(Parcel(parcel.header | place, parcel.payload))
        while found.header.get("wait"):
            kind = {"kind": parcel.header["kind"], "again": True}
            found = self._ask(Parcel(kind | place))
        self._number += 1
        if found.header.get("aborted"):
            raise AttemptOver
        if found.header.get("behind"):
            raise Behind
        if "ended" in found.header:
            raise RunOver(found.header["ended"])
        return found


def _refuse_coordinator(group: object, rows: Any, counts: Sequence[int]) -> Any:
    """Never anything: the hub is the coordinator, and no member."""
    raise InputError("no member collects or hands out the rows of others.")


class SiteGroup:
    """The members of a run, one in each process; see `coterie.clients.groups.Group`."""

    def __init__(self, rank: int, size: int) -> None:
        """The group as this member sees it; `verbs` is set for every step."""
        self.rank, self.size = rank, size
        self.verbs: Verbs | None = None
        self.chain = SumChain()  # that of the member
        self.refuse_program: Callable[[Callable[..., Any]], None] = _trust_nobody
        self.noise, self.grid = site_noise(), grid_for(2.0**28, 1.0, size)
        self.sizes = torch.zeros(size, dtype=torch.int64)  # of training parts, if told
        self.least = 0  # members in an average that others see; 0: they see each row

    @property
    def blank(self) -> BlankGroup:
        """The members without a hub, to try methods without data."""
        return BlankGroup(self.rank, self.size, self.sizes)

    def forget(self) -> None:
        """Ends an attempt: noise that was due has no row any more."""
        self.verbs = None
        assert self.noise.whole is not None
        self.noise.whole.forget()

    def _verbs(self) -> Verbs:
        if self.verbs is None:
            raise InputError(
                "a method asked other members outside of a round, which it cannot do "
                "between sites."
            )
        assert self.noise.whole is not None
        self.noise.whole.refuse_due()
        return self.verbs

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all members that take part."""
        noisy = with_noise(_to_numpy(values), self.noise, self.grid)
        return _to_tensor(self._verbs().sum(noisy), values.shape, values)

    def refuse_few(self, shares: Tensor) -> None:
        """Refuses averages in which fewer than `least` members have a share.

        The number of members that are present is checked before. But in an average of
        a group, or with a share of 0, fewer rows are in the sum. So the members first
        add up how many are in each group, and all see these numbers.
        """
        replays = isinstance(self.verbs, ReplayVerbs)
        if not self.least or (replays and not shares.dim()):
            return
        if not shares.dim():
            if not bool(shares != 0):
                raise InputError(
                    "between sites, every present member must have a share in an "
                    "average: set `sites.masks = false`, or take another method."
                )
            return
        assert self.noise.whole is not None
        self.noise.whole.refuse_due()
        counts = self.sum((shares != 0).long())
        few = counts[(counts > 0) & (counts < self.least)]
        if len(few):
            raise InputError(
                f"a group of {int(few[0])} members would show their rows, because "
                f"`sites.least_members` is {self.least}: take fewer groups, or a "
                "method without groups."
            )

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all members; each sends its rows to all others."""
        return torch.cat(self.exchange([rows] * self.size, counts))

    def exchange(self, parts: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """The rows that this member receives; part j goes to member j."""
        to = [j for j, part in enumerate(parts) if len(part) and j != self.rank]
        mail = self._verbs().mail({j: _to_numpy(parts[j]) for j in to})
        like, shape = parts[self.rank], parts[self.rank].shape[1:]
        received = {self.rank: like}
        for sender, array in mail.items():
            if sender == self.rank or not 0 <= sender < self.size:
                raise WireError("mail names a sender that does not exist.")
            received[sender] = _to_tensor(array, (counts[sender], *shape), like)
        nothing = like[:0]
        found_rows = [received.get(j, nothing) for j in range(self.size)]
        for j, (part, count) in enumerate(zip(found_rows, counts, strict=True)):
            if len(part) != count:
                raise InputError(
                    f"this member waits for {count} rows of member {j} and has "
                    f"{len(part)}: weights of the clients at hand must be mutual."
                )
        return found_rows

    collect = hand_out = _refuse_coordinator

    def ask_coordinator(
        self,
        program: Callable[..., tuple[Any, ...]],
        rows: Sequence[Tensor],
        options: dict[str, Any],
    ) -> Sequence[Tensor]:
        """This member's answers of a coordinator's program, which the hub runs."""
        self.refuse_program(program)
        named = f"{program.__module__}:{program.__qualname__}"
        header = {"kind": "central", "program": named, "options": options}
        sent = [_to_numpy(row) for row in rows]
        about = header | {"arrays": describe_arrays(sent)}
        found = self._verbs().call(Parcel(about, bytes_of(sent)))
        refuse_other_kind("central", found)
        if "refused" in found.header:
            raise InputError(str(found.header["refused"]))
        arrays = arrays_of(found.header.get("arrays"), found.payload)
        return [torch.from_numpy(array.copy()) for array in arrays]

    def gather(self, value: Any) -> list[Any]:
        """The values of all members; only a few types can be sent.

        The hub relays them, and could tell every member other values, such as sizes
        with which a sum is nearly one member's row. So all go into the chain of sums:
        later masks vanish, and votes agree, only if all members have the same values,
        and each its own one.
        """
        verbs, own = self._verbs(), encode(value)
        found = verbs.call(Parcel({"kind": "gather"}, own))
        values = values_of_all(found, range(self.size))
        if values[self.rank] != own and not isinstance(verbs, ReplayVerbs):
            raise InputError("the hub has changed what this member told the others.")
        told = pack_parts(*(values[rank] for rank in range(self.size)))
        self.chain.note(np.frombuffer(told, np.uint8))
        return [_value_of(rank, values[rank]) for rank in range(self.size)]


def _trust_nobody(program: Callable[..., Any]) -> None:
    raise InputError(
        f"the coordinator's program {program.__qualname__} sees rows in the clear: the "
        "study must say `sites.trust_coordinator = true`, and every site must allow it."
    )


class BlankGroup:
    """The members without a hub: nothing is sent.

    Sums are as if all members had sent the same, and the rows of others are zero.

    It serves to make a state with the right fields and shapes.
    """

    def __init__(self, rank: int, size: int, sizes: Tensor) -> None:
        self.rank, self.size, self.sizes = rank, size, sizes

    def sum(self, values: Tensor) -> Tensor:
        """The values of this member, as often as there are members."""
        return values * self.size

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Zeros."""
        return torch.cat(self.exchange([rows] * self.size, counts))

    def exchange(self, parts: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Zeros, and this member's own part."""
        own = parts[self.rank]
        found = [own.new_zeros(count, *own.shape[1:]) for count in counts]
        found[self.rank] = own
        return found

    collect = hand_out = _refuse_coordinator

    def gather(self, value: Any) -> list[Any]:
        """The value of this member, for all."""
        return [value] * self.size

    def ask_coordinator(
        self,
        program: Callable[..., tuple[Any, ...]],
        rows: Sequence[Tensor],
        options: dict[str, Any],
    ) -> Sequence[Tensor]:
        """The answers if all members had the rows of this one."""
        given = [row.expand(self.size, *row.shape[1:]) for row in rows]
        _, *answers = program(None, torch.arange(self.size), *given, **options)
        return [answer[self.rank : self.rank + 1] for answer in answers]


def _value_of(rank: int, raw: bytes) -> Any:
    """The value that a member has sent."""
    try:
        return decode(raw)
    except Exception as error:  # safetensors has an error of its own
        raise WireError(
            f"what member {rank} sent to all cannot be read: {type(error).__name__}."
        ) from None


def _to_numpy(row: Tensor) -> np.ndarray:
    return row.detach().cpu().contiguous().numpy()


def _to_tensor(array: np.ndarray, shape: Sequence[int], like: Tensor) -> Tensor:
    """The array as a tensor of this shape, and of the type of `like`."""
    found = torch.from_numpy(array.copy())
    if tuple(found.shape) != tuple(shape) or found.dtype != like.dtype:
        raise WireError(
            f"rows of shape {tuple(shape)} and type {like.dtype} were expected, but "
            f"the hub sent {tuple(found.shape)} and {found.dtype}."
        )
    return found.to(like.device)
