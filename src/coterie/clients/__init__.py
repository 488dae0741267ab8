"""Simulated clients: kernels, minibatches, and oracles that wrap oracles."""

from ..names import publish
from .groups import Group as Group
from .groups import SingleProcess as SingleProcess
from .groups import block as block
from .groups import blocks as blocks
from .kernels import Kernel as Kernel
from .oracles import SimulatedOracle as SimulatedOracle
from .samples import Batch as Batch
from .simulation import Simulation as Simulation
from .traffic import peer_links as peer_links
from .wrappers import PersonalOracle as PersonalOracle

publish(__name__)
