"""What a ledger of releases reveals of each client: exact numbers and bounds.

All functions of this room are pure functions of a ledger. They do not train, draw noise
or touch data. Other rooms may use the listed names, and the modules `accounts` (squares
of mu by client, pair and role), `calibration`, `gaussian`, `ledger` and `subsampled`.
"""

from ...names import publish
from .gaussian import compose_mu as compose_mu
from .gaussian import delta_of as delta_of
from .gaussian import epsilon_of as epsilon_of
from .gaussian import epsilons_of as epsilons_of
from .gaussian import mu_from as mu_from
from .gaussian import mu_of as mu_of
from .gaussian import noise_of as noise_of
from .gaussian import renyi as renyi
from .gaussian import replacement_sensitivity as replacement_sensitivity
from .joint import joint_losses as joint_losses
from .ledger import Event as Event
from .ledger import Exchange as Exchange
from .ledger import Input as Input
from .ledger import Ledger as Ledger
from .ledger import Meetings as Meetings
from .ledger import Release as Release
from .losses import Losses as Losses
from .projection import Knowledge as Knowledge
from .projection import Observer as Observer
from .projection import seen_by as seen_by
from .subsampled import sampled_epsilon as sampled_epsilon
from .subsampled import sampled_epsilons as sampled_epsilons
from .subsampled import sampled_noise as sampled_noise

publish(__name__)
