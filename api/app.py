"""The governor's HTTP surface, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug.routing import BaseConverter

from .acp.routes import blueprint as acp
from .auth import Gate
from .context import GovernorApp, check_rate
from .cors import Cors
from .errors import install_error_handlers
from .guard import Guard
from .inference import Inference
from .metrics import GovernorCollector
from .prompt_route import PromptRoute
from .rate import RateLimiter
from .receipts import Receipts
from .refused import Refused
from .routes import BLUEPRINTS

if TYPE_CHECKING:
    from governor.config import Config
    from governor.operations import ConfigSource
    from governor.service import Governor

_SPARE_S = 5.0


class Anything(BaseConverter):
    """A part of a path that may hold slashes and begin with one: an absolute path inside of a path."""

    regex = ".+?"
    part_isolating = False


class Memory(BaseConverter):
    """Triton's two kinds of shared memory, as its routes name them."""

    regex = "(?:system|cuda)sharedmemory"


def create_app(governor: Governor, source: ConfigSource | None = None) -> GovernorApp:
    """The ASGI application of a governor. It owns no task: whoever runs the governor decides how long it lives.

    From the outside in: the guard bounds each request, the gate lets in who may come, inference passes to the
    backends, prompts are accepted, and Quart has the other routes.

    Args:
        governor: whose.
        source: where its configuration can be read again; None if nowhere.
    """
    app = GovernorApp(governor, source)
    app.url_map.merge_slashes = False  # a path that is no route is a 404, never a redirect
    app.url_map.converters["anything"] = Anything
    app.url_map.converters["memory"] = Memory
    # The guard bounds bodies, the server their pace; Quart's own limits would only answer in other words.
    app.config["MAX_CONTENT_LENGTH"] = None
    app.config["BODY_TIMEOUT"] = None
    for blueprint in (*BLUEPRINTS, acp):
        app.register_blueprint(blueprint)
    install_error_handlers(app)
    app.before_request(check_rate)
    config = governor.config
    gate = Gate(Inference(Receipts(PromptRoute(app.asgi_app, app)), governor), config)
    refused = Refused()
    guard = Guard(
        gate,
        max_body_bytes=config.limits.max_body_bytes,
        max_in_flight=config.server.max_in_flight,
        final_send_timeout_s=config.server.send_timeout_ms / 1000 + _SPARE_S,
        on_error=refused.note,
    )
    # Without allowed origins there is nothing to do for them.
    outermost = Cors(guard, config) if config.server.allow_origins else guard
    app.asgi_app = outermost  # type: ignore[method-assign]  # Quart's documented way to wrap it
    app.collector = GovernorCollector(governor, refused, lambda: guard.in_flight, lambda: len(app.acp))

    def follow(config: Config) -> None:
        gate.follow(config)
        guard.max_body_bytes = config.limits.max_body_bytes
        app.rate_limiter = RateLimiter.renewed(app.rate_limiter, config.limits)

    governor.followers.append(follow)
    return app
