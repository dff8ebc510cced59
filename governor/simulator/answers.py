"""What goes back over HTTP: answers, and the forms an inference's results take in them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from governor.simulator.tensors import elements_to_binary, elements_to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.errors import JsonValue
    from governor.simulator.config import ModelConfig
    from governor.simulator.inference import Failure, Request, Response
    from governor.simulator.rules import Rules

JSON: Final = "application/json"
PLAIN: Final = "text/plain"
EVENTS: Final = "text/event-stream; charset=utf-8"
NOT_ONE_RESPONSE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


@dataclass(frozen=True)
class Answer:
    """One complete HTTP answer."""

    status: int
    body: bytes = b""
    content_type: str = PLAIN
    chunked: bool = False
    headers: dict[str, str] = field(default_factory=dict)


def json_answer(value: JsonValue, status: int = 200) -> Answer:
    """An answer with a JSON body."""
    return Answer(status, json_bytes(value), JSON)


def error_answer(status: int, message: str, *, plain: bool = False) -> Answer:
    """An answer `{"error": message}`."""
    return Answer(status, json_bytes({"error": message}), PLAIN if plain else JSON)


def json_bytes(value: JsonValue) -> bytes:
    """Compact JSON, text beyond ASCII as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


class Outcome:
    """What comes back of one inference, and the answer it makes.

    Args:
        config: the model's configuration.
        version: the version that executes it.
        request: the request.
        rules: the release's rules.
        notify: called whenever there is something new.
    """

    def __init__(
        self, config: ModelConfig, version: int, request: Request, rules: Rules, notify: Callable[[], None]
    ) -> None:
        self.responses: list[Response] = []
        self.failure: Failure | None = None
        self.ended = False
        self._config = config
        self._version = version
        self._request = request
        self._rules = rules
        self._notify = notify
        self._told = 0
        self._failure_told = False

    def respond(self, response: Response) -> None:
        """Take a response in."""
        self.responses.append(response)
        self._notify()

    def end(self, failure: Failure | None) -> None:
        """Take the end in."""
        self.failure = failure
        self.ended = True
        self._notify()

    # -- infer ---------------------------------------------------------------------------------------------

    def infer_answer(self, wanted: dict[str, bool], *, binary: bool) -> Answer:
        """The answer of `infer`, once ended. `wanted`: output name -> in binary; empty: all of them."""
        if self.failure is not None:
            return self._infer_error(self.failure.status, self.failure.message)
        response = self.responses[0]
        if response.error is not None:
            return self._infer_error(400 if response.blames_caller else 500, response.error)
        head: dict[str, JsonValue] = {"id": self._request.id} if self._request.id else {}
        head |= {"model_name": self._config.name, "model_version": str(self._version)}
        if response.parameters:
            head["parameters"] = response.parameters
        outputs: list[JsonValue] = []
        raw = b""
        for tensor in response.outputs:
            if wanted and tensor.name not in wanted:
                continue
            told: dict[str, JsonValue] = {"name": tensor.name, "datatype": tensor.datatype}
            told["shape"] = [*tensor.shape]
            if wanted.get(tensor.name, binary):
                encoded = elements_to_binary(tensor)
                raw += encoded
                told["parameters"] = {"binary_data_size": len(encoded)}
            else:
                told["data"] = elements_to_json(tensor)
            outputs.append(told)
        body = json_bytes({**head, "outputs": outputs})
        if not raw:
            return Answer(200, body, JSON)
        length = {"Inference-Header-Content-Length": str(len(body))}
        return Answer(200, body + raw, "application/octet-stream", headers=length)

    def _infer_error(self, status: int, message: str) -> Answer:
        return error_answer(400 if self._rules.every_error_is_400 else status, message, plain=True)

    # -- generate and generate_stream ----------------------------------------------------------------------

    def generate_answer(self) -> Answer:
        """The answer of `generate`, once ended: every error of an executed inference has status 400."""
        if self.failure is not None:
            return self._generated(400, {"error": self.failure.message})
        error = next((one.error for one in self.responses if one.error is not None), None)
        if error is not None:
            return self._generated(400, {"error": error})
        if len(self.responses) != 1:
            return self._generated(200, {"error": NOT_ONE_RESPONSE})
        return self._generated(200, self._event(self.responses[0]))

    @staticmethod
    def _generated(status: int, value: JsonValue) -> Answer:
        return Answer(status, json_bytes(value), JSON, chunked=True)

    @property
    def stream_status(self) -> int | None:
        """The status of `generate_stream`: known with the first response or the end, None before."""
        if self.responses:
            return 400 if self.responses[0].error is not None else 200
        if self.ended:
            return 400 if self.failure is not None else 200
        return None

    def new_events(self) -> list[bytes]:
        """The server-sent events that were not handed out yet."""
        fresh = self.responses[self._told :]
        self._told = len(self.responses)
        events = [json_bytes(self._event(response)) for response in fresh]
        if self.failure is not None and not self._failure_told:
            self._failure_told = True
            events.append(json_bytes({"error": self.failure.message}))
        return [b"data: " + event + b"\n\n" for event in events]

    def _event(self, response: Response) -> JsonValue:
        if response.error is not None:
            return {"error": response.error}
        told: dict[str, JsonValue] = {
            "model_name": self._config.name,
            "model_version": str(self._version),
            **response.parameters,
        }
        if self._request.id:
            told["id"] = self._request.id
        for tensor in response.outputs:
            data = elements_to_json(tensor)
            told[tensor.name] = data[0] if len(data) == 1 else data
        return dict(sorted(told.items()))
