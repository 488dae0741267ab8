"""Who answers: kernels, minibatches, simulated clients, oracles that wrap oracles."""

from .groups import Alone, Group, block, blocks
from .kernels import Kernel
from .oracles import SimulatedOracle
from .personal import PersonalOracle
from .samples import Batch
from .simulation import Simulation
from .traffic import between

__all__ = [
    "Alone",
    "Batch",
    "Group",
    "Kernel",
    "PersonalOracle",
    "SimulatedOracle",
    "Simulation",
    "between",
    "block",
    "blocks",
]
