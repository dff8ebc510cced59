"""The routes of the v2 protocol: what a path means, and every answer that needs no inference."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from governor.simulator.answers import JSON, PLAIN, Answer, error_answer, json_answer
from governor.simulator.requests import parse_json
from governor.simulator.tensors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from governor.errors import JsonValue
    from governor.simulator.process import Process

_EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class Endpoint(enum.Enum):
    """The kinds of request a simulated Triton tells apart, also when it is to misbehave."""

    LIVE = "live"
    READY = "ready"
    SERVER = "server"
    MODEL = "model"
    MODEL_READY = "model_ready"
    CONFIG = "config"
    STATISTICS = "statistics"
    TRACE = "trace"
    INDEX = "index"
    LOAD = "load"
    UNLOAD = "unload"
    INFER = "infer"
    GENERATE = "generate"
    GENERATE_STREAM = "generate_stream"
    METRICS = "metrics"
    NO_METRICS = "no_metrics"
    """Any other path of the metrics port."""
    UNKNOWN = "unknown"


INFERENCES: Final = frozenset({Endpoint.INFER, Endpoint.GENERATE, Endpoint.GENERATE_STREAM})


@dataclass(frozen=True)
class Route:
    """What a request asks for."""

    endpoint: Endpoint
    method: str
    model: str | None = None
    version: int | None = None


_MODEL_PATH: Final = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([0-9]+))?"
    r"(?:/(infer|generate|generate_stream|ready|config|stats|trace/setting))?"
)
_BY_ENDING: Final = {
    "": Endpoint.MODEL,
    "infer": Endpoint.INFER,
    "generate": Endpoint.GENERATE,
    "generate_stream": Endpoint.GENERATE_STREAM,
    "ready": Endpoint.MODEL_READY,
    "config": Endpoint.CONFIG,
    "stats": Endpoint.STATISTICS,
    "trace/setting": Endpoint.TRACE,
}
_CONTROL_PATH: Final = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")
_FIXED: Final = {
    "/v2": Endpoint.SERVER,
    "/v2/health/live": Endpoint.LIVE,
    "/v2/health/ready": Endpoint.READY,
    "/v2/models/stats": Endpoint.STATISTICS,
    "/v2/trace/setting": Endpoint.TRACE,
    "/v2/repository/index": Endpoint.INDEX,
}
_METRICS_TYPE: Final = f"{PLAIN}; charset=utf-8"
_POST_ONLY: Final = frozenset({*INFERENCES, Endpoint.INDEX, Endpoint.LOAD, Endpoint.UNLOAD})
_PLAIN_ERRORS: Final = frozenset(
    {
        Endpoint.INFER,
        Endpoint.LIVE,
        Endpoint.READY,
        Endpoint.MODEL_READY,
        Endpoint.METRICS,
        Endpoint.NO_METRICS,
    }
)


def route_of(method: str, target: str) -> Route:
    """What a request line asks for; the query is ignored, as Triton ignores it."""
    path = target.partition("?")[0]
    if path in _FIXED:
        return Route(_FIXED[path], method)
    control = _CONTROL_PATH.fullmatch(path)
    if control is not None:
        return Route(Endpoint(control[2]), method, control[1])
    model = _MODEL_PATH.fullmatch(path)
    if model is None:
        return Route(Endpoint.UNKNOWN, method)
    version = int(model[2]) if model[2] else None
    return Route(_BY_ENDING[model[3] or ""], method, model[1], version)


def misdirected(route: Route) -> Answer | None:
    """The answer to a request for no endpoint, or with the wrong method; None where both are right."""
    if route.endpoint is Endpoint.UNKNOWN:
        return error_answer(404, "Not Found", plain=True)
    allowed = {"POST"} if route.endpoint in _POST_ONLY else {"GET"}
    if route.endpoint is Endpoint.TRACE:
        allowed = {"GET", "POST"}
    if route.method not in allowed:
        return error_answer(405, "Method Not Allowed", plain=route.endpoint in _PLAIN_ERRORS)
    return None


def immediate_answer(process: Process, route: Route, body: bytes) -> Answer:
    """The answer to a request that needs no inference.

    Raises:
        RefusedError: with Triton's own sentence.
    """
    return _ANSWERS[route.endpoint](process, route, body)


def _server(process: Process, _route: Route, _body: bytes) -> Answer:
    version = process.rules.version
    return json_answer({"name": process.server_id, "version": version, "extensions": [*_EXTENSIONS]})


def _model(process: Process, route: Route, _body: bytes) -> Answer:
    load = process.find(route.model or "", route.version)
    return json_answer(load.config.metadata(process.versions(load.config.name)))


def _config(process: Process, route: Route, _body: bytes) -> Answer:
    return json_answer(process.find(route.model or "", route.version).config.as_json())


def _model_ready(process: Process, route: Route, _body: bytes) -> Answer:
    try:
        process.find(route.model or "", route.version)
    except RefusedError:
        return error_answer(400, "Model version not ready", plain=True)
    return Answer(200)


def _trace(process: Process, route: Route, body: bytes) -> Answer:
    if route.method == "GET":
        return json_answer(process.trace(route.model))
    return json_answer(process.set_trace(_object(body), route.model))


def _index(process: Process, _route: Route, body: bytes) -> Answer:
    asked = _object(body) if body else {}
    return json_answer(process.index(ready_only=asked.get("ready") is True))


def _control(process: Process, route: Route, body: bytes) -> Answer:
    if body:
        _object(body)
    control = process.load_model if route.endpoint is Endpoint.LOAD else process.unload_model
    control(route.model or "")
    return Answer(200, content_type=JSON)


def _object(body: bytes) -> dict[str, JsonValue]:
    value = parse_json(body)
    if not isinstance(value, dict):
        raise RefusedError(500, "attempt to get members for non-object")
    return value


_ANSWERS: Final[Mapping[Endpoint, Callable[[Process, Route, bytes], Answer]]] = {
    Endpoint.LIVE: lambda _process, _route, _body: Answer(200),
    Endpoint.READY: lambda process, _route, _body: Answer(200 if process.ready() else 400),
    Endpoint.SERVER: _server,
    Endpoint.MODEL: _model,
    Endpoint.MODEL_READY: _model_ready,
    Endpoint.CONFIG: _config,
    Endpoint.STATISTICS: lambda process, route, _body: json_answer(process.statistics(route.model, route.version)),
    Endpoint.TRACE: _trace,
    Endpoint.INDEX: _index,
    Endpoint.LOAD: _control,
    Endpoint.UNLOAD: _control,
    Endpoint.NO_METRICS: lambda _process, _route, _body: Answer(200, content_type=_METRICS_TYPE),
    Endpoint.METRICS: lambda process, _route, _body: Answer(200, process.metrics().encode(), _METRICS_TYPE),
}
