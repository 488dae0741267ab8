"""Models as rows of numbers, small models by name, losses and measures."""

from ..names import publish
from .architectures import BESIDE as BESIDE
from .architectures import Architecture as Architecture
from .architectures import description as description
from .jackknife import outcomes as outcomes
from .jackknife import step_of as step_of
from .layers import Augment as Augment
from .layers import with_batch_statistics as with_batch_statistics
from .layouts import Layout as Layout
from .layouts import batch_norm_columns as batch_norm_columns
from .layouts import build as build
from .layouts import columns as columns
from .layouts import layout as layout
from .layouts import matrices as matrices
from .layouts import ravel as ravel
from .layouts import refuse_unsuitable as refuse_unsuitable
from .layouts import with_group_norm as with_group_norm
from .layouts import with_row as with_row
from .losses import LOSSES as LOSSES
from .losses import loss_named as loss_named
from .measures import MEASURES as MEASURES
from .measures import RANGES as RANGES
from .measures import Measure as Measure
from .measures import OfClient as OfClient
from .measures import measures_named as measures_named
from .objectives import OBJECTIVES as OBJECTIVES
from .objectives import Objective as Objective
from .objectives import adapt_objective as adapt_objective
from .objectives import objective_named as objective_named
from .objectives import outputs_for as outputs_for
from .objectives import refuse_misshapen as refuse_misshapen
from .objectives import refuse_settings as refuse_settings
from .objectives import target_values as target_values
from .objectives import value_of as value_of
from .predictions import tally as tally
from .trust import refuse_untrusted as refuse_untrusted
from .trust import trusted_factory as trusted_factory
from .trust import trusted_modules as trusted_modules
from .zoo import MODELS as MODELS
from .zoo import cnn as cnn
from .zoo import diagonal as diagonal
from .zoo import lenet as lenet
from .zoo import linear as linear
from .zoo import logistic as logistic
from .zoo import mlp as mlp
from .zoo import unet3d as unet3d

publish(__name__)
