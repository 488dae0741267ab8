"""Studies with [privacy]: how entries are trained privately, and what that costs."""

from ...names import publish
from .accounting.charges import cost_of as cost_of
from .accounting.releases import exact_epsilon as exact_epsilon
from .accounting.releases import releases_of as releases_of
from .accounting.releases import spent_of as spent_of
from .accounting.releases import stopped_text as stopped_text
from .accounting.releases import worst_epsilon as worst_epsilon
from .accounting.spending import CellAccount as CellAccount
from .accounting.spending import charge_partners as charge_partners
from .accounting.spending import summary_line as summary_line
from .accounting.spending import summary_of as summary_of
from .mechanisms.blanks import without_data as without_data
from .mechanisms.guards import Guard as Guard
from .mechanisms.guards import guard_of as guard_of
from .mechanisms.guards import make_guard as make_guard
from .mechanisms.guards import refuse_unsummed as refuse_unsummed
from .mechanisms.partners import partner_releases as partner_releases
from .mechanisms.partners import refuse_made_from_data as refuse_made_from_data
from .mechanisms.partners import refuse_uncounted_choices as refuse_uncounted_choices
from .mechanisms.partners import releases_before as releases_before

publish(__name__)
