"""A client's connection: what it owns, how long it lives, and what becomes of it at its end.

A connection lives as long as one of its streams is open. Without any it waits a while for its client to come back, and
then ends by itself: its pending prompts are cancelled, its client ids are taken back, and a session that was made for
it goes if the client never learned of it. Everything here is synchronous but `watch`, the connection's one task.
"""

from __future__ import annotations

import uuid
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

import structlog
import trio

from governor.core.events import SubscriberLimits, SubscribersFullError
from governor.core.prompts import Outcome
from governor.errors import GovernorError

from ..departure import forget
from ..errors import SubscriberLimitError
from .calls import Call, Outbox
from .errors import ConnectionLimitError, DuplicateIdError, SessionNotOwnedError, UnreadResponsesError
from .streams import ResponseStream, SessionStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.config import LimitsConfig
    from governor.core.events import Subscription
    from governor.history import TurnRecord
    from governor.service import Governor
    from governor.session import Session

    from .messages import RequestId

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_TAKEN_MAX: Final = 64


class Binding:
    """One session as one connection owns it.

    Args:
        connection: whose.
        session: which.
        cursor: a stream that names no event begins after this one.
        made: the session was made for this connection.

    Attributes:
        client_id: who the connection is to the session.
        prompts: the connection's own pending prompts.
        known: the client has learned that it owns the session.
    """

    def __init__(self, connection: Connection, session: Session, *, cursor: int, made: bool) -> None:
        self.session = session
        self.client_id = session.clients.register()
        self.cursor = cursor
        self.prompts: dict[str, None] = {}
        self.known = False
        self._connection = connection
        self._made = made
        self._outbox = Outbox()
        self._stream: SessionStream | None = None
        self._taken: deque[Call] = deque(maxlen=_TAKEN_MAX)
        session.when_ended.append(self._session_ended)

    @property
    def streaming(self) -> bool:
        """Somebody reads the session's stream."""
        return self._stream is not None

    def learned(self) -> None:
        """The client knows that it owns the session."""
        self.known = True

    def deliver(self, call: Call) -> None:
        """Takes a response for the session's stream; for the connection's own one if there can be none any more."""
        over = self.session.closed and self._stream is None
        (self._connection.outbox if over else self._outbox).put(call)

    def settled(self, call: Call, record: TurnRecord) -> None:
        """A prompt has ended; its terminal event was published just now."""
        del self.prompts[record.prompt_id]
        call.anchor = self.session.log.last_id - 1
        if record.outcome is Outcome.FAILED:
            call.fail(record.error or GovernorError("the turn failed"))
        else:
            call.answer({"stopReason": record.stop_reason, "_meta": {"qwen": {"promptId": record.prompt_id}}})
        if self.session.closed:
            call.release()  # its stream is about to end

    def cancel(self) -> None:
        """Ends the session's running prompt, and those of this connection that wait."""
        for record in self.session.history.pending:
            if record.prompt_id in self.prompts and record.started_at_ms is None:
                self.session.remove(record.prompt_id, self.client_id)
        self.session.cancel(self.client_id)

    def open_stream(self, limits: LimitsConfig, *, after_id: int | None, epoch: str | None) -> SessionStream:
        """A new reader; the one before has its end.

        Args:
            limits: the bounds of what may wait for it.
            after_id: the newest event that the client has seen; None if it does not say.
            epoch: the life of the event log that it belongs to.

        Raises:
            SubscriberLimitError: the session has as many readers as it may have.
        """
        if self._stream is not None:
            self._stream.close()
        cursor = self.cursor if after_id is None else after_id

        def subscribe(wake: Callable[[], None]) -> Subscription:
            bounds = SubscriberLimits(frames=limits.subscriber_queue_frames, bytes=limits.subscriber_queue_bytes)
            return self.session.log.subscribe(wake, limits=bounds, after_id=cursor, epoch=epoch)

        try:
            self._stream = SessionStream(
                subscribe, self.session.log.unsubscribe, self._outbox, self._were_taken, self._stream_closed
            )
        except SubscribersFullError:
            raise SubscriberLimitError(limits.max_subscribers_per_session) from None
        # They went out with events that the client has not seen, so it has not seen them either.
        self._outbox.put_back(call for call in self._taken if call.anchor >= cursor)
        self._taken.clear()
        self.session.touch()
        self._connection.streams_changed()
        return self._stream

    def end(self) -> None:
        """The connection owns the session no more. Its own prompts have ended before."""
        if self._stream is not None:
            self._stream.end()
        self.session.when_ended.remove(self._session_ended)
        never_learned = self._made and not self.known
        forget(self._connection.governor, self.session, self.client_id, made=never_learned)

    def _were_taken(self, calls: list[Call]) -> None:
        self._taken.extend(call for call in calls if call.sure)
        self._connection.taken(calls)

    def _stream_closed(self, stream: ResponseStream) -> None:
        if stream is not self._stream:
            return
        if self._stream.taken_id is not None:
            self.cursor = self._stream.taken_id
        self._stream = None
        self.session.touch()
        if self.session.closed:
            self._session_ended()
        self._connection.streams_changed()

    def _session_ended(self) -> None:
        """Whoever reads the stream has its end; if nobody does, what waits for it goes to the connection's own."""
        if self._stream is None:
            for call in self._outbox.take():
                self._connection.outbox.put(call)
            self._connection.disown(self)


