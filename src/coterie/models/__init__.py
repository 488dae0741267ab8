"""Models as rows of numbers, small models by name, and what is minimised."""

from .layouts import (
    Layout,
    build,
    columns,
    layout,
    ravel,
    refuse_unsuitable,
    with_group_norm,
    with_row,
)
from .objectives import OBJECTIVES, Objective
from .zoo import MODELS, cnn, lenet, linear, logistic, mlp, unet3d

__all__ = [
    "MODELS",
    "OBJECTIVES",
    "Layout",
    "Objective",
    "build",
    "cnn",
    "columns",
    "layout",
    "lenet",
    "linear",
    "logistic",
    "mlp",
    "ravel",
    "refuse_unsuitable",
    "unet3d",
    "with_group_norm",
    "with_row",
]
