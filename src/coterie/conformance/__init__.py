"""The checks that every method must pass, in rounds and in time, also your own."""

from ..names import publish
from .cases import Setting as Setting
from .suite import Check as Check
from .suite import Finding as Finding
from .suite import check_algorithm as check_algorithm
from .suite import faces_of as faces_of

publish(__name__)
