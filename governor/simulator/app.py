"""What a simulated Triton's HTTP front does with a request: faults, inferences, and everything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from governor.simulator.answers import EVENTS, Answer, Outcome, error_answer
from governor.simulator.connection import (
    AbandonedError,
    Client,
    Head,
    Pieces,
    ResetConnectionError,
    Responder,
)
from governor.simulator.faults import (
    Action,
    EndlessBody,
    Faults,
    Hang,
    Replace,
    ResetAfterBody,
    ResetBeforeBody,
    ResetMidAnswer,
)
from governor.simulator.inference import Inference, Request
from governor.simulator.requests import InferBody, generate_request
from governor.simulator.routes import INFERENCES, Endpoint, Route, immediate_answer, misdirected, route_of
from governor.simulator.tensors import RefusedError

if TYPE_CHECKING:
    from governor.simulator.process import AnyLoad, Process

_HEADER_LENGTH: Final = "inference-header-content-length"
_Make = Callable[[], Awaitable[Answer | Pieces]]
"""Makes the answer of a request that was taken in; it may have to wait for it."""


class Front:
    """The HTTP front of one process.

    Args:
        process: the process.
        faults: the misbehaviours that are on.
        metrics_port: whether this is the metrics port, which knows `/metrics` and no other path.
    """

    def __init__(self, process: Process, faults: Faults, *, metrics_port: bool = False) -> None:
        self._process = process
        self._faults = faults
        self._metrics_port = metrics_port

    def begin(self, head: Head) -> Responder:
        """Decide what becomes of a request, before its body is read."""
        if self._metrics_port:
            known = head.target.partition("?")[0] == "/metrics"
            route = Route(Endpoint.METRICS if known else Endpoint.NO_METRICS, head.method)
        else:
            route = route_of(head.method, head.target)
        delay_s, action = self._faults.take(route)
        if isinstance(action, ResetBeforeBody):
            raise ResetConnectionError
        return _Call(self._process, route, head, delay_s, action)


class _Call:
    """One request on its way to its answer."""

    def __init__(self, process: Process, route: Route, head: Head, delay_s: float, action: Action | None) -> None:
        self._process = process
        self._route = route
        self._head = head
        self._delay_s = delay_s
        self._action = action

    async def answer(self, body: bytes, client: Client) -> Answer | Pieces:
        """Answer it, or misbehave."""
        action = self._action
        if isinstance(action, Hang) and not action.executes:
            await _departure(client)
        make = self._begin(body, client)
        if isinstance(action, ResetAfterBody):
            raise ResetConnectionError
        if isinstance(action, Hang):
            await _departure(client)
        answer = await make()
        if self._delay_s:
            await trio.sleep(self._delay_s)
        return _misbehaving(answer, action)

    def _begin(self, body: bytes, client: Client) -> _Make:
        """Take the request in: an inference is submitted when this returns."""
        wrong = misdirected(self._route)
        if wrong is not None:
            return _Ready(wrong).answer
        try:
            if self._route.endpoint in INFERENCES:
                return self._begin_inference(body, client)
            return _Ready(immediate_answer(self._process, self._route, body)).answer
        except RefusedError as refused:
            return _Ready(error_answer(refused.status, str(refused), plain=refused.plain)).answer

    def _begin_inference(self, body: bytes, client: Client) -> _Make:
        load = self._find()
        if self._route.endpoint is Endpoint.INFER:
            parsed = InferBody(load.config, body, self._header_length())
            waiting = _Waiting(self._process, load, parsed.request, client)
            return lambda: waiting.infer_answer(parsed)
        waiting = _Waiting(self._process, load, generate_request(load.config, body), client)
        if self._route.endpoint is Endpoint.GENERATE:
            return waiting.generate_answer
        return waiting.stream

    def _find(self) -> AnyLoad:
        infer = self._route.endpoint is Endpoint.INFER
        try:
            load = self._process.find(self._route.model or "", self._route.version)
        except RefusedError as unknown:
            raise RefusedError(unknown.status, str(unknown), plain=infer) from None
        if infer and load.config.decoupled:
            sentence = "HTTP end point doesn't support models with decoupled transaction policy"
            raise RefusedError(501, sentence, plain=True)
        return load

    def _header_length(self) -> int | None:
        told = self._head.headers.get(_HEADER_LENGTH)
        if told is None:
            return None
        return int(told) if told.isascii() and told.isdigit() else 0


async def _departure(client: Client) -> NoReturn:
    """Do nothing until the client leaves."""
    left = trio.Event()
    client.on_left = left.set
    if not client.left:
        await left.wait()
    raise AbandonedError


class _Ready:
    """An answer that is there already."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def answer(self) -> Answer:
        """Give it."""
        return self._answer


