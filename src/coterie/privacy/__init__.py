"""What leaves a client, and what it reveals: three packages.

- `accounting`: what a ledger of releases reveals of each client. It uses neither of the
other two packages.
- `mechanisms`: how rows leave, clipped and with noise. It appends to a ledger.
- `attacks`: what an attacker finds out from releases. It may use both other packages.
"""

from ..names import public_names, publish
from . import accounting
from .accounting import *  # noqa: F403
from .mechanisms.per_sample import PrivateSimulation as PrivateSimulation

publish(__name__, *public_names(accounting.__name__))
