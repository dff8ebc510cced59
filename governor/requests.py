"""Requests are held against their model before a credit is spent on them (D5).

What Triton would refuse is refused here: it needs no slot then, and its uncounted error leaves no doubt about what the
counters mean. What passes may rest on what was asked a while ago, as Triton judges it again; a refusal never does: the
model is asked once more, after the request came, so that nothing is refused that Triton would accept by then.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
import trio

from governor.errors import BackendProtocolError, CallerError, GovernorError
from governor.triton.jsons import parse_json
from governor.triton.metadata import parse_model
from governor.triton.requestcheck import find_fault
from governor.triton.text import error_message
from governor.triton.wire import WireRequest, model_path

if TYPE_CHECKING:
    from governor.backend import Backend
    from governor.errors import JsonValue
    from governor.identity import Identity
    from governor.triton.metadata import ModelFacts
    from governor.triton.requestcheck import Fault, RequestHead

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

WAIT_MS: Final = 1_000
"""Longest time that a request waits to be checked; it passes unchecked after it."""
ASK_TIMEOUT_MS: Final = 500
"""Longest time for one question about a model."""
FRESH_S: Final = 60.0
"""What was asked longer ago is asked again before the next request."""
UNKNOWN_S: Final = 5.0
"""The same where the server did not say what the model is: requests pass unchecked meanwhile."""
_DOUBT_S: Final = 1.0
"""What is younger is not doubted: else every refusal by Triton would cost a question."""
_VERSIONS_MAX: Final = 16
_NO_MODEL: Final = "Request for unknown model: "


class RequestRefusedError(CallerError):
    """Triton would refuse the request, with this status and sentence; it was not sent."""

    code = "invalid_inference_request"

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status  # type: ignore[misc]  # Triton's own, known per instance only


class TensorDataError(RequestRefusedError):
    """The data of a tensor cannot be as much as its shape says; as Triton's own answer, a 500."""

    code = "invalid_tensor_data"
    status = 500


class NotServedError(RequestRefusedError):
    """Triton serves no such version of the model, or none at all."""

    code = "model_not_served"
    status = 404


class DecoupledModelError(RequestRefusedError):
    """`infer` over HTTP does not work for a decoupled model; `generate_stream` does."""

    code = "decoupled_model"
    status = 501


_KINDS: Final = {kind.status: kind for kind in (RequestRefusedError, TensorDataError, DecoupledModelError)}


@dataclass(frozen=True, slots=True)
class _Told:
    """What the server said of one version of a model.

    Attributes:
        number: of the question, in the order of questions.
        at_s, until_s: when it was asked, and how long the answer is good for letting requests pass.
        life: the life of the model's counters that was known then.
        facts: the model; None where the server does not serve it, or did not say.
        refusal: status and sentence if the server does not serve it.
    """

    number: int
    at_s: float
    until_s: float
    life: int
    facts: ModelFacts | None
    refusal: tuple[int, str] | None


class RequestCheck:
    """Checks the requests for one identity.

    Args:
        backend: its server.
        identity: the identity.
    """

    def __init__(self, backend: Backend, identity: Identity) -> None:
        self._backend = backend
        self._identity = identity
        self._told: OrderedDict[str | None, _Told] = OrderedDict()
        self._turn = trio.Lock()
        self._asked = 0

    async def check(self, head: RequestHead) -> None:
        """Lets pass what Triton would accept, or may accept; without a checkpoint where that is known.

        Raises:
            RequestRefusedError: Triton would refuse it, in these words.
        """
        if self._backend.status.problem is not None:
            return  # the call itself finds out, and says so
        arrived_after = self._asked
        told = self._told.get(head.version)
        if told is None or not self._is_fresh(told):
            told = await self._ask(head.version, after=arrived_after)
        if told is None or _refusal(head, told) is None:
            return
        told = await self._ask(head.version, after=arrived_after)
        refusal = _refusal(head, told) if told is not None else None
        if refusal is not None:
            raise refusal

    def doubt(self) -> None:
        """Triton answered as if the model were another one than is known: the next request asks again."""
        now_s = trio.current_time()
        for version, told in list(self._told.items()):
            if told.at_s + _DOUBT_S <= now_s:
                del self._told[version]

    def _is_fresh(self, told: _Told) -> bool:
        return told.life == self._identity.lives_begun and trio.current_time() < told.until_s

    async def _ask(self, version: str | None, *, after: int) -> _Told | None:
        """What the server says in answer to a question that was asked after that many; None if it does not say.

        One question at a time, and its answer is for all who wait: no number of requests makes it many.
        """
        with trio.move_on_after(WAIT_MS / 1000):
            async with self._turn:
                told = self._told.get(version)
                if told is None or told.number <= after:
                    told = await self._question(version)
                return told
        return None

    async def _question(self, version: str | None) -> _Told:
        self._asked += 1
        number, at_s, life = self._asked, trio.current_time(), self._identity.lives_begun
        path = model_path(self._identity.key.model, version, "config")
        facts, refusal = None, None
        try:
            reply = await self._backend.reads.ask(WireRequest(method="GET", path=path), timeout_ms=ASK_TIMEOUT_MS)
            sentence = error_message(reply.body) if reply.status != 200 else ""
            if reply.status == 200:
                facts = parse_model(_object(reply.body), {})
            elif sentence.startswith(_NO_MODEL):
                refusal = (reply.status, sentence)
        except GovernorError as error:
            _log.debug("model_not_learned", identity=str(self._identity.key), error=error.message)
        until_s = at_s + (FRESH_S if facts is not None else UNKNOWN_S)
        told = self._told[version] = _Told(number, at_s, until_s, life, facts, refusal)
        self._told.move_to_end(version)
        if len(self._told) > _VERSIONS_MAX:
            self._told.popitem(last=False)
        return told


def _refusal(head: RequestHead, told: _Told) -> RequestRefusedError | None:
    """Why Triton would refuse the request, for certain."""
    if told.refusal is not None:
        status, sentence = told.refusal
        return NotServedError(sentence, status=status)
    fault = find_fault(head, told.facts) if told.facts is not None else None
    return _refusal_of(fault) if fault is not None else None


def refuse(fault: Fault | None) -> None:
    """Raises RequestRefusedError, in the words of the fault if there is one."""
    if fault is not None:
        raise _refusal_of(fault)


def _refusal_of(fault: Fault) -> RequestRefusedError:
    """The error of what Triton would answer."""
    kind = _KINDS.get(fault.status, RequestRefusedError)
    return kind(fault.sentence, status=fault.status)


def _object(body: bytes) -> dict[str, JsonValue]:
    try:
        document = parse_json(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise BackendProtocolError("The backend's answer is no model configuration")
    return document
