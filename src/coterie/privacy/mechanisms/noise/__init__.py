"""Gaussian noise: from named streams for simulations, or from secret bits."""

from .secret import LEAST_DELTA, MARGIN, SecretStream, refuse_inexact
from .seeded import add_noise, normals
from .sources import (
    SEED,
    SEEDED,
    SIMULATION_ONLY,
    SOURCES,
    SYSTEM,
    NoiseSource,
    simulated_text,
    source_of,
)

__all__ = [
    "LEAST_DELTA",
    "MARGIN",
    "SEED",
    "SEEDED",
    "SIMULATION_ONLY",
    "SOURCES",
    "SYSTEM",
    "NoiseSource",
    "SecretStream",
    "add_noise",
    "normals",
    "refuse_inexact",
    "simulated_text",
    "source_of",
]
