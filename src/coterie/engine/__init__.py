"""Runs methods in rounds or in virtual time, with clocks for virtual time."""

from ..names import publish
from .clocks import Clock as Clock
from .clocks import Delays as Delays
from .clocks import LinkDelays as LinkDelays
from .clocks import Rings as Rings
from .clocks import clock as clock
from .clocks import trace as trace
from .events import Event as Event
from .events import EventLoop as EventLoop
from .events import run_events as run_events
from .periods import Pace as Pace
from .rounds import Round as Round
from .rounds import run_rounds as run_rounds
from .servers import SERVERS as SERVERS
from .servers import with_server as with_server

publish(__name__)
