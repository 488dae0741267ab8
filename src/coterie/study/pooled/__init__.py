"""Measures of models on the test data of all clients together (`run.pooled_test`).

In addition to each client's own model on its own test data, a study then records, for
each measure M,

    global_M   of the global model, where a method has one, at every evaluation;
    pooled_M   of each client's own model, when the method has ended.

The mean of pooled_M over clients says how well personal models do on everybody's data.
If all clients of a method use its global model, both measures are the same. Only a
simulation can compute them, because a real federation does not pool test data. The
measures change nothing in training, and do not count as gradients or bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...clients.kernels import Kernel
from ...clients.samples import Batch
from ...privacy.mechanisms import PrivateState
from ...records import Cell

if TYPE_CHECKING:
    from ..loops import Training
    from ..setup import Setup


def with_global(
    values: dict[str, Tensor], setup: Setup, training: Training, cell: Cell
) -> dict[str, Tensor]:
    """The measures of an evaluation, and of the global model, (N,) each.

    Measures of a global model are NaN if there is none. Measures of personal models are
    NaN until the method has ended.
    """
    if not setup.study.run.pooled_test:
        return values
    n, names = len(setup.federation), _measures(setup)
    unknown = torch.full((n,), torch.nan)
    found = {name: unknown for name in names}
    # With personal columns there is no model that all clients share.
    if training.shared is not None and setup.simulation.home is None:
        state = training.inner(cell.state)
        state = state.state if isinstance(state, PrivateState) else state
        w = training.shared(state)[:1]
        found = {k: v.cpu().expand(n) for k, v in _on_all_tests(setup, w).items()}
    found = {name: found[name].to(unknown).clone() for name in names}
    values = values | {f"test_global_{name}": found[name] for name in names}
    return values | {f"test_pooled_{name}": unknown for name in names}


def with_pooled(cell: Cell, setup: Setup, x: Float[Tensor, "n d"]) -> Cell:
    """The cell with the measures of personal models in its last evaluation."""
    if not setup.study.run.pooled_test:
        return cell
    one, place = _distinct(x)
    found = _on_all_tests(setup, one)
    joined = {k: setup.division.join(v[place]).cpu() for k, v in found.items()}
    last = cell.metrics[-1]
    last = last | {f"test_pooled_{name}": joined[name] for name in _measures(setup)}
    return replace(cell, metrics=[*cell.metrics[:-1], last])


def without_pooled(cell: Cell) -> Cell:
    """A cell that goes on, without the measures that are taken at its end."""
    last = {
        name: torch.full_like(values, torch.nan)
        if name.replace("test_pooled_", "test_global_") in {*cell.metrics[-1]} - {name}
        else values
        for name, values in cell.metrics[-1].items()
    }
    return replace(cell, metrics=[*cell.metrics[:-1], last])


def _measures(setup: Setup) -> list[str]:
    return ["loss", *setup.simulation.objective.measures]


def _distinct(x: Float[Tensor, "n d"]) -> tuple[Tensor, Int[Tensor, " n"]]:
    """The different models among the rows, and which of them each client has."""
    if len(x) == 1 or x.stride(0) == 0 or bool((x == x[:1]).all()):
        return x[:1], torch.zeros(len(x), dtype=torch.long, device=x.device)
    found, place = x.unique(dim=0, return_inverse=True)
    return found, place


def _on_all_tests(setup: Setup, x: Float[Tensor, "m d"]) -> dict[str, Tensor]:
    """The measures (m,) of each model on the test samples of all clients together."""
    kernel, index = setup.pooled_kernel
    weight = x.new_full((1, 1), 1 / max(1, len(index))).expand(len(x), len(index))
    return kernel.measure(x, Batch(index, weight))


def kernel_for_all(setup: Setup) -> tuple[Kernel, Int[Tensor, " m"]]:
    """The kernel that measures models, and the places of all clients' test samples.

    A process that does not hold all clients gets a copy of the test samples of the
    others.
    """
    here, test = setup.simulation, setup.federation.test
    if here.group.size == 1:
        test = here.federation.test
        index, mask = test.rows(torch.arange(len(test.size), device=test.size.device))
        return here.kernel, index[mask]
    everybody = replace(setup.federation, train=test, validation=test).compact()
    everybody = everybody.to(setup.x.device, here.dtype)
    kernel = Kernel(
        setup.module,
        here.objective,
        everybody.features,
        everybody.targets,
        dtype=here.dtype,
        by_row=True if here.loop else None,
    )
    return kernel, torch.arange(len(everybody.features), device=setup.x.device)
