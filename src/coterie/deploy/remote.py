"""The oracle of clients elsewhere: their answers to messages, put together.

It needs no more than a function that takes bytes to the site at a position and brings
bytes back, over whatever link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..checks import integer
from ..collaboration.beliefs import of_each, of_pairs
from ..types import Comparison, Program
from .messages import (
    Answer,
    MessageError,
    Question,
    Scalar,
    decode,
    encode,
    program_name,
)

Ask = Callable[[int, bytes], bytes]
"""Takes a question to the site at a position and returns its answer."""


class SiteError(RuntimeError):
    """A site, or the way to it, failed; the message names the client."""


class RemoteOracle:
    """One round's questions to clients elsewhere; see `coterie.types.Oracle`."""

    def __init__(
        self,
        ask: Ask,
        names: Sequence[int],
        t: int,
        active: Bool[Tensor, " n"],
        purpose: str,
    ) -> None:
        self._ask = ask
        self._names = names  # identities of the clients, for errors
        self._t = t
        self._purpose = purpose
        self._asked: Counter[str] = Counter()
        self._who: list[int] = active.nonzero()[:, 0].tolist()
        self.active = active
        self.gradients = torch.zeros(len(active), dtype=torch.float64)

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is g_i(x_i), zero for inactive clients."""
        g = torch.zeros_like(x)
        for i in self._who:
            g[i, None] = self._gradients(i, "grads", x[i, None])["g"]
        self._asked["grads"] += 1
        return g

    def blended(
        self, x: Float[Tensor, "n d"], weights: Float[Tensor, "n n"]
    ) -> Float[Tensor, "n d"]:
        """Row i is sum_k weights[i, k] g_k(x_i) over active k, for active i."""
        used = weights * self.active[:, None] * self.active
        g = torch.zeros_like(x)
        for k in self._who:
            readers = used[:, k].nonzero()[:, 0]
            if len(readers):
                g_k = self._gradients(k, "blended", x[readers])["g"]
                g[readers] += used[readers, k, None] * g_k
        self._asked["blended"] += 1
        return g

    def compare(
        self, x: Float[Tensor, "n d"], *, samples: int | None = None
    ) -> Comparison:
        """Distances of all pairs of active clients; (N, D) values at a time."""
        options: dict[str, Scalar] = {}
        if samples is not None:
            options["samples"] = integer("samples", samples, at_least=2)
        who, n = self._who, len(x)
        own_a, own_b, used = torch.zeros_like(x), torch.zeros_like(x), x.new_zeros(n)
        for i in who:
            answer = self._gradients(i, "compare", x[i, None], options)
            own_a[i], own_b[i], used[i] = answer["a"], answer["b"], answer["samples"]
        cross, pooled, noise = between = x.new_zeros(3, n, n)
        for k in who:
            readers = [i for i in who if i != k]
            if not readers:
                break
            answer = self._gradients(k, "compare", x[readers], options)
            mine = own_a[readers], own_b[readers], used[readers]
            theirs = answer["a"], answer["b"], used[k].expand(len(readers))
            between[:, readers, k] = of_pairs(mine, theirs)
        self._asked["compare"] += 1
        of_clients = x.new_zeros(3, n)
        of_clients[:, who] = of_each((own_a[who], own_b[who], used[who]))
        own, own_pooled, variance = of_clients
        known = self.active[:, None] & self.active
        return Comparison(cross, own, pooled, own_pooled, noise, variance, used, known)

    def each(
        self, program: Program, *rows: Tensor, **options: float | int | str | bool
    ) -> tuple[Tensor, ...]:
        """Runs a client program, one message to every active client."""
        name = program_name(program)
        answers = []
        for i in self._who:
            given = {str(j): row[i, None] for j, row in enumerate(rows)}
            answers.append(self._answer(i, "each", given, options, name).values())
        self._asked["each"] += 1
        results = tuple(torch.cat(pieces) for pieces in zip(*answers, strict=True))
        if len(self._who) == len(self.active):
            return results
        who = torch.tensor(self._who)
        return tuple(
            row.index_copy(0, who, result)
            for row, result in zip(rows, results, strict=False)
        )

    def _gradients(
        self,
        client: int,
        verb: str,
        models: Float[Tensor, "p d"],
        options: dict[str, Scalar] | None = None,
    ) -> dict[str, Tensor]:
        """A client's gradients at each of the models, under the names of the verb."""
        answer = self._answer(client, verb, {"models": models}, options)
        for name in ("a", "b") if verb == "compare" else ("g",):
            if name not in answer or answer[name].shape != models.shape:
                raise SiteError(
                    f"{self._where(client)}: gradients `{name}` of shape "
                    f"{tuple(models.shape)} are missing in the answer."
                )
        return answer

    def _answer(
        self,
        client: int,
        verb: str,
        tensors: dict[str, Tensor],
        options: dict[str, Scalar] | None = None,
        program: str = "",
    ) -> dict[str, Tensor]:
        """The tensors that the client at this position answers."""
        question = Question(
            verb=verb,
            t=self._t,
            purpose=self._purpose,
            number=self._asked[verb],
            program=program,
            options=options or {},
            tensors=tensors,
        )
        try:
            answer = decode(self._ask(client, encode(question)), Answer)
        except (SiteError, MessageError) as error:
            raise SiteError(f"{self._where(client)}: {error}") from error
        if answer.error:
            raise SiteError(f"{self._where(client)}: {answer.error}")
        self.gradients[client] += answer.gradients
        return answer.tensors

    def _where(self, client: int) -> str:
        return f"client {self._names[client]}, round {self._t}"
