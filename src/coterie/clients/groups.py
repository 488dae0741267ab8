"""Groups of processes, and how they exchange the rows of their clients.

Process r of R holds a block of consecutive clients, the clients at hand. The methods of
an oracle, such as `average`, need a few collective operations. All processes must call
these in the same order. A single process holds all clients, and its collective
operations exchange nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from ..checks import InputError

Found = TypeVar("Found")


@runtime_checkable
class Group(Protocol):
    """The processes among which clients are divided."""

    rank: int
    size: int

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, with the same bits in each."""

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes, in order; counts[r] are from process r."""

    def exchange(
        self, parts: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """The parts that this process receives: counts[j] rows from process j.

        Part j of `parts` goes to process j.
        """

    def collect(
        self, rows: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor] | None:
        """In process 0, the rows of all processes; in other processes, None."""

    def hand_out(
        self, rows: Sequence[Tensor] | str | None, counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """The rows from process 0 to this process r: counts[r] of each tensor.

        Raises:
            InputError: in every process, if process 0 gives a text, which is the
                message.
        """

    def gather(self, value: Found) -> list[Found]:
        """In each process, the values of all; only a few types can be sent."""


@runtime_checkable
class WithCoordinator(Protocol):
    """A group whose coordinator is not one of the processes, but a hub."""

    def ask_coordinator(
        self,
        program: Callable[..., tuple[Any, ...]],
        rows: Sequence[Tensor],
        options: dict[str, Any],
    ) -> Sequence[Tensor]:
        """This process's rows of the answers of a coordinator's program.

        Args:
            program: the hub runs its own copy of it.
            rows: of the clients at hand that take part.
            options: plain values.

        Raises:
            InputError: in every process, if the program refuses the rows.
        """


@runtime_checkable
class WithBlank(Protocol):
    """A group that can be reached in rounds only."""

    @property
    def blank(self) -> Group:
        """A group of the same size that reaches nobody, to try methods without data."""


@runtime_checkable
class KnowsSizes(Protocol):
    """A group whose clients have told their numbers of training samples before."""

    sizes: Tensor  # (N,)


@runtime_checkable
class HidesRows(Protocol):
    """A group in which nobody may see a sum of too few rows."""

    def refuse_few(self, shares: Tensor) -> None:
        """Refuses averages in which too few members have a share.

        Args:
            shares: () or (C,) of this member, in each average.

        Raises:
            InputError: in every process.
        """


class SingleProcess:
    """One process that holds all clients."""

    rank, size = 0, 1

    def sum(self, values: Tensor) -> Tensor:
        """The values, unchanged."""
        return values

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows."""
        return rows

    def exchange(
        self, parts: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """The parts, unchanged."""
        return parts

    def collect(
        self, rows: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor] | None:
        """The rows."""
        return rows

    def hand_out(
        self, rows: Sequence[Tensor] | str | None, counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """The rows, unchanged."""
        assert rows is not None
        return refuse_text(rows)

    def gather(self, value: Found) -> list[Found]:
        """The value of this process, as a list."""
        return [value]


def refuse_text(rows: Sequence[Tensor] | str) -> Sequence[Tensor]:
    """The rows from process 0; raises InputError if it sent an error instead."""
    if isinstance(rows, str):
        raise InputError(rows)
    return rows


def average_rows(group: Group, shares: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted means (.., D) of the rows of all processes, and sums of the shares.

    The sums (.., 1) of shares travel with the rows, as one more column.

    Args:
        group: the processes.
        shares: (n,) or (C, n) the weights of the clients at hand.
        rows: (n, D).
    """
    total = shares.sum(-1, keepdim=True)
    if group.size == 1:
        return weighted_sums(shares / torch.where(total > 0, total, 1), rows), total
    if isinstance(group, HidesRows):
        group.refuse_few(total[..., 0])
    sums = group.sum(torch.cat([weighted_sums(shares, rows), total], -1))
    found, total = sums[..., :-1], sums[..., -1:]
    return found / torch.where(total > 0, total, 1), total


def blocks(clients: int, processes: int) -> list[int]:
    """The number of clients of each process, as equal as possible.

    >>> blocks(7, 3)
    [3, 2, 2]

    Raises:
        InputError: if there are more processes than clients.
    """
    if processes > clients:
        raise InputError(
            f"there must be at most as many processes as clients, {clients}, got "
            f"{processes}."
        )
    least, more = divmod(clients, processes)
    return [least + (r < more) for r in range(processes)]


def fetch_rows(
    group: Group, rows: Tensor, wanted: Tensor, counts: Sequence[int]
) -> Tensor:
    """The rows that clients of this process want, from all processes.

    Args:
        group: the processes.
        rows: the rows of the clients at hand.
        wanted: (N, N) whether client i wants the row of client k.
        counts: the number of clients of each process.
    """
    by_process = torch.stack([some.any(0) for some in wanted.split(list(counts))])
    return _exchange_rows(group, rows, by_process, counts)


def _exchange_rows(
    group: Group, rows: Tensor, wanted: Tensor, counts: Sequence[int]
) -> Tensor:
    """The rows that this process wants. Row r of `wanted` (R, N) is for process r."""
    first = sum(counts[: group.rank])
    mine = slice(first, first + counts[group.rank])
    parts = [rows[some[mine]] for some in wanted]
    from_each = [int(part.sum()) for part in wanted[group.rank].split(list(counts))]
    return torch.cat(list(group.exchange(parts, from_each)))


def weighted_sums(weights: Tensor, rows: Tensor) -> Tensor:
    """The product `weights @ rows`, where rows of weight zero are not used.

    If a row is not finite, only the sums that use it are NaN.

    >>> rows = torch.tensor([[1.0], [torch.inf]])
    >>> weighted_sums(torch.eye(2), rows)[0]
    tensor([1.])

    Args:
        weights: (m,) or (.., m), dense.
        rows: (m, D).
    """
    if not rows.is_cuda:  # a look at values would wait for the device there
        found = weights @ rows
        # Zero times infinity is NaN. If every sum uses every row, one sum shows it.
        alike = found.dim() > 1 and len(found) and bool((weights != 0).all())
        if bool((found[0] if alike else found).sum().isfinite()):
            return found
    lost = ~torch.linalg.vector_norm(rows, torch.inf, dim=1).isfinite()
    found = weights @ torch.where(lost[:, None], 0, rows)
    uses = ((weights != 0) & lost).any(-1, keepdim=True)
    return torch.where(uses, torch.nan, found)


def of_present(weights: Tensor, present: Tensor, start: int = 0) -> Tensor:
    """The weights, with 0 for the rows of absent clients.

    An absent client keeps the weight that it has for its own row, because this row is
    not sent.

    Args:
        weights: (N, N), or (n, N) of the clients at hand; sparse or not.
        present: (N,) which clients take part.
        start: the position of the first client at hand, if the weights are (n, N).
    """
    first = start if len(weights) < len(present) else 0
    if weights.layout == torch.strided:
        places = torch.arange(len(present), device=weights.device)
        own = places[first : first + len(weights), None] == places
        return torch.where(present.to(weights.device) | own, weights, 0)
    places, values = _entries(weights)
    i, k = places
    used = present.to(i.device)[k] | (i + first == k)
    return _sparse(places[:, used], values[used], weights.shape)


def _without_zeros(weights: Tensor) -> Tensor:
    """Sparse weights without stored zeros, which would count as used."""
    values = weights.values() if weights.layout == torch.sparse_csr else None
    if values is not None and bool((values != 0).all()):
        return weights
    places, values = _entries(weights)
    there = values != 0
    return _sparse(places[:, there], values[there], weights.shape)


def _entries(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted positions (2, e) of the entries of sparse weights, and values (e,)."""
    sparse = weights.to_sparse_coo().coalesce()
    return sparse.indices(), sparse.values()


def _sparse(places: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """A sparse tensor of these values at these sorted and distinct positions."""
    return torch.sparse_coo_tensor(
        places, values, tuple(shape), check_invariants=False, is_coalesced=True
    )


def mix_rows(group: Group, weights: Tensor, rows: Tensor) -> Tensor:
    """Mixtures for the clients i at hand: row i is sum_k weights[i, k] rows[k].

    The sum runs over all clients. Rows of weight zero are not used. Sparse weights are
    never made dense.

    Args:
        group: the processes.
        weights: (N, N), sparse or not.
        rows: the rows of the clients at hand.
    """
    dense = weights.layout == torch.strided
    if group.size == 1:
        return weighted_sums(weights, rows) if dense else _without_zeros(weights) @ rows
    counts, mine = blocks(len(weights), group.size), block(len(weights), group)
    if dense:
        wanted = torch.stack([(some != 0).any(0) for some in weights.split(counts)])
        own = weights[mine][:, wanted[group.rank]]
        return weighted_sums(own, _exchange_rows(group, rows, wanted, counts))
    (i, k), values = _entries(_without_zeros(weights))
    ends = torch.tensor(counts, device=i.device).cumsum(0)
    reader = torch.bucketize(i, ends, right=True)  # which process
    wanted = i.new_zeros(group.size, len(weights), dtype=torch.bool)
    wanted[reader, k] = True
    place, here = wanted[group.rank].cumsum(0) - 1, reader == group.rank
    size = counts[group.rank], int(wanted[group.rank].sum())
    index = torch.stack([i[here] - mine.start, place[k[here]]])
    return _sparse(index, values[here], size) @ _exchange_rows(
        group, rows, wanted, counts
    )


def mix_rows_at_hand(
    group: Group, weights: Tensor, rows: Tensor, present: Tensor
) -> Tensor:
    """Like `mix_rows`, but each process knows only the weights of its own clients.

    Weights are mutual: if client i has a weight for client k, then k has one for i. A
    client sends its row to the clients for which it has a weight. Each row is sent with
    the position of its client.

    Args:
        group: the processes.
        weights: (n, N) of the clients at hand, sparse or not.
        rows: the rows of the clients at hand.
        present: (N,) which clients take part; the others send nothing.

    Raises:
        InputError: if weights are not mutual.
    """
    asks, mine = weights.to_dense() != 0, block(len(present), group)
    counts, present = blocks(len(present), group.size), present.to(asks.device)
    used = of_present(weights.to_dense(), present, mine.start)
    needs = (used != 0).any(0)  # (N,)
    gives = [some.any(1) & present[mine] for some in asks.split(counts, 1)]
    gives[group.rank] = needs[mine]  # which are here
    places = torch.arange(len(present), device=rows.device).to(rows)
    flat = torch.cat([rows.reshape(len(rows), -1), places[mine, None]], 1)
    from_each = [int(need.sum()) for need in needs.split(counts)]
    there = torch.cat(list(group.exchange([flat[some] for some in gives], from_each)))
    if not torch.equal(there[:, -1], places[needs]):
        raise InputError(
            "weights of the clients at hand must be mutual: if client i has a weight "
            "for client k, k must have one for i."
        )
    return weighted_sums(used[:, needs], there[:, :-1]).view(rows.shape)


def return_answers(
    group: Group, answers: Tensor, wanted: Tensor, rows: Tensor
) -> Tensor:
    """The sum of the answers of all processes to each client at hand.

    Args:
        group: the processes.
        answers: the answers to the clients whose rows were fetched.
        wanted: the same argument as for `fetch_rows`.
        rows: the rows of the clients at hand.
    """
    counts, mine = blocks(len(wanted), group.size), block(len(wanted), group)
    asked = [int(part.sum()) for part in wanted[mine].any(0).split(counts)]
    askers = [some[:, mine].any(0) for some in wanted.split(counts)]
    back = group.exchange(
        list(answers.split(asked)), [int(asker.sum()) for asker in askers]
    )
    total = torch.zeros_like(rows)
    for asker, part in zip(askers, back, strict=True):
        total[asker] += part
    return total


def block(clients: int, group: Group) -> slice:
    """The positions of the clients of this process among all.

    >>> block(7, SingleProcess())
    slice(0, 7, None)
    """
    counts = blocks(clients, group.size)
    first = sum(counts[: group.rank])
    return slice(first, first + counts[group.rank])
