"""The routes of the Quart application: decode, call, encode. What they call decides everything."""

from .events import blueprint as events
from .prompts import blueprint as prompts
from .service import blueprint as service
from .sessions import blueprint as sessions

BLUEPRINTS = (service, sessions, prompts, events)

__all__ = ["BLUEPRINTS"]
