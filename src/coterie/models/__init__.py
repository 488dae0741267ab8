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
from .objectives import (
    OBJECTIVES,
    Objective,
    OfClient,
    objective_named,
    outputs_for,
    refuse_misshapen,
    target_values,
)
from .zoo import MODELS, cnn, lenet, linear, logistic, mlp, unet3d

__all__ = [
    "MODELS",
    "OBJECTIVES",
    "Layout",
    "Objective",
    "OfClient",
    "build",
    "cnn",
    "columns",
    "layout",
    "lenet",
    "linear",
    "logistic",
    "mlp",
    "objective_named",
    "outputs_for",
    "ravel",
    "refuse_misshapen",
    "refuse_unsuitable",
    "target_values",
    "unet3d",
    "with_group_norm",
    "with_row",
]