class Connection:
    """One client, from `initialize` on.

    Args:
        governor: what its requests are for.
        on_close: called once, at its end.

    Attributes:
        id: a UUID, which its client names it by.
        governor: see above.
        outbox: responses for the connection's own stream.
        closed: it has ended.
    """

    def __init__(self, governor: Governor, on_close: Callable[[Connection], None]) -> None:
        self.id = str(uuid.uuid4())
        self.governor = governor
        self.outbox = Outbox()
        self.closed = False
        self._on_close = on_close
        self._stream: ResponseStream | None = None
        self._bindings: dict[str, Binding] = {}
        self._calls: dict[RequestId, Call] = {}
        self._scope = trio.CancelScope()
        self._lapses_at_s = trio.current_time() + self._limits.acp_first_stream_timeout_ms / 1000
        self._changed = trio.Event()

    @property
    def _limits(self) -> LimitsConfig:
        return self.governor.config.limits

    @property
    def _reconnect_s(self) -> float:
        """How long it waits for another stream, or for a request, once it has lost its last one."""
        return self._limits.acp_reconnect_timeout_ms / 1000

    # Requests

    @property
    def pending_calls(self) -> int:
        """Requests whose responses were not read yet."""
        return len(self._calls)

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that were not read yet."""
        return sum(len(call.frame) for call in self._calls.values())

    def accept(self, request_id: RequestId) -> Call:
        """A request has come. From here on it has one response.

        Raises:
            DuplicateIdError: another one of this id is pending.
            UnreadResponsesError: too much waits to be read.
        """
        if request_id in self._calls:
            raise DuplicateIdError
        limits = self._limits
        if len(self._calls) >= limits.max_unread_acp_responses or self.unread_bytes > limits.max_unread_acp_bytes:
            raise UnreadResponsesError(len(self._calls), self.unread_bytes)
        call = self._calls[request_id] = Call(request_id, self.outbox.put)
        return call

    def taken(self, calls: list[Call]) -> None:
        """These responses were sent."""
        for call in calls:
            if self._calls.get(call.id) is call:
                del self._calls[call.id]
            if call.on_taken is not None:
                call.on_taken()

    def touch(self) -> None:
        """The client is there."""
        self._lapses_at_s = max(self._lapses_at_s, trio.current_time() + self._reconnect_s)

    # Sessions

    def own(self, session: Session, *, cursor: int, made: bool = False) -> Binding:
        """The connection owns this session from now on, if it did not before."""
        binding = self._bindings.get(session.id)
        if binding is None or binding.session is not session:
            binding = self._bindings[session.id] = Binding(self, session, cursor=cursor, made=made)
        binding.cursor = cursor
        return binding

    def owned(self, session_id: str) -> Binding:
        """The binding to a live session.

        Raises:
            SessionNotFoundError: the session does not live, or no longer.
            SessionNotOwnedError: it is none of this connection's.
            DrainingError: the governor accepts nothing more.
        """
        session = self.governor.session(session_id)
        binding = self._bindings.get(session_id)
        if binding is None or binding.session is not session:
            raise SessionNotOwnedError(session_id)
        return binding

    def disown(self, binding: Binding) -> None:
        """The binding's session has ended, and its stream as well."""
        if self._bindings.get(binding.session.id) is binding:
            del self._bindings[binding.session.id]

    # Streams

    @property
    def streaming(self) -> bool:
        """Somebody reads the connection's own stream."""
        return self._stream is not None

    @property
    def session_streams(self) -> int:
        """How many of its sessions' streams are read."""
        return sum(binding.streaming for binding in self._bindings.values())

    def open_stream(self) -> ResponseStream:
        """A new reader of the connection's own stream; the one before has its end."""
        if self._stream is not None:
            self._stream.close()
        self._stream = ResponseStream(self.outbox, self.taken, self._stream_closed)
        self.outbox.wake()
        self.streams_changed()
        return self._stream

    def streams_changed(self) -> None:
        """A stream was opened, or has ended."""
        self._lapses_at_s = trio.current_time() + self._reconnect_s
        self._changed.set()
        self._changed = trio.Event()

    def _stream_closed(self, stream: ResponseStream) -> None:
        if stream is self._stream:
            self._stream = None
            self.streams_changed()

    # Life

    async def watch(self) -> None:
        """Ends the connection when its client has been away for too long; ends with the connection."""
        with self._scope:
            while (left_at_s := self._ends_at_s()) > trio.current_time():
                changed = self._changed
                with trio.move_on_at(left_at_s):
                    await changed.wait()
            _log.info("acp_connection_lapsed", connection=self.id[:8])
            self.close()

    def _ends_at_s(self) -> float:
        return inf if self.streaming or self.session_streams else self._lapses_at_s

    def close(self) -> None:
        """Ends it. Its pending prompts are cancelled; its streams tell what there is, and end. Any number of times."""
        if self.closed:
            return
        self.closed = True
        for binding in self._bindings.values():
            for prompt_id in reversed(list(binding.prompts)):
                binding.session.withdraw(prompt_id)
        for call in list(self._calls.values()):
            call.release()
        for binding in list(self._bindings.values()):
            binding.end()
        if self._stream is not None:
            self._stream.end()
        self._scope.cancel()
        self._on_close(self)


