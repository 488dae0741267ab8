"""What collaboration would bring, from pilot data: `coterie plan`.

`pilot` estimates the noise of clients' gradients and their distances. `prospects`
derives weights from these, and `trials` tests them on held-out samples. `expectations`
turns the trial into scores and intervals. `plans` does all of this for a study, and
`pages` shows the result. `waiting` says what clients lose by waiting for each other.
`links` says which links of a network to leave out. `private` says how much accuracy an
epsilon costs.
"""

from ..names import publish
from .links import LinkPlan as LinkPlan
from .links import MessageNetwork as MessageNetwork
from .links import network_of as network_of
from .links import plan_links as plan_links
from .pilot import PilotTraining as PilotTraining
from .pilot import run_pilot as run_pilot
from .plans import Plan as Plan
from .plans import plan_study as plan_study
from .private import PrivacyCost as PrivacyCost
from .private import plan_privacy as plan_privacy
from .prospects import PilotFindings as PilotFindings
from .prospects import Prospect as Prospect
from .prospects import Prospects as Prospects
from .prospects import prospects_of as prospects_of
from .waiting import WaitingCost as WaitingCost
from .waiting import waiting_of as waiting_of

publish(__name__)
