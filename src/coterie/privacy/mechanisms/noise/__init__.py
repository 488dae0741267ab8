"""Gaussian noise: from named streams for simulations, or from secret bits.

For sums of whole numbers, the noise is a whole number too.
"""

from ....names import publish
from .secret import LEAST_DELTA as LEAST_DELTA
from .secret import MARGIN as MARGIN
from .secret import SecretStream as SecretStream
from .secret import refuse_inexact as refuse_inexact
from .seeded import add_noise as add_noise
from .seeded import normals as normals
from .sources import SEED as SEED
from .sources import SEEDED as SEEDED
from .sources import SIMULATION_ONLY as SIMULATION_ONLY
from .sources import SOURCES as SOURCES
from .sources import SYSTEM as SYSTEM
from .sources import DueNoise as DueNoise
from .sources import NoiseSource as NoiseSource
from .sources import WholeNoise as WholeNoise
from .sources import simulated_text as simulated_text
from .sources import source_of as source_of
from .whole import deviation_for as deviation_for
from .whole import discrete_gaussian as discrete_gaussian
from .whole import refuse_coarse as refuse_coarse

publish(__name__)