class Connections:
    """All connections of one governor. They end with it.

    Args:
        governor: what the connections are for.
    """

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._by_id: dict[str, Connection] = {}
        governor.at_drain(self._close_all)

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self) -> Connection:
        """A new connection.

        Raises:
            DrainingError: the governor accepts nothing more.
            ConnectionLimitError: there are as many as may be.
        """
        limit = self._governor.config.limits.max_acp_connections
        if len(self._by_id) >= limit:
            raise ConnectionLimitError(limit)
        connection = Connection(self._governor, self._closed)
        self._governor.start_soon(connection.watch)
        self._by_id[connection.id] = connection
        return connection

    def get(self, connection_id: str) -> Connection | None:
        """The open connection of this id."""
        return self._by_id.get(connection_id)

    def statistics(self) -> dict[str, int]:
        """How many connections, streams and requests there are, in the protocol's words."""
        connections = self._by_id.values()
        own = sum(connection.streaming for connection in connections)
        of_sessions = sum(connection.session_streams for connection in connections)
        return {
            "connections": len(connections),
            "connectionStreams": own,
            "sessionStreams": of_sessions,
            "sseStreams": own + of_sessions,
            "wsStreams": 0,
            "pendingClientRequests": 0,
            "pendingRequests": sum(connection.pending_calls for connection in connections),
        }

    def _closed(self, connection: Connection) -> None:
        del self._by_id[connection.id]

    def _close_all(self) -> None:
        for connection in list(self._by_id.values()):
            connection.close()
