"""The files of a run, and how they are written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..names import late_names

# Imported late: folders and tables import pandas, which packing a state does not need.
# Cells import torch, which writing a study does not need.
if TYPE_CHECKING:
    from .cells import SNAPSHOT_CLIENTS as SNAPSHOT_CLIENTS
    from .cells import SPANS as SPANS
    from .cells import Baselines as Baselines
    from .cells import Cell as Cell
    from .cells import pack as pack
    from .cells import unpack as unpack
    from .files import lock_folder as lock_folder
    from .files import replacing as replacing
    from .folders import Folder as Folder
    from .searches import COLUMNS as COLUMNS
    from .searches import FoundSettings as FoundSettings
    from .searches import Options as Options
    from .searches import Rung as Rung
    from .searches import Search as Search
    from .searches import Step as Step
    from .searches import rungs as rungs
    from .searches import search_of as search_of
    from .tables import GroupLabels as GroupLabels
    from .tables import Outcomes as Outcomes
    from .tables import Records as Records
    from .tables import Snapshots as Snapshots
    from .tables import load_records as load_records

__getattr__, __dir__, __all__ = late_names(__name__)
