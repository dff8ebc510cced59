"""The routes of the Quart application: decode, call, encode. What they call decides everything."""

from .events import blueprint as events
from .prompts import blueprint as prompts
from .restore import blueprint as restore
from .service import blueprint as service
from .sessions import blueprint as sessions

BLUEPRINTS = (service, sessions, restore, prompts, events)

__all__ = ["BLUEPRINTS"]
