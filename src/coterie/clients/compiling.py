"""Compiled tensor programs, and settings that make kernels repeatable."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only


def repeatable() -> contextlib.AbstractContextManager[None]:
    """Sets torch so that convolutions give the same bits every time.

    The user's setting for TensorFloat32 stays as it is; torch allows TensorFloat32 by
    default.
    """
    return torch.backends.cudnn.flags(
        enabled=True,
        benchmark=False,
        deterministic=True,
        allow_tf32=torch.backends.cudnn.allow_tf32,
    )


def compile_for(
    program: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> Callable[..., Tensor]:
    """The program, compiled for inputs of exactly these shapes.

    The program is first traced to plain tensor operations. On CUDA, it is captured as a
    graph, and a call only checks the shapes of its inputs. On the CPU, a call checks
    nothing, because for a small model checks would take as long as a step.
    """
    traced = make_fx(program)(*inputs)
    if not inputs[0].is_cuda:
        return torch._inductor.compile(traced, list(inputs))
    with warnings.catch_warnings():
        # Torch warns that a lower precision would be faster, but the user did not ask
        # for it.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        compiled = torch.compile(traced, dynamic=False, mode="reduce-overhead")
        compiled(*inputs)
    return compiled


def can_compile(device: torch.device) -> bool:
    """Whether this machine has what torch.compile needs."""
    if device.type == "cuda":
        return True
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


class MixedPrecision:
    """Calls functions with matrix products in a lower precision than rows.

    Rows, losses and gradients keep their precision. If no lower precision is given, the
    functions are called as they are.
    """

    def __init__(self, lower: torch.dtype | None, device: torch.device) -> None:
        """Prepares calls on a device."""
        self.lower, self._device = lower, device.type

    def __call__(self, function: Callable[..., Any], *given: Any, **more: Any) -> Any:
        """What the function returns, in single precision."""
        if self.lower is None:
            return function(*given, **more)
        with torch.autocast(self._device, self.lower, cache_enabled=False):
            found = function(*given, **more)
        return tree_map_only(Tensor, Tensor.float, found)
