"""Models as rows of numbers, small models by name, losses and measures."""

from .architectures import BESIDE, Architecture, description
from .jackknife import outcomes, step_of
from .layers import Augment, with_batch_statistics
from .layouts import (
    Layout,
    batch_norm_columns,
    build,
    columns,
    layout,
    matrices,
    ravel,
    refuse_unsuitable,
    with_group_norm,
    with_row,
)
from .losses import LOSSES, loss_named
from .measures import MEASURES, RANGES, Measure, OfClient, measures_named
from .objectives import (
    OBJECTIVES,
    Objective,
    adapt_objective,
    objective_named,
    outputs_for,
    refuse_misshapen,
    refuse_settings,
    target_values,
    value_of,
)
from .predictions import tally
from .trust import refuse_untrusted, trusted_factory, trusted_modules
from .zoo import MODELS, cnn, diagonal, lenet, linear, logistic, mlp, unet3d

__all__ = [
    "BESIDE",
    "LOSSES",
    "MEASURES",
    "MODELS",
    "OBJECTIVES",
    "RANGES",
    "Architecture",
    "Augment",
    "Layout",
    "Measure",
    "Objective",
    "OfClient",
    "adapt_objective",
    "batch_norm_columns",
    "build",
    "cnn",
    "columns",
    "description",
    "diagonal",
    "layout",
    "lenet",
    "linear",
    "logistic",
    "loss_named",
    "matrices",
    "measures_named",
    "mlp",
    "objective_named",
    "outcomes",
    "outputs_for",
    "ravel",
    "refuse_misshapen",
    "refuse_settings",
    "refuse_unsuitable",
    "refuse_untrusted",
    "step_of",
    "tally",
    "target_values",
    "trusted_factory",
    "trusted_modules",
    "unet3d",
    "value_of",
    "with_batch_statistics",
    "with_group_norm",
    "with_row",
]
