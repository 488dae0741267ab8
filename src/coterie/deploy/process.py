"""The clients in another process, met only through messages.

`RemoteOracle` composes the answers of sites; it needs no more than a function that
takes bytes to the site at a position and brings bytes back, over whatever link.
`ProcessFederation` is the nearest such link: a pipe to one process that holds N sites.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..checks import InputError, integer, number
from ..data.federation import Federation
from ..types import Comparison, Program
from .messages import (
    Answer,
    Holding,
    MessageError,
    Question,
    Scalar,
    decode,
    encode,
    program_name,
)
from .sites import Site, hold, unfold

Ask = Callable[[int, bytes], bytes]
"""Takes a question to the site at a position and returns its answer."""

_SECONDS_TO_START = 300.0
"""Importing torch on a busy machine takes a while."""


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
        cross, spread, noise = x.new_zeros(3, n, n)
        for k in who:
            answer = self._gradients(k, "compare", x[who], options)
            a, b = answer["a"], answer["b"]  # (m, D) at the models of the readers i
            u, v = own_a[who] - a, own_b[who] - b
            cross[who, k] = (u * v).sum(1)
            spread[who, k] = (u - v).square().sum(1) / 4
            noise[who, k] = ((own_a[who] - own_b[who]) * (a - b)).sum(1)
        self._asked["compare"] += 1
        own, own_spread = (own_a * own_b).sum(1), (own_a - own_b).square().sum(1) / 4
        known = self.active[:, None] & self.active
        return Comparison(cross, own, spread, own_spread, noise, used, known)

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


class ProcessFederation:
    """Clients that live in another process of this machine, each with its own site.

    As always with spawned processes, a script that makes one needs the line
    `if __name__ == "__main__":`.
    """

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        batch_size: int = 16,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        allowed: Sequence[str] = ("coterie.",),
        timeout: float = 600.0,
    ) -> None:
        """Starts the process and gives every site its client's data.

        Args:
            federation: the clients' data.
            module: architecture of every client's model.
            batch_size: samples of a minibatch; 0 takes the whole training part.
            seed: names the random streams of minibatches.
            dtype: of data and models.
            allowed: see `Site`.
            timeout: seconds to wait for one answer of one client.
        """
        self._names: list[int] = federation.clients.tolist()
        self._timeout = number("timeout", timeout, above=0)
        settings = {
            "batch_size": batch_size,
            "seed": seed,
            "dtype": dtype,
            "allowed": tuple(allowed),
        }
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        # The architecture is pickled: this is the set-up of a process of our own on
        # the same machine, not a message that a site would accept from others.
        self._process = context.Process(
            target=_serve,
            args=(theirs, len(federation), pickle.dumps(module), settings),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        # Runs once: when asked to, when nobody holds this object, or at exit.
        self._stop = weakref.finalize(self, _stop, self._process, self._link)
        for client, name in enumerate(self._names):
            data = encode(hold(federation, client))
            answer = decode(self._exchange(data, _SECONDS_TO_START), Answer)
            if answer.error:
                self.close()
                raise SiteError(f"client {name}: {answer.error}")

    def __len__(self) -> int:
        return len(self._names)

    def __enter__(self) -> ProcessFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process; nothing can be asked any more."""
        self._stop()

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> RemoteOracle:
        """The oracle of round t, where the `active` clients take part (None: all)."""
        if active is None:
            active = torch.ones(len(self), dtype=torch.bool)
        if active.shape != (len(self),) or not active.any():
            raise InputError(
                f"`active` must name at least one of {len(self)} clients, got {active}."
            )
        return RemoteOracle(self._ask, self._names, t, active.cpu(), purpose)

    def _ask(self, client: int, data: bytes) -> bytes:
        return self._exchange(client.to_bytes(4, "little") + data, self._timeout)

    def _exchange(self, data: bytes, timeout: float) -> bytes:
        """Sends one piece of bytes to the process and waits for its answer."""
        if not self._stop.alive:
            raise SiteError("the process of the sites was closed.")
        try:
            self._link.send_bytes(data)
            # The end of the process closes its end of the pipe, which ends the wait.
            if self._link.poll(timeout):
                return self._link.recv_bytes()
        except (EOFError, OSError) as error:
            self._process.join(1)
            code = self._process.exitcode
            self.close()
            raise SiteError(
                f"the process of the sites ended, exit code {code}."
            ) from error
        except BaseException:
            self.close()  # a late answer would be taken for that of another question
            raise
        self.close()
        raise SiteError(f"no answer within {timeout:g} seconds.")


def _stop(process: SpawnProcess, link: Connection) -> None:
    """Ends the process: it leaves when its pipe is closed, or else it is killed."""
    link.close()
    process.join(1)
    if process.is_alive():
        process.kill()
        process.join()


def _serve(
    link: Connection, clients: int, module: bytes, settings: dict[str, Any]
) -> None:
    """The life of the other process: set up the sites, answer until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    sites: list[Site] = []

    def set_up(data: bytes) -> bytes:
        try:
            federation = unfold(decode(data, Holding))
            sites.append(Site(federation, pickle.loads(module), **settings))
        except Exception as error:
            return encode(Answer(f"{type(error).__name__}: {error}", 0.0, {}))
        return encode(Answer("", 0.0, {}))

    try:
        for _ in range(clients):
            link.send_bytes(set_up(link.recv_bytes()))
        while True:
            data = link.recv_bytes()
            client = int.from_bytes(data[:4], "little")
            link.send_bytes(sites[client].answer(data[4:]))
    except (EOFError, OSError):
        return
