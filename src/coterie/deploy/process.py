"""The clients in another process, met only through messages.

The nearest link between an oracle and its sites: a pipe to one process that holds them.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ..checks import InputError, number
from ..data.federation import Federation
from .messages import Answer, Holding, decode, encode
from .remote import RemoteOracle, SiteError
from .sites import Site, hold, unfold

_SECONDS_TO_START = 300.0
"""Importing torch on a busy machine takes a while."""


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
            self._kill()
            raise
        self._kill()
        raise SiteError(f"no answer within {timeout:g} seconds.")

    def _kill(self) -> None:
        """Ends the process now; its late answer would be taken for another one."""
        self._process.kill()
        self.close()


def _stop(process: SpawnProcess, link: Connection) -> None:
    """Ends the process: it leaves when its pipe is closed, or else it is killed."""
    link.close()
    process.join(10)
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
