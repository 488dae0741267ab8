"""What the folder of a site's results says about its client, so that tools can read it.

It has the same files as the folder of a simulation, with the site as the only client.
So `coterie report`, `export` and `predict` work on it.
"""

from __future__ import annotations

from ...records import Folder
from ...study.setup import Setup


def describe(setup: Setup, folder: Folder) -> None:
    """Writes how the site's client, its features and its model are made.

    Args:
        setup: of one seed, with this site's client alone.
        folder: of the results.
    """
    federation, seed = setup.federation, setup.seed
    folder.describe(seed, federation, setup.simulation.objective)
    folder.describe_model(seed, federation, setup.module)
