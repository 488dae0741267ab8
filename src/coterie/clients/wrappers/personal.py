"""Personal parameters: columns of a row that never leave their client.

`PersonalOracle` wraps an oracle. Its `average`, `mix` and `central` see only the shared
columns, and return personal columns unchanged. If a client computes something at the
model of another client, it combines the shared columns of that model with its own
personal columns. So with any method, for example, heads or normalisation layers can
stay at their clients. With FedAvg, this gives FedPer, FedBN or LG-FedAvg.

References:
    Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization
    layers", 2019, arXiv 1912.00818 (FedPer).
    Li, Jiang, Zhang, Kamp, Dou, "FedBN: federated learning on non-IID features via
    local batch normalization", ICLR 2021, arXiv 2102.07623.
    Liang, Liu, Ziyin, Salakhutdinov, Morency, "Think locally, act globally: federated
    learning with local and global representations", 2020, arXiv 2001.01523 (LG-FedAvg).
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...checks import InputError
from ...types import CentralProgram, Comparison, Message, Numbers, Option
from ..traffic import Sending, Wrap, Wrapping


class PersonalOracle(Wrapping[Sending]):
    """An oracle whose clients keep some columns; see `coterie.types.Oracle`."""

    def __init__(self, oracle: Sending, home: Bool[Tensor, " d"]) -> None:
        """Wraps an oracle; `home` marks the columns that do not leave."""
        super().__init__(oracle)
        self._home = home

    @property
    def home(self) -> Bool[Tensor, " d"]:
        """The columns that never leave."""
        return self._home

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Weighted means of shared columns; clients keep their personal columns."""
        mean = self._oracle.average(
            shares, self.shared_columns(rows), groups, count=count
        )
        return self._add_personal(mean, rows)

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures of the shared columns; each client keeps its personal columns."""
        shared = self.shared_columns(rows)
        found = self._oracle.mix(weights, shared, exchanges=exchanges, gamma=gamma)
        return self._add_personal(found, rows)

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """The results of a coordinator's program, which sees only the shared columns.

        Answer j gets the personal columns of rows[j].
        """
        shared = [self.shared_columns(row) for row in rows]
        server, *found = self._oracle.central(program, server, *shared, **options)
        own = [self._add_personal(*pair) for pair in zip(found, rows, strict=False)]
        return server, *own, *found[len(own) :]

    def wrap_with(self, wrap: Wrap) -> PersonalOracle:
        """The same oracle; what its shared columns send goes through the wrap."""
        return PersonalOracle(wrap(self._oracle), self._home)

    def blended(
        self, x: Float[Tensor, "n d"], weights: Float[Tensor, "m m"]
    ) -> Float[Tensor, "n d"]:
        """Blends in shared columns, and the client's own gradient in personal columns.

        Contributor k combines the shared columns of reader i with its own personal
        columns, so every pair needs a gradient of its own.
        """
        return self._oracle.blended(x, weights, home=self._home)

    def compare(
        self,
        x: Float[Tensor, "n d"],
        *,
        samples: int | None = None,
        pairs: Bool[Tensor, "m m"] | None = None,
    ) -> Comparison:
        """Distances of gradients in the shared columns."""
        return self._oracle.compare(x, samples=samples, pairs=pairs, home=self._home)

    def shared_columns(self, rows: Message) -> Message:
        """The columns that may leave; `Numbers` are unchanged."""
        if isinstance(rows, Numbers):
            return rows
        if rows.shape[-1] != len(self._home):
            raise InputError(
                f"a verb takes models with {len(self._home)} columns, or `Numbers`, "
                f"but got rows of shape {tuple(rows.shape)}."
            )
        return rows[..., ~self._home]

    def _add_personal(self, found: Tensor, rows: Message) -> Tensor:
        """The shared columns of `found` with the personal columns of `rows`."""
        if isinstance(rows, Numbers):
            return found
        own = rows if found.dim() == rows.dim() else rows[:, None]
        whole = own.expand(*found.shape[:-1], -1).clone()
        whole[..., ~self._home] = found
        return whole
