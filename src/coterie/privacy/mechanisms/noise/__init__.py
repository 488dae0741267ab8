"""Gaussian noise: from named streams for simulations, or from secret bits.

For sums of whole numbers, the noise is a whole number too.
"""

from .secret import LEAST_DELTA, MARGIN, SecretStream, refuse_inexact
from .seeded import add_noise, normals
from .sources import (
    SEED,
    SEEDED,
    SIMULATION_ONLY,
    SOURCES,
    SYSTEM,
    DueNoise,
    NoiseSource,
    WholeNoise,
    simulated_text,
    source_of,
)
from .whole import deviation_for, discrete_gaussian, refuse_coarse

__all__ = [
    "LEAST_DELTA",
    "MARGIN",
    "SEED",
    "SEEDED",
    "SIMULATION_ONLY",
    "SOURCES",
    "SYSTEM",
    "DueNoise",
    "NoiseSource",
    "SecretStream",
    "WholeNoise",
    "add_noise",
    "deviation_for",
    "discrete_gaussian",
    "normals",
    "refuse_coarse",
    "refuse_inexact",
    "simulated_text",
    "source_of",
]
