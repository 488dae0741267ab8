"""Ways to compute many models on a CPU: in one pass, or one model after the other."""

from ...names import publish
from .alone import RowModule as RowModule
from .alone import can_take_channels_last as can_take_channels_last
from .choice import Work as Work
from .choice import convolves as convolves
from .choice import runs_alone as runs_alone
from .choice import work_of as work_of
from .threads import in_threads as in_threads

publish(__name__)
