"""What collaboration would bring, from pilot data: `coterie plan`.

`pilot` estimates the noise of clients' gradients and their distances. `prospects`
derives weights from these, and `trials` tests them on held-out samples. `expectations`
turns the trial into scores and intervals. `plans` does all of this for a study, and
`pages` shows the result. `waiting` says what clients lose by waiting for each other.
`links` says which links of a network to leave out. `private` says how much accuracy an
epsilon costs.
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
