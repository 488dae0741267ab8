"""How processes that divide a federation reach each other's rows.

Process r of R holds a block of neighbouring clients. The verbs of an oracle need a
few collectives, all of which every process calls in the same order. A process that
holds all clients is alone, and they do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

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
        """The sum over all processes, the same bits in each."""

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes, one below the other; process r has counts[r]."""

    def exchange(
        self, parts: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """Part j goes to process j; from it come counts[j] rows."""

    def collect(
        self, rows: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor] | None:
        """The rows of all processes in process 0, None elsewhere: one message each."""

    def hand_out(
        self, rows: Sequence[Tensor] | str | None, counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """Process r gets its counts[r] rows of each tensor that process 0 has.

        Raises:
            InputError: in every process, where process 0 has a text, why it refuses.
        """

    def gather(self, value: Found) -> list[Found]:
        """What every process says, in each of them: values of a few known types."""


class SingleProcess:
    """One process that holds all clients."""

    rank, size = 0, 1

    def sum(self, values: Tensor) -> Tensor:
        """The values."""
        return values

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows."""
        return rows

    def exchange(
        self, parts: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """The parts."""
        return parts

    def collect(
        self, rows: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor] | None:
        """The rows."""
        return rows

    def hand_out(
        self, rows: Sequence[Tensor] | str | None, counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """The rows."""
        assert rows is not None
        return refuse_text(rows)

    def gather(self, value: Found) -> list[Found]:
        """What this process says."""
        return [value]


def refuse_text(rows: Sequence[Tensor] | str) -> Sequence[Tensor]:
    """The rows, where process 0 has some, and not a reason to refuse."""
    if isinstance(rows, str):
        raise InputError(rows)
    return rows


def average_rows(group: Group, shares: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Means (.., D) of the rows of all processes, and the sums (.., 1) of shares.

    The sum of shares travels with the rows, as one more column.

    Args:
        group: the processes.
        shares: (n,) or (C, n) of the clients at hand.
        rows: (n, D).
    """
    total = shares.sum(-1, keepdim=True)
    if group.size == 1:
        return weighted_sums(shares / torch.where(total > 0, total, 1), rows), total
    sums = group.sum(torch.cat([weighted_sums(shares, rows), total], -1))
    found, total = sums[..., :-1], sums[..., -1:]
    return found / torch.where(total > 0, total, 1), total


def blocks(clients: int, processes: int) -> list[int]:
    """How many of the clients each process holds, as equal as can be.

    >>> blocks(7, 3)
    [3, 2, 2]

    Raises:
        InputError: where there are more processes than clients.
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
    """The rows of those of all clients that any of the clients at hand wants.

    Args:
        group: the processes.
        rows: of the clients at hand.
        wanted: (N, N) whether client i wants the row of client k.
        counts: how many clients each process holds.
    """
    by_process = torch.stack([some.any(0) for some in wanted.split(list(counts))])
    return _exchange_rows(group, rows, by_process, counts)


def _exchange_rows(
    group: Group, rows: Tensor, wanted: Tensor, counts: Sequence[int]
) -> Tensor:
    """The same, where wanted (R, N) says which rows each process wants."""
    first = sum(counts[: group.rank])
    mine = slice(first, first + counts[group.rank])
    parts = [rows[some[mine]] for some in wanted]
    from_each = [int(part.sum()) for part in wanted[group.rank].split(list(counts))]
    return torch.cat(list(group.exchange(parts, from_each)))


def weighted_sums(weights: Tensor, rows: Tensor) -> Tensor:
    """The product `weights @ rows`, where a weight of zero means "not used".

    A row that is not finite makes NaN of the sums that use it, and of no others.

    >>> rows = torch.tensor([[1.0], [torch.inf]])
    >>> weighted_sums(torch.eye(2), rows)[0]
    tensor([1.])

    Args:
        weights: (m,) or (.., m), dense.
        rows: (m, D).
    """
    if not rows.is_cuda:  # where asking would wait
        found = weights @ rows
        # Zero times infinite is no number; where all are used, one sum shows it.
        alike = found.dim() > 1 and len(found) and bool((weights != 0).all())
        if bool((found[0] if alike else found).sum().isfinite()):
            return found
    lost = ~torch.linalg.vector_norm(rows, torch.inf, dim=1).isfinite()
    found = weights @ torch.where(lost[:, None], 0, rows)
    uses = ((weights != 0) & lost).any(-1, keepdim=True)
    return torch.where(uses, torch.nan, found)


def of_present(weights: Tensor, present: Tensor, start: int = 0) -> Tensor:
    """The weights without those that others have for rows of absent clients.

    Everybody keeps the weight of its own row, which it need not be sent.

    Args:
        weights: (N, N), or (n, N) of the clients at hand; sparse or not.
        present: (N,) who takes part.
        start: where the clients at hand begin among all, if the weights are theirs.
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
    """Sparse weights that hold no zeros, which would count as used."""
    values = weights.values() if weights.layout == torch.sparse_csr else None
    if values is not None and bool((values != 0).all()):
        return weights
    places, values = _entries(weights)
    there = values != 0
    return _sparse(places[:, there], values[there], weights.shape)


def _entries(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Where (2, e) sparse weights are, in order, and what they are (e,)."""
    sparse = weights.to_sparse_coo().coalesce()
    return sparse.indices(), sparse.values()


def _sparse(places: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """The opposite: places are in order, and none stands twice."""
    return torch.sparse_coo_tensor(
        places, values, tuple(shape), check_invariants=False, is_coalesced=True
    )


def mix_rows(group: Group, weights: Tensor, rows: Tensor) -> Tensor:
    """Row i is sum_k weights[i, k] rows[k] over all clients, for i at hand.

    A weight of zero means "not used". Sparse weights stay so: of N x N numbers only
    those that are there are looked at.

    Args:
        group: the processes.
        weights: (N, N), sparse or not.
        rows: of the clients at hand.
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
    """The same, where each process knows the weights of its own clients alone.

    They are mutual, so that a client sends its row to those for whom it has a weight.
    Each row travels with the position of its client.

    Args:
        group: the processes.
        weights: (n, N) of the clients at hand, sparse or not.
        rows: of the clients at hand.
        present: (N,) who takes part: nobody else sends.

    Raises:
        InputError: where weights turn out not to be mutual.
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
            "weights of the clients at hand must be mutual: who has a weight for "
            "another client sends its row to it, and needs that client's."
        )
    return weighted_sums(used[:, needs], there[:, :-1]).view(rows.shape)


def return_answers(
    group: Group, answers: Tensor, wanted: Tensor, rows: Tensor
) -> Tensor:
    """The sum of what all processes answer to each of the clients at hand.

    Args:
        group: the processes.
        answers: to those whose rows were fetched.
        wanted: as they were fetched.
        rows: of the clients at hand.
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
    """Where the clients of this process stand among all.

    >>> block(7, SingleProcess())
    slice(0, 7, None)
    """
    counts = blocks(clients, group.size)
    first = sum(counts[: group.rank])
    return slice(first, first + counts[group.rank])
