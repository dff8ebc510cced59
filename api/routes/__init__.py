"""The routes of the Quart application: decode, call, encode. What they call decides everything."""

from ..admin.routes import blueprint as admin
from ..ui.routes import blueprint as ui
from ..v2.control import blueprint as triton_control
from ..v2.routes import blueprint as triton
from .events import blueprint as events
from .prompts import blueprint as prompts
from .restore import blueprint as restore
from .service import blueprint as service
from .sessions import blueprint as sessions

BLUEPRINTS = (service, sessions, restore, prompts, events, triton, triton_control, admin, ui)

__all__ = ["BLUEPRINTS"]
