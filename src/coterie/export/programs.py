"""A module as files: its weights, and programs that run without its source.

`export.folders` reads and runs every file after writing it. On batches of several
sizes, the file and the module must give the same outputs within `TOLERANCE`.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import InputError
from ..records.files import writing

WEIGHTS, PROGRAM, ONNX = "weights.safetensors", "model.pt2", "model.onnx"

TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
"""The largest difference of outputs, relative to 1 + their size.

Outputs may differ because programs sum in another order, or fuse steps of the module.
"""

_SIZES = (1, 2, 7)  # of batches, in addition to all samples; torch treats 1 specially


def write_weights(path: Path, module: nn.Module) -> None:
    """Writes all parameters and buffers by name."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # Parameters may be views of one row. The format cannot store views.
    weights = {k: v.contiguous().clone() for k, v in module.state_dict().items()}
    with writing(path) as file:
        try:
            save_file(weights, file)
        except SafetensorError as error:  # such as a full disk
            raise RuntimeError(str(error)) from error


def size_of_weights(path: Path) -> int | None:
    """The number of weights in a file, by its header; None if that is unreadable."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]
    except (OSError, SafetensorError):
        return None
    return sum(math.prod(shape) for shape in shapes)


def read_weights(path: Path, module: nn.Module) -> None:
    """Loads the weights in a file into a module."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
        module.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(": .")
        raise InputError(
            f"{path} does not hold the weights of this model: {reason}."
        ) from error
    for name, values in weights.items():
        if not values.isfinite().all():
            raise InputError(
                f"the weights in {path} must be finite, but some of {name!r} are not: "
                "export the model again."
            )


def write_program(path: Path, module: nn.Module, samples: Tensor) -> Any:
    """Writes a module as a program for any number of samples, and returns it."""
    rows = torch.export.Dim("rows")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own code
            program = torch.export.export(
                module, (samples[:3],), dynamic_shapes=({0: rows},), strict=False
            )
            for node in program.graph.nodes:
                node.meta.pop("stack_trace", None)  # has paths of this machine
            torch.export.save(program, path)
    except Exception as error:  # the type depends on what the model does
        raise InputError(
            "the model cannot be written as a program for any number of samples: "
            f"{reason_of(error)}; coterie.load gives the module in Python."
        ) from error
    return program


def write_onnx(path: Path, program: Any, samples: Tensor) -> str:
    """Writes a program as ONNX; returns why it could not, empty on success."""
    absent = [n for n in ("onnx", "onnxscript") if importlib.util.find_spec(n) is None]
    if absent:
        return f"{' and '.join(absent)} not installed (pip install coterie[onnx])"
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch and onnx warn of their own code
            torch.onnx.export(
                program,
                (samples[:3],),
                path,
                input_names=["input"],
                output_names=["output"],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the type depends on what the model does
        path.unlink(missing_ok=True)
        return f"the model cannot be written as ONNX: {reason_of(error)}"
    finally:
        logging.disable(level)
    return ""


def program_in(path: Path) -> Callable[[Tensor], Tensor]:
    """The function that a file of torch.export computes."""
    return torch.export.load(path).module()


def onnx_in(path: Path) -> Callable[[Tensor], Tensor]:
    """The function that an ONNX file computes, by onnxruntime or by onnx itself."""
    if importlib.util.find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(str(path))
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )
    return lambda x: torch.as_tensor(session.run(None, {"input": x.numpy()})[0])


def difference(
    program: Callable[[Tensor], Tensor], module: nn.Module, samples: Tensor
) -> float:
    """The largest difference of outputs, relative to 1 + their size.

    It is infinite if shapes differ, or if only one of two outputs is a number.
    """
    worst = 0.0
    with torch.no_grad():
        for size in (*_SIZES, len(samples)):
            few = samples[:size]
            found, expected = program(few).double(), module(few).double()
            if found.shape != expected.shape:
                return float("inf")
            gap = (found - expected).abs() / (1 + expected.abs())
            same = (found == expected) | (found.isnan() & expected.isnan())
            gap = torch.where(same, 0.0, gap.nan_to_num(torch.inf, torch.inf))
            worst = max(worst, float(gap.max()) if gap.numel() else 0.0)
    return worst


def reason_of(error: BaseException) -> str:
    """The first line of an error, to be part of a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = (lines or [type(error).__name__])[0].rstrip(".:")
    return text if len(text) <= 160 else f"{text[:157]}..."
