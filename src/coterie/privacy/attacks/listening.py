"""An attacker that sees all that leaves clients, and looks for canaries there.

The attacker is an oracle. It wraps another oracle at the place where rows leave. Client
k sends rows z_t. From each row, the attacker subtracts the answer that the client
received for its previous row. Every canary j of client k moves rows in a direction u_j.
The attacker projects the difference on u_j:

    along_t = <z_t - answer_(t-1), u_j>.

If the attacker sees only sums, it projects the answer, which is the same for all
clients.

The attacker also adds up all mean losses that clients send (`told_losses`). If several
clients have the same model, the attacker has that model too. For every question t about
losses, it computes two expected losses: a_tj with canary j, and b_tj without it. In
both, every other canary of the client counts half. Then it solves least squares over
the questions, for all canaries j of a client together,

    loss_t - (a_tj + b_tj) / 2  =  sum_j (a_tj - b_tj) s_j,

where, without noise, s_j is about 1/2 if canary j is in, and -1/2 if it is not.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...clients.blends import Release
from ...clients.traffic import Sending, Wrap, Wrapping
from ...clients.wrappers import PersonalOracle
from ...types import (
    CentralProgram,
    ClientsInRounds,
    Comparison,
    Message,
    Option,
    Oracle,
    tensor_of,
)
from .membership import scores_along
from .residuals import Residuals

_RIDGE = 1e-3
"""Ridge of the least squares, in units of the mean square."""


@runtime_checkable
class LossesAt(Protocol):
    """The losses that an attacker expects at a model that it has."""

    def __call__(
        self, point: Float[Tensor, " d"], *, held_out: bool
    ) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
        """Mean losses of each canary's client, with the canary and without it."""


def _are_one(points: Float[Tensor, "m d"]) -> bool:
    return bool((points == points[0]).all())


class FirstRows(NamedTuple):
    """The first rows that reveal anything; zero for clients that send nothing.

    If clients send models, `changes` are their changes since the start. If clients send
    gradients, `rows` are the gradients.
    """

    changes: Float[Tensor, "n d"]
    rows: Float[Tensor, "n d"]


class Listener:
    """An attacker: what it heard of each canary, verb by verb."""

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
        """Starts before the first row.

        Args:
            clients: position of each canary's client.
            directions: the direction in which each canary moves rows of its client.
            start: the first models, which everybody knows.
            summed: whether the attacker sees only sums of averaged rows.
            losses_at: gives the losses to expect; None: the attacker cannot know.
            residuals: filled for an auditor who sees inside clients; None: no auditor.
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
        """Hears a row from each client that sends, and its answer."""
        if rows.shape != self._start.shape:
            return  # a few numbers, not a model or gradient
        away = rows - self._answers.get(place, self._start)
        away = torch.where(sends[:, None], away, 0.0)
        self._record(away, torch.where(sends[:, None], rows, 0.0))
        self.change(place, away)
        if answer.shape == rows.shape:
            self._answers[place] = answer

    def change(self, place: str, rows: Float[Tensor, "n d"]) -> None:
        """Hears rows that are changes themselves, such as gradients."""
        if not bool(rows.any()):
            return  # everybody sent known rows, as methods do at their beginning
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
        """Hears mean losses from these clients at their models."""
        told = means.new_full((len(self._start),), torch.nan).double()
        told[who] = means.detach().double()
        loss = told[self._clients]
        self._told = loss.nan_to_num(0.0) + (0.0 if self._told is None else self._told)
        if self._losses_at is None or len(points) < 2 or not _are_one(points):
            return  # the model may not have left its client
        inside, outside = self._losses_at(points[0], held_out=held_out)
        gap = torch.where(loss.isnan(), 0.0, inside - outside)
        away = (loss - (inside + outside) / 2).nan_to_num(0.0)
        self._losses.append((away.cpu(), gap.cpu()))

    def scores(self) -> dict[str, Float[Tensor, " c"]]:
        """Scores of the canaries for every attack.

        A canary with a larger score is more likely to be in. For sums of losses, a
        smaller score may also show that the canary is in.
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
    """An oracle with a listener; see `coterie.types.Oracle`.

    It does not see gradients, comparisons, or results of client programs (but see
    `told_losses` for losses).
    """

    def __init__(self, oracle: Sending, listener: Listener) -> None:
        """Wraps an oracle; `listener` hears what leaves."""
        super().__init__(oracle)
        self._listener = listener

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Weighted means; the listener hears the rows, or only their sum."""
        found = self._oracle.average(shares, rows, groups, count=count)
        self._check_residuals(rows)
        seen = found if self._listener.summed else tensor_of(rows)
        self._listener.row("average", seen, found, self.active)
        return found

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures; the listener hears the rows."""
        found = self._oracle.mix(weights, rows, exchanges=exchanges, gamma=gamma)
        self._check_residuals(rows)
        self._listener.row("mix", tensor_of(rows), found, self.active)
        return found

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """Answers of a coordinator; the listener hears the rows."""
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
        """Blends of gradients; the listener hears those for other clients."""
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
        """The answer of the wrapped oracle."""
        return self._oracle.compare(x, **settings)

    def _check_residuals(self, *rows: Message) -> None:
        if self._listener.residuals is not None:
            self._listener.residuals.see_releases(
                [tensor_of(row) for row in rows], self.active
            )

    def wrap_with(self, wrap: Wrap) -> Sending:
        """The oracle that the wrap makes of this one."""
        return wrap(self)

    def without_clients(self, absent: Bool[Tensor, " n"]) -> Sending:
        """The same round, but without these clients, out of all N."""
        return ListeningOracle(self._oracle.without_clients(absent), self._listener)


class OverheardClients:
    """Clients with a listener in every round; see `types.ClientsInRounds`."""

    def __init__(self, clients: ClientsInRounds, listener: Listener) -> None:
        """Wraps clients in one process."""
        self._clients, self._listener = clients, listener

    def __len__(self) -> int:
        return len(self._clients)

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> Oracle:
        """The oracle of round t."""
        oracle = self._clients.at(t, active, purpose=purpose)
        assert isinstance(oracle, Sending | PersonalOracle)  # which may be wrapped
        return oracle.wrap_with(lambda inner: ListeningOracle(inner, self._listener))
