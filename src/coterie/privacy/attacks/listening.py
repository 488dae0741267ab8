"""Somebody who hears all that leaves clients, and looks for canaries in it.

An oracle that wraps an oracle, where rows already are as they leave. Of every row that
client k sends, the attacker takes off what was answered to the last such row, and
projects the rest on the directions u_j of the canaries j of client k:

    along_t = <z_t - answer_(t-1), u_j>.

Where only sums are seen, it is the answer, the same for all, that is projected.

Of mean losses that are told (`told_losses`) it takes the sum of all. Those of a model
that several clients have, and so the attacker too, it compares with what they would be
with the canary, a_j, and without, b_j, while others of the same client count half: by
least squares over questions t, for the canaries j of each client together,

    loss_t - (a_tj + b_tj) / 2  =  sum_j (a_tj - b_tj) s_j,

where without noise s_j is about 1/2 if canary j is in, and else -1/2.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...clients.blends import Release
from ...clients.personal import PersonalOracle
from ...clients.traffic import Sending, Wrap, Wrapping
from ...types import (
    CentralProgram,
    Comparison,
    Federated,
    Message,
    Option,
    Oracle,
    Program,
    tensor_of,
)
from .membership import scores_along
from .residuals import Residuals

_RIDGE = 1e-3
"""Of the least squares that tell the canaries of a client apart, in mean squares."""


@runtime_checkable
class LossesAt(Protocol):
    """What clients would tell of a model that the attacker has."""

    def __call__(
        self, point: Float[Tensor, " d"], *, held_out: bool
    ) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
        """Mean losses of each canary's client, with the canary and without it."""


def _are_one(points: Float[Tensor, "m d"]) -> bool:
    return bool((points == points[0]).all())


class FirstRows(NamedTuple):
    """The first rows that clients sent which told anything, zero of those who did not.

    Changes are those since the start, if rows are models; gradients are the rows.
    """

    changes: Float[Tensor, "n d"]
    rows: Float[Tensor, "n d"]


class Listener:
    """What was heard of each canary, verb by verb."""

    def __init__(
        self,
        clients: Int[Tensor, " c"],
        directions: Float[Tensor, "c d"],
        start: Float[Tensor, "n d"],
        *,
        summed: bool = False,
        losses_at: LossesAt | None = None,
        residuals: Residuals | None = None,
    ) -> None:
        """Nothing yet.

        Args:
            clients: positions of those whose canaries they are.
            directions: in which a canary moves what its client sends.
            start: models that everybody knows.
            summed: whether of averages only sums are seen.
            losses_at: what clients would tell; None: nobody knows.
            residuals: of an auditor who sees inside clients.
        """
        self.residuals = residuals
        self.summed, self._start = summed, start
        self._clients, self._directions = clients, directions
        self._along: dict[str, list[Tensor]] = {}
        self._answers: dict[str, Tensor] = {}
        self.first_rows: FirstRows | None = None
        self._losses_at = losses_at
        self._losses: list[tuple[Tensor, Tensor]] = []  # (c,) left and right sides
        self._told: Tensor | None = None  # sums of losses

    def row(self, place: str, rows: Tensor, answer: Tensor, sends: Tensor) -> None:
        """A row of each client who sends, and what was answered."""
        if rows.shape != self._start.shape:
            return  # a few numbers, not a model or gradient
        away = rows - self._answers.get(place, self._start)
        away = torch.where(sends[:, None], away, 0.0)
        self._record(away, torch.where(sends[:, None], rows, 0.0))
        self.change(place, away)
        if answer.shape == rows.shape:
            self._answers[place] = answer

    def change(self, place: str, rows: Float[Tensor, "n d"]) -> None:
        """Rows that are changes already, as gradients are."""
        if not bool(rows.any()):
            return  # everybody sent what is known, as methods do that begin
        self._record(rows, rows)
        along = (rows[self._clients] * self._directions).sum(1)
        self._along.setdefault(place, []).append(along.double().cpu())

    def _record(self, changes: Tensor, rows: Tensor) -> None:
        if self.first_rows is None and bool(changes.any()):
            self.first_rows = FirstRows(changes.clone(), rows.clone())

    def loss(
        self,
        who: Int[Tensor, " m"],
        points: Float[Tensor, "m d"],
        means: Float[Tensor, " m"],
        *,
        held_out: bool,
    ) -> None:
        """Mean losses that these clients tell of models, on which samples of theirs."""
        told = means.new_full((len(self._start),), torch.nan).double()
        told[who] = means.detach().double()
        loss = told[self._clients]
        self._told = loss.nan_to_num(0.0) + (0.0 if self._told is None else self._told)
        if self._losses_at is None or len(points) < 2 or not _are_one(points):
            return  # the model need not have left its client
        inside, outside = self._losses_at(points[0], held_out=held_out)
        gap = torch.where(loss.isnan(), 0.0, inside - outside)
        away = (loss - (inside + outside) / 2).nan_to_num(0.0)
        self._losses.append((away.cpu(), gap.cpu()))

    def scores(self) -> dict[str, Float[Tensor, " c"]]:
        """For each canary, how much it looks as if it were in, by every attack.

        A sum of losses may as well be smaller.
        """
        found = self._of_rows()
        if self._told is not None:
            found["sum of losses"] = self._told.cpu()
        if self._losses:
            found["losses"] = self._of_losses()
        return found

    def _of_losses(self) -> Float[Tensor, " c"]:
        away, gap = (torch.stack(each) for each in zip(*self._losses, strict=True))
        found = torch.zeros_like(away[0])
        for one in self._clients.unique().tolist():
            mine = self._clients.cpu() == one
            a, y = gap[:, mine], away[:, mine].mean(1)
            among = a.T @ a
            ridge = _RIDGE * among.diagonal().mean().clamp(min=1e-30)
            among = among + ridge * torch.eye(len(among)).to(among)
            found[mine] = torch.linalg.solve(among, a.T @ y)
        return found

    def _of_rows(self) -> dict[str, Float[Tensor, " c"]]:
        found = [scores_along(torch.stack(along)) for along in self._along.values()]
        return {
            name: torch.stack([scores[name] for scores in found]).sum(0)
            for name in (found[0] if found else ())
        }


