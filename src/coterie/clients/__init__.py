"""Simulated clients: kernels, minibatches, and oracles that wrap oracles."""

from .groups import Group, SingleProcess, block, blocks
from .kernels import Kernel
from .oracles import SimulatedOracle
from .samples import Batch
from .simulation import Simulation
from .traffic import peer_links
from .wrappers import PersonalOracle

__all__ = [
    "Batch",
    "Group",
    "Kernel",
    "PersonalOracle",
    "SimulatedOracle",
    "Simulation",
    "SingleProcess",
    "block",
    "blocks",
    "peer_links",
]
