"""Attacks that rebuild a sample from its gradient.

For one sample with inputs h, the gradient of a linear layer is e h' for its weights and
e for its bias, where e is the slope of its outputs. The attacker divides the first
gradient by the second, and so gets h exactly. For deeper models, the attacker looks for
features whose gradient is the released one,

    minimise |gradient(features) - released|^2 over features,

by steps of L-BFGS from a random start (Zhu, Liu, Han 2019), with the label known.

References:
    Phong, Aono, Hayashi, Wang, Moriai, "Privacy-preserving deep learning via additively
    homomorphic encryption", IEEE TIFS 2018, eprint 2017/715.
    Zhu, Liu, Han, "Deep leakage from gradients", NeurIPS 2019, arXiv 1906.08935.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ...checks import InputError, integer
from ...models import Objective, layout


def inputs_of_layer(
    weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"]
) -> Float[Tensor, " i"]:
    """The inputs of a linear layer, from the gradient of one sample.

    For a batch of several samples, the result is a mixture of their inputs. We use the
    output whose bias has the largest slope.

    Raises:
        InputError: if all slopes of the layer are zero.
    """
    k = int(bias.abs().argmax())
    if not bias[k]:
        raise InputError("`bias` must have a slope that is not 0 to find the inputs.")
    return weight[k] / bias[k]


def rebuilt(
    module: nn.Module,
    objective: Objective,
    point: Float[Tensor, " d"],
    gradient: Float[Tensor, " d"],
    target: Tensor,
    *,
    like: Tensor,
    steps: int = 200,
    seed: int = 0,
) -> Tensor:
    """The features whose gradient is nearest to a released gradient.

    Args:
        module: architecture of the model.
        objective: the loss whose gradient was released.
        point: the parameters at which that gradient was computed.
        gradient: the released gradient of one sample.
        target: the label of that sample, as a batch of one.
        like: any tensor with the shape of a sample.
        steps: number of L-BFGS steps.
        seed: the seed of the random start.
    """
    integer("steps", steps, at_least=1)
    parameters = layout(module).unravel(point.detach().clone().requires_grad_())
    rng = torch.Generator().manual_seed(seed)
    start = torch.randn(1, *like.shape, generator=rng).to(like)
    features = start.requires_grad_()
    search = torch.optim.LBFGS(
        [features], max_iter=steps, line_search_fn="strong_wolfe"
    )

    def gap() -> Tensor:
        search.zero_grad()
        loss = objective.loss(
            functional_call(module, parameters, (features,)), target
        ).sum()
        slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        found = torch.cat([slope.flatten() for slope in slopes])
        distance = (found - gradient).square().sum()
        distance.backward(inputs=[features])
        return distance.detach()

    search.step(gap)
    return features.detach()[0]
