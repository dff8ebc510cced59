"""`DaemonClient`: everything a server offers to callers, one method for each route (C1 to C3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from .cursor import Cursor
from .errors import DaemonSessionIdProtocolError, DaemonUsageError
from .fields import flag_of, objects_of, require_object
from .http import Http, segment
from .reservations import DEFAULT_MAX_PENDING_PROMPTS, Reservations, normalize_pending_prompt_limit
from .retry import RetryPolicy
from .shapes import (
    Capabilities,
    CreateSessionRequest,
    DaemonSession,
    PendingPrompt,
    PromptAccepted,
    RestoredSession,
    RestoreSessionRequest,
    SessionPage,
    SessionSummary,
    TurnStatus,
)
from .source import STREAM_SILENCE_S
from .subscription import EventStream
from .turn import PromptCall, Turn, post_prompt
from .watch import Watches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    import httpx
    from anyio.abc import TaskGroup

    from governor.errors import JsonValue

    from .shapes import PromptInput, PromptResult

RESTORE_TIMEOUT_S: Final = 60.0
BRANCH_TIMEOUT_S: Final = 120.0
"""A branch waits for the prompts before it."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_ADMISSIONS: Final = 32
"""Prompts that are being handed in at once; the others wait. A server counts its connections."""


class DaemonClient:
    """A client of one governor, or of another server that speaks the protocol of `qwen serve`.

    It is used as `async with DaemonClient(url) as client`, under trio or asyncio, by as many tasks as one likes.

    Args:
        base_url: `http[s]://host[:port][/prefix]`.
        token: the API token; None to take it from `GOVERNOR_TOKEN` or `QWEN_SERVER_TOKEN`, "" for none.
        max_pending_prompts_per_session: the local limit (C2), as `/capabilities` tells it: None, 0 or infinity for
            none.
        request_timeout_s: the longest time of one request, from its beginning to the end of its answer. Prompts and
            event streams have none but for connecting.
        retry: how often and when to try again what may be tried again.
        max_answer_bytes: the most that one prompt's events may have.
        stream_silence_s: an event stream without a byte for so long is continued on a new connection.
        transport: another httpx transport, for a proxy or a test.

    Raises:
        TypeError, ValueError: the URL, the token or the limit can be none.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        max_pending_prompts_per_session: float | None = DEFAULT_MAX_PENDING_PROMPTS,
        request_timeout_s: float = 30.0,
        retry: RetryPolicy | None = None,
        max_answer_bytes: int = ANSWER_BYTES_MAX,
        stream_silence_s: float = STREAM_SILENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._limit = normalize_pending_prompt_limit(max_pending_prompts_per_session)
        self._http = Http(
            base_url,
            token=token,
            transport=transport,
            request_timeout_s=request_timeout_s,
            retry=retry if retry is not None else RetryPolicy(),
        )
        self._max_answer_bytes = max_answer_bytes
        self._silence_s = stream_silence_s
        self._reservations = Reservations()
        self._tasks: TaskGroup | None = None
        self._opened: tuple[Watches, anyio.Semaphore] | None = None

    @property
    def base_url(self) -> str:
        """The server's URL, without slashes at its end."""
        return self._http.base_url

    @property
    def max_pending_prompts_per_session(self) -> int | None:
        """The local limit; None where there is none."""
        return self._limit

    def pending_prompts_of(self, session_id: str) -> int:
        """How many prompts of a session this client has pending (not what the server counts)."""
        return self._reservations.pending(session_id)

    @property
    def pending_prompts_total(self) -> int:
        """How many prompts of all sessions this client has pending."""
        return self._reservations.total

    def require_room(self, session_id: str, limit: int | None) -> None:
        """Raises `DaemonPendingPromptLimitError` where `prompt` would, without a reservation and without I/O."""
        self._reservations.require_room(session_id, limit)

    async def __aenter__(self) -> DaemonClient:
        if self._tasks is not None:
            raise DaemonUsageError("This client is open already; use one block around all that uses it")
        self._http.open()
        tasks = self._tasks = anyio.create_task_group()
        await tasks.__aenter__()
        watches = Watches(self._http, tasks, max_answer_bytes=self._max_answer_bytes, silence_s=self._silence_s)
        self._opened = watches, anyio.Semaphore(_ADMISSIONS)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        tasks, opened, self._tasks, self._opened = self._tasks, self._opened, None, None
        assert tasks is not None
        assert opened is not None
        opened[0].close()
        tasks.cancel_scope.cancel()
        try:
            # The tasks only read; what the block raised is its own affair and must not come out as a group.
            await tasks.__aexit__(None, None, None)
        finally:
            await self._http.aclose()

    # The server

    async def health(self, *, deep: bool = False) -> Mapping[str, JsonValue]:
        """Whether the process answers; `deep` tells how much it does."""
        return await self._get("/health?deep=1" if deep else "/health")

    async def ready(self) -> Mapping[str, JsonValue]:
        """Whether a model can be used (`ready`), and of those that cannot, why not."""
        label = "GET /readyz"
        answer = await self._http.ask("GET", "/readyz", label, expect=(200, 503))
        return require_object(answer.body, label)

    async def capabilities(self) -> Capabilities:
        """Models, limits and features."""
        label = "GET /capabilities"
        return Capabilities.decode((await self._http.ask("GET", "/capabilities", label)).body, label)

    async def adopt_server_limit(self) -> int | None:
        """Takes the local limit from `/capabilities`, as it is told there. Returns it."""
        self._limit = normalize_pending_prompt_limit((await self.capabilities()).max_pending_prompts_per_session)
        return self._limit

    async def daemon_status(self, *, full: bool = False) -> Mapping[str, JsonValue]:
        """What is going on; `full` with every session."""
        return await self._get("/daemon/status?detail=full" if full else "/daemon/status")

    async def metrics(self) -> str:
        """The server's metrics, in Prometheus' text format."""
        return await self._http.text("/metrics", "GET /metrics")

    # Sessions

    async def create_or_attach_session(
        self, request: CreateSessionRequest | None = None, client_id: str | None = None
    ) -> DaemonSession:
        """Creates a session, or attaches to the one that the callers of a model share.

        Raises:
            DaemonUsageError: an id is asked for, and this server lets nobody choose one.
            DaemonSessionIdProtocolError: the server gave another session than the one that was asked for.
        """
        wanted = request if request is not None else CreateSessionRequest()
        if wanted.session_id is not None and "session_id_override" not in (await self.capabilities()).features:
            raise DaemonUsageError("This server lets nobody choose a session's id; leave session_id out")
        label = "POST /session"
        answer = await self._http.ask("POST", "/session", label, body=wanted.body(), client_id=client_id)
        session = DaemonSession.decode(answer.body, label)
        if wanted.session_id is not None and session.session_id != wanted.session_id.lower():
            raise DaemonSessionIdProtocolError(wanted.session_id, session.session_id)
        return session

    async def load_session(
        self, session_id: str, request: RestoreSessionRequest | None = None, client_id: str | None = None
    ) -> RestoredSession:
        """Comes back to a session, with what was told in it."""
        return await self._restore(session_id, "load", request, client_id)

    async def resume_session(
        self, session_id: str, request: RestoreSessionRequest | None = None, client_id: str | None = None
    ) -> RestoredSession:
        """Comes back to a session from now on."""
        return await self._restore(session_id, "resume", request, client_id)

    async def branch_session(
        self, session_id: str, name: str | None = None, client_id: str | None = None
    ) -> RestoredSession:
        """Makes a new session that begins with the texts of this one, once the prompts before it have ended (S5)."""
        path, label = self._path(session_id, "branch")
        body: dict[str, JsonValue] = {"name": name} if name is not None else {}
        answer = await self._http.ask(
            "POST", path, label, body=body, client_id=client_id, expect=(200, 201), timeout_s=BRANCH_TIMEOUT_S
        )
        return RestoredSession.decode(answer.body, label)

    async def list_sessions(
        self, *, workspace_cwd: str = "/", size: int | None = None, cursor: str | None = None
    ) -> SessionPage:
        """Live sessions, the newest first; `cursor` is the `next_cursor` of the page before."""
        query = {"size": str(size) if size is not None else None, "cursor": cursor}
        given = "&".join(f"{name}={segment(value)}" for name, value in query.items() if value is not None)
        path = f"/workspace/{segment(workspace_cwd)}/sessions" + (f"?{given}" if given else "")
        label = "GET /workspace/:cwd/sessions"
        return SessionPage.decode((await self._http.ask("GET", path, label)).body, label)

    async def session_status(self, session_id: str, client_id: str | None = None) -> SessionSummary:
        """What a session is doing."""
        path, label = self._path(session_id, "status", "GET")
        return SessionSummary.decode((await self._http.ask("GET", path, label, client_id=client_id)).body, label)

    async def update_metadata(
        self, session_id: str, *, display_name: str, client_id: str | None = None
    ) -> Mapping[str, JsonValue]:
        """Names a session."""
        path, label = self._path(session_id, "metadata", "PATCH")
        body: dict[str, JsonValue] = {"displayName": display_name}
        return require_object((await self._http.ask("PATCH", path, label, body=body, client_id=client_id)).body, label)

    async def heartbeat(self, session_id: str, client_id: str | None = None) -> Mapping[str, JsonValue]:
        """Keeps an unused session from being closed."""
        path, label = self._path(session_id, "heartbeat")
        return require_object((await self._http.ask("POST", path, label, body={}, client_id=client_id)).body, label)

    async def set_model(self, session_id: str, model_id: str, client_id: str | None = None) -> Mapping[str, JsonValue]:
        """Sends the turns that begin from now on to another model."""
        path, label = self._path(session_id, "model")
        body: dict[str, JsonValue] = {"modelId": model_id}
        return require_object((await self._http.ask("POST", path, label, body=body, client_id=client_id)).body, label)

    async def detach(self, session_id: str, client_id: str) -> None:
        """Takes one registration of the client back. A session that is gone is left as well."""
        path, label = self._path(session_id, "detach")
        await self._http.ask("POST", path, label, body={}, client_id=client_id, expect=(204, 404))

    async def close_session(self, session_id: str, client_id: str | None = None) -> None:
        """Closes a session; its pending prompts end. A session that is gone is closed as well."""
        path = f"/session/{segment(session_id)}"
        await self._http.ask("DELETE", path, f"DELETE {path}", client_id=client_id, expect=(204, 404))

    # Prompts

    async def prompt(
        self,
        session_id: str,
        request: PromptInput,
        *,
        client_id: str | None = None,
        timeout_s: float | None = None,
        cancel_on_server: bool = False,
    ) -> PromptResult:
        """Hands in a prompt and waits for its end.

        Args:
            session_id: whose prompt.
            request: its text, or more than that.
            client_id: who asks.
            timeout_s: the longest time to wait, in seconds.
            cancel_on_server: a caller that stops waiting, for whatever reason, has the server cancel the prompt.
                Otherwise it goes on there.

        Raises:
            DaemonPendingPromptLimitError: too many prompts of the session are pending; before any I/O if they are
                this client's own (C2).
            DaemonTurnError: the turn failed.
            DaemonHttpError, DaemonConnectionError, DaemonProtocolError: the prompt was not accepted, or nobody knows.
            DaemonStreamError: it was accepted, and its end could not be learned.
            TimeoutError: `timeout_s` is over.
        """
        turn = self.stream(
            session_id, request, client_id=client_id, timeout_s=timeout_s, cancel_on_server=cancel_on_server
        )
        async with turn:
            return await turn.result()

    def stream(
        self,
        session_id: str,
        request: PromptInput,
        *,
        client_id: str | None = None,
        timeout_s: float | None = None,
        cancel_on_server: bool = False,
    ) -> Turn:
        """The same as `prompt`, piece by piece: `async with client.stream(...) as turn: async for piece in turn.text`.

        The prompt is handed in where the block begins, and no longer waited for where it ends.
        """
        return self.turn_of(
            PromptCall(session_id, request, self._limit, timeout_s, cancel_on_server, lambda: client_id)
        )

    def turn_of(self, call: PromptCall) -> Turn:
        """A prompt that is still to be handed in; for session clients, whose limit and client id are their own."""
        return Turn(
            call,
            http=self._http,
            reservations=self._reservations,
            watches=lambda: self._running()[0],
            admissions=lambda: self._running()[1],
        )

    async def submit_prompt(
        self, session_id: str, request: PromptInput, client_id: str | None = None
    ) -> PromptAccepted:
        """Hands in a prompt and returns its 202. Nothing is reserved, and its end is told as events only."""
        answer = await post_prompt(self._http, session_id, request, client_id)
        return PromptAccepted.decode(answer.body, f"POST /session/{session_id}/prompt")

    async def cancel(self, session_id: str, client_id: str | None = None) -> None:
        """Cancels the prompt that runs, whoever sent it; the others stay."""
        path, label = self._path(session_id, "cancel")
        await self._http.ask("POST", path, label, body={}, client_id=client_id, expect=(200, 204))

    async def pending_prompts(self, session_id: str, client_id: str | None = None) -> tuple[PendingPrompt, ...]:
        """Accepted prompts that have not ended, in their order."""
        path, label = self._path(session_id, "pending-prompts", "GET")
        raw = require_object((await self._http.ask("GET", path, label, client_id=client_id)).body, label)
        return tuple(PendingPrompt.decode(item, label) for item in objects_of(raw, "pendingPrompts"))

    async def remove_pending_prompt(self, session_id: str, prompt_id: str, client_id: str | None = None) -> bool:
        """Takes one prompt out of the queue, or cancels it if it runs. False if it is not pending."""
        path, label = self._path(session_id, f"pending-prompts/{segment(prompt_id)}", "DELETE")
        answer = await self._http.ask("DELETE", path, label, client_id=client_id)
        return flag_of(require_object(answer.body, label), "removed")

    async def current_turn(self, session_id: str, client_id: str | None = None) -> TurnStatus:
        """What became of the prompt that runs, else of the next one, else of the last."""
        return await self.turn(session_id, "current", client_id)

    async def turn(self, session_id: str, prompt_id: str, client_id: str | None = None) -> TurnStatus:
        """What became of one prompt."""
        path, label = self._path(session_id, f"turns/{segment(prompt_id)}", "GET")
        return TurnStatus.decode((await self._http.ask("GET", path, label, client_id=client_id)).body, label)

    # Events

    def events(
        self,
        session_id: str,
        *,
        last_event_id: int | None = None,
        event_epoch: str | None = None,
        max_queued: int | None = None,
        client_id: str | None = None,
    ) -> EventStream:
        """A session's events: `async with client.events(session_id) as events: async for event in events`.

        Args:
            session_id: whose.
            last_event_id: first everything that is kept after this event; None for what happens from now on.
            event_epoch: the life of the event log that `last_event_id` belongs to.
            max_queued: how many events may wait at the server for this reader, 16 to 2048.
            client_id: who reads.
        """
        return self.event_stream(
            session_id, Cursor(last_event_id, event_epoch), max_queued=max_queued, client_id=client_id
        )

    def event_stream(
        self,
        session_id: str,
        cursor: Cursor,
        *,
        max_queued: int | None,
        client_id: str | None,
        on_enter: Callable[[], None] | None = None,
        on_taken: Callable[[Cursor], None] | None = None,
        on_exit: Callable[[], None] | None = None,
    ) -> EventStream:
        """The same from a cursor; for session clients, which keep where they are. See `EventStream`."""
        return EventStream(
            self._http,
            session_id,
            cursor,
            max_queued=max_queued,
            client_id=client_id,
            silence_s=self._silence_s,
            on_enter=on_enter,
            on_taken=on_taken,
            on_exit=on_exit,
        )

    # The rest

    async def _restore(
        self, session_id: str, how: str, request: RestoreSessionRequest | None, client_id: str | None
    ) -> RestoredSession:
        path, label = self._path(session_id, how)
        body = (request if request is not None else RestoreSessionRequest()).body()
        answer = await self._http.ask("POST", path, label, body=body, client_id=client_id, timeout_s=RESTORE_TIMEOUT_S)
        restored = RestoredSession.decode(answer.body, label)
        if restored.session_id != session_id.lower():
            raise DaemonSessionIdProtocolError(session_id, restored.session_id)
        return restored

    async def _get(self, path: str) -> Mapping[str, JsonValue]:
        label = f"GET {path}"
        return require_object((await self._http.ask("GET", path, label)).body, label)

    def _running(self) -> tuple[Watches, anyio.Semaphore]:
        if self._opened is None:
            raise DaemonUsageError("The client is not open: use it inside of `async with DaemonClient(...) as client`")
        return self._opened

    @staticmethod
    def _path(session_id: str, what: str, method: str = "POST") -> tuple[str, str]:
        path = f"/session/{segment(session_id)}/{what}"
        return path, f"{method} {path}"