class _Waiting:
    """The wait for a submitted inference, in the three forms its answer can have."""

    def __init__(self, process: Process, load: AnyLoad, request: Request, client: Client) -> None:
        self._client = client
        self._news = trio.Event()
        self.outcome = Outcome(load.config, load.version, request, process.rules, self._wake)
        self._inference = Inference(request, on_response=self.outcome.respond, on_end=self.outcome.end)
        load.submit(self._inference)
        client.on_left = self._left

    def _wake(self) -> None:
        self._news.set()

    def _left(self) -> None:
        self._inference.client_left()
        self._wake()

    async def wait(self) -> None:
        """Wait until there is something new since the last wait."""
        await self._news.wait()
        self._news = trio.Event()

    async def _ended(self) -> None:
        while not self.outcome.ended:
            await self.wait()

    async def infer_answer(self, parsed: InferBody) -> Answer:
        """The answer of `infer`."""
        await self._ended()
        return self.outcome.infer_answer(parsed.outputs, binary=parsed.binary)

    async def generate_answer(self) -> Answer:
        """The answer of `generate`."""
        await self._ended()
        return self.outcome.generate_answer()

    async def stream(self) -> Pieces:
        """The answer of `generate_stream`, once its status is known."""
        while (status := self.outcome.stream_status) is None:
            await self.wait()
        return _EventPieces(self, status, self._client)


class _EventPieces:
    """A stream of server-sent events. It ends without an end where the client left, half-closed included."""

    content_type = EVENTS
    content_length = None

    def __init__(self, waiting: _Waiting, status: int, client: Client) -> None:
        self.status = status
        self._waiting = waiting
        self._client = client
        self._pending: list[bytes] = []

    async def next_piece(self) -> bytes | None:
        """The next event."""
        while not self._pending:
            if self._client.left:
                raise AbandonedError
            self._pending = self._waiting.outcome.new_events()
            if self._pending:
                break
            if self._waiting.outcome.ended:
                return None
            await self._waiting.wait()
        return self._pending.pop(0)


# -- misbehaviour ------------------------------------------------------------------------------------------


def _misbehaving(answer: Answer | Pieces, action: Action | None) -> Answer | Pieces:
    if isinstance(answer, Answer):
        if isinstance(action, Replace):
            return action.make(answer)
        if isinstance(action, ResetMidAnswer):
            return _CutAnswer(answer, action.body_bytes)
        if isinstance(action, EndlessBody):
            return _EndlessAnswer(answer, action)
    elif isinstance(action, ResetMidAnswer):
        return _CutPieces(answer, action.events)
    return answer


class _CutAnswer:
    """The beginning of an answer, then a reset."""

    def __init__(self, answer: Answer, body_bytes: int) -> None:
        self.status = answer.status
        self.content_type = answer.content_type
        self.content_length = None if answer.chunked else len(answer.body)
        self._piece: bytes | None = answer.body[: min(body_bytes, max(0, len(answer.body) - 1))]

    async def next_piece(self) -> bytes | None:
        """The one piece."""
        if self._piece is None:
            raise ResetConnectionError
        piece, self._piece = self._piece, None
        return piece


class _CutPieces:
    """The first events of a stream, then a reset."""

    content_length = None

    def __init__(self, pieces: Pieces, events: int) -> None:
        self.status = pieces.status
        self.content_type = pieces.content_type
        self._pieces = pieces
        self._left = events

    async def next_piece(self) -> bytes | None:
        """The next event, as long as there are some left."""
        if not self._left:
            raise ResetConnectionError
        self._left -= 1
        return await self._pieces.next_piece()


class _EndlessAnswer:
    """An answer whose body never ends."""

    content_length = None

    def __init__(self, answer: Answer, endless: EndlessBody) -> None:
        self.status = answer.status
        self.content_type = answer.content_type
        self._endless = endless
        self._first: bytes | None = answer.body[:1] or b" "

    async def next_piece(self) -> bytes | None:
        """One more piece."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        await trio.sleep(self._endless.every_s)
        return self._endless.piece