class ListeningOracle(Wrapping[Sending]):
    """An oracle with somebody who listens; see `coterie.types.Oracle`.

    Of gradients, client programs (but see `told_losses`) and comparisons nobody hears.
    """

    def __init__(self, oracle: Sending, listener: Listener) -> None:
        """Wraps an oracle; what leaves is told to `listener`."""
        super().__init__(oracle)
        self._listener = listener

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """As it is."""
        return self._oracle.grads(x)

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """As it is."""
        return self._oracle.each(program, *rows, who=who, at_home=at_home, **options)

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Weighted means, of rows that are heard, or of which the sum is."""
        found = self._oracle.average(shares, rows, groups, count=count)
        self._check_residuals(rows)
        seen = found if self._listener.summed else tensor_of(rows)
        self._listener.row("average", seen, found, self.active)
        return found

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures of rows that are heard."""
        found = self._oracle.mix(weights, rows, exchanges=exchanges, gamma=gamma)
        self._check_residuals(rows)
        self._listener.row("mix", tensor_of(rows), found, self.active)
        return found

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """What a coordinator makes of rows that are heard."""
        server, *found = self._oracle.central(program, server, *rows, **options)
        self._check_residuals(*rows)
        for j, row in enumerate(map(tensor_of, rows)):
            answer = found[j] if j < len(found) else row
            self._listener.row(f"central {j}", row, answer, self.active)
        return server, *found

    def blended(
        self,
        x: Tensor,
        weights: Tensor,
        *,
        home: Bool[Tensor, " d"] | None = None,
        release: Release | None = None,
    ) -> Tensor:
        """Blends of gradients, of which those for others are heard."""
        shared = x.shape[1] if home is None else int((~home).sum())
        sums = x.new_zeros(len(x), shared)

        def leaves(g: Tensor, readers: Tensor, contributors: Tensor) -> Tensor:
            z = g if release is None else release(g, readers, contributors)
            others = readers != contributors
            sums.index_add_(0, contributors[others], z[others])
            if self._listener.residuals is not None:
                zero = torch.zeros_like(g[others])
                self._listener.residuals.add(g[others], zero, z[others])
            return z

        found = self._oracle.blended(x, weights, home=home, release=leaves)
        self._listener.change("blended", sums)
        return found

    def compare(self, x: Tensor, **settings: Any) -> Comparison:
        """As it is."""
        return self._oracle.compare(x, **settings)

    def _check_residuals(self, *rows: Message) -> None:
        if self._listener.residuals is not None:
            self._listener.residuals.see_releases(
                [tensor_of(row) for row in rows], self.active
            )

    def wrapped(self, wrap: Wrap) -> Sending:
        """What the wrap makes of it."""
        return wrap(self)

    def without(self, absent: Bool[Tensor, " n"]) -> Sending:
        """The same round, where these of all clients take no part."""
        return ListeningOracle(self._oracle.without(absent), self._listener)


class OverheardClients:
    """Clients with somebody who listens in every round; see `types.Federated`."""

    def __init__(self, clients: Federated, listener: Listener) -> None:
        """Of these clients, in one process."""
        self._clients, self._listener = clients, listener

    def __len__(self) -> int:
        return len(self._clients)

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> Oracle:
        """The oracle of round t."""
        oracle = self._clients.at(t, active, purpose=purpose)
        assert isinstance(oracle, Sending | PersonalOracle)  # which may be wrapped
        return oracle.wrapped(lambda inner: ListeningOracle(inner, self._listener))
