"""Attacks on the releases of clients, and the proofs that follow from their success.

Attacks may use `mechanisms` and `accounting`. Other rooms may use the listed names.
"""

from ...names import publish
from .bounds import epsilon_of_one_run as epsilon_of_one_run
from .bounds import epsilon_of_rates as epsilon_of_rates
from .bounds import mu_of_rates as mu_of_rates
from .canary_rows import TRIALS as TRIALS
from .canary_rows import Decisions as Decisions
from .canary_rows import View as View
from .canary_rows import decisions as decisions
from .canary_rows import heard_events as heard_events
from .canary_rows import pair_canaries as pair_canaries
from .canary_rows import row_canaries as row_canaries
from .canary_rows import view_of as view_of
from .inversion import inputs_of_layer as inputs_of_layer
from .inversion import rebuilt as rebuilt
from .listening import FirstRows as FirstRows
from .listening import Listener as Listener
from .listening import ListeningOracle as ListeningOracle
from .listening import OverheardClients as OverheardClients
from .membership import Audit as Audit
from .membership import audit_scores as audit_scores
from .membership import confidence_of as confidence_of
from .membership import likelihood_scores as likelihood_scores
from .membership import scores_along as scores_along
from .residuals import NoiseCheck as NoiseCheck
from .residuals import Residuals as Residuals
from .residuals import probe_residuals as probe_residuals
from .told_losses import telling_losses_to as telling_losses_to

publish(__name__)
