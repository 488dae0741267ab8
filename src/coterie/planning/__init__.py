"""What collaboration would bring, from pilot data: `coterie plan`.

`pilot` estimates how noisy clients' gradients are and how far apart, `prospects` says
what weights follow, `trials` tries these on samples that were held out, `expectations`
makes scores and intervals of that, `plans` does all of it for a study, `pages` shows
it, and `waiting` says what it costs to wait for each other. `links` says which links of
a network are better left out, and `private` what noise an epsilon needs and what it
costs.
"""

from .links import LinkPlan, MessageNetwork, network_of, plan_links
from .pilot import PilotTraining, run_pilot
from .plans import Plan, plan_study
from .private import PrivacyCost, plan_privacy
from .prospects import PilotFindings, Prospect, Prospects, prospects_of
from .waiting import WaitingCost, waiting_of

__all__ = [
    "LinkPlan",
    "MessageNetwork",
    "PilotFindings",
    "PilotTraining",
    "Plan",
    "PrivacyCost",
    "Prospect",
    "Prospects",
    "WaitingCost",
    "network_of",
    "plan_links",
    "plan_privacy",
    "plan_study",
    "prospects_of",
    "run_pilot",
    "waiting_of",
]
