"""What leaves a client, and what it tells: three rooms.

- `accounting`: what a ledger of releases tells about each client. It uses no other.
- `mechanisms`: how rows leave, clipped and with noise. It appends to a ledger.
- `attacks`: what somebody finds out from what was released. It may use both.
"""

from . import accounting
from .accounting import *  # noqa: F403
from .mechanisms.per_sample import PrivateSimulation

__all__ = ["PrivateSimulation"]
__all__ += accounting.__all__
