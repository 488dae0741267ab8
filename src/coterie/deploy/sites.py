"""What runs at one client: it holds that client's data and answers messages.

A site is a simulation of a single client. Random streams are named by purpose, round
and question, and by the client's identity, so it draws what a simulation of the whole
federation draws for this client.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import InputError
from ..clients.kernels import Batch
from ..clients.simulation import SimulatedOracle, Simulation
from ..data.federation import PARTS, Federation, Part
from .messages import Answer, Holding, Question, decode, encode, find_program

_WHOLE = ("features", "targets", "clients")
"""Tensors of a federation beside its parts."""

_ONE = torch.tensor([0])
"""The position of a site's only client."""


def hold(federation: Federation, client: int) -> Holding:
    """The samples of the client at this position, and nothing of the others."""
    own = federation.only(client)
    tensors = {name: getattr(own, name) for name in _WHOLE}
    for name in PARTS:
        for field, tensor in own.part(name)._asdict().items():
            tensors[f"{name}.{field}"] = tensor
    return Holding(own.name, own.task, own.outputs, tensors)


def unfold(holding: Holding) -> Federation:
    """The federation of one client that `hold` made a message of."""
    name, task, outputs, tensors = holding
    train, validation, test = (
        Part(*(tensors[f"{part}.{field}"] for field in Part._fields)) for part in PARTS
    )
    features, targets, clients = (tensors[key] for key in _WHOLE)
    return Federation(
        name, features, targets, task, outputs, train, validation, test, clients
    )


class Site:
    """One client: its data, its model's architecture, and the answers it gives."""

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        batch_size: int = 16,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        allowed: Sequence[str] = ("coterie.",),
    ) -> None:
        """Sets up the site; see `coterie.clients.simulation.Simulation`.

        Args:
            federation: of this one client.
            module: architecture of the models.
            batch_size: samples of a minibatch; 0 takes the whole training part.
            seed: names the random streams, the same at every site.
            dtype: of data and models.
            allowed: beginnings of the modules whose programs may be run here, each
                with a dot at its end.
        """
        if len(federation) != 1:
            raise InputError(f"a site holds one client, got {len(federation)}.")
        for prefix in allowed:
            if not prefix.endswith("."):
                raise InputError(f"`allowed` must end with a dot, got {prefix!r}.")
        self._allowed = tuple(allowed)
        self._simulation = Simulation(
            federation, module, batch_size=batch_size, seed=seed, dtype=dtype
        )

    def answer(self, data: bytes) -> bytes:
        """The answer to a question; what goes wrong here is an answer, too."""
        verbs = {
            "grads": self._gradients,
            "blended": self._gradients,
            "compare": self._halves,
            "each": self._run,
        }
        try:
            question = decode(data, Question)
            if question.verb not in verbs:
                raise InputError(f"a site cannot answer {question.verb!r}.")
            oracle = self._simulation.at(question.t, purpose=question.purpose)
            return encode(verbs[question.verb](question, oracle))
        except Exception as error:
            return encode(Answer(f"{type(error).__name__}: {error}", 0.0, {}))

    def _gradients(self, question: Question, oracle: SimulatedOracle) -> Answer:
        """Gradients of one fresh minibatch at all the models."""
        models = self._models(question)
        # The reader counts its questions, so that a site need not remember them.
        stream = oracle.stream(question.verb, question.number)
        g, cost = self._at(models, self._simulation.minibatch(_ONE, stream))
        return Answer("", cost, {"g": g})

    def _halves(self, question: Question, oracle: SimulatedOracle) -> Answer:
        """Gradients of two halves of the training data at all the models."""
        models = self._models(question)
        if int(self._simulation.federation.train.size) < 2:
            raise InputError("comparing gradients needs two training samples, not one.")
        samples = question.options.get("samples")
        first, second, used = self._simulation.halves(
            _ONE,
            oracle.stream(question.verb, question.number),
            None if samples is None else int(samples),
        )
        (a, cost_a), (b, cost_b) = self._at(models, first), self._at(models, second)
        return Answer("", cost_a + cost_b, {"a": a, "b": b, "samples": used})

    def _run(self, question: Question, oracle: SimulatedOracle) -> Answer:
        """What a client program makes of this client's rows."""
        program = find_program(question.program, self._allowed)
        rows = tuple(question.tensors.values())
        results = oracle.run(program, rows, question.options, number=question.number)
        named = {str(j): result for j, result in enumerate(results)}
        return Answer("", float(oracle.gradients), named)

    def _models(self, question: Question) -> Float[Tensor, "p d"]:
        models = question.tensors.get("models", torch.empty(0))
        size = self._simulation.kernel.parameters
        dtype = self._simulation.dtype
        if models.dim() != 2 or models.shape[1] != size or models.dtype != dtype:
            raise InputError(
                f"`models` must have shape (p, {size}) and {dtype}, "
                f"got {tuple(models.shape)} and {models.dtype}."
            )
        return models

    def _at(
        self, models: Float[Tensor, "p d"], batch: Batch
    ) -> tuple[Float[Tensor, "p d"], float]:
        """Gradients of the same samples at all models, and how many that were."""
        index, weight = batch.index[0], batch.weight[0].expand(len(models), -1)
        g = self._simulation.kernel.grad(models, Batch(index, weight))
        return g, float(len(models) * len(index))
