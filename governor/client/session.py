"""`DaemonSessionClient`: one session, with who the caller is in it and how far its events were read (C1, C3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from .cursor import Cursor
from .errors import DaemonUsageError
from .reservations import normalize_pending_prompt_limit
from .turn import PromptCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.errors import JsonValue

    from .client import DaemonClient
    from .shapes import (
        CreateSessionRequest,
        DaemonSession,
        PendingPrompt,
        PromptAccepted,
        PromptInput,
        PromptResult,
        RestoredSession,
        RestoreSessionRequest,
        SessionSummary,
        TurnStatus,
    )
    from .subscription import EventStream
    from .turn import Turn


class Inherited:
    """Stands for the limit of the client."""


INHERITED: Final = Inherited()


class DaemonSessionClient:
    """One session of a client.

    Args:
        client: whose connections and reservations are used; all session clients of one client share them.
        session: what the server said when the session was made or attached to.
        max_pending_prompts_per_session: another local limit than the client's, counted together with it (C3).
        last_event_id: where `events` begins; None for what happens from now on.
        event_epoch: the life of the event log that it belongs to.
    """

    def __init__(
        self,
        client: DaemonClient,
        session: DaemonSession,
        *,
        max_pending_prompts_per_session: float | Inherited | None = INHERITED,
        last_event_id: int | None = None,
        event_epoch: str | None = None,
    ) -> None:
        self.client = client
        self.session = session
        own = max_pending_prompts_per_session
        self._limit = INHERITED if isinstance(own, Inherited) else normalize_pending_prompt_limit(own)
        self._client_id = session.client_id
        self._cursor = Cursor(last_event_id, event_epoch)
        self._subscribed = False
        self._healing: anyio.Lock | None = None

    @classmethod
    async def create_or_attach(
        cls, client: DaemonClient, request: CreateSessionRequest | None = None, client_id: str | None = None
    ) -> DaemonSessionClient:
        """Creates a session, or attaches to the one that the callers of a model share."""
        session = await client.create_or_attach_session(request, client_id)
        return cls(client, session, last_event_id=None if session.attached else 0)

    @classmethod
    async def load(
        cls,
        client: DaemonClient,
        session_id: str,
        request: RestoreSessionRequest | None = None,
        client_id: str | None = None,
    ) -> DaemonSessionClient:
        """Comes back to a session, with what was told in it (`session` then is a `RestoredSession`)."""
        return cls._restored(client, await client.load_session(session_id, request, client_id))

    @classmethod
    async def resume(
        cls,
        client: DaemonClient,
        session_id: str,
        request: RestoreSessionRequest | None = None,
        client_id: str | None = None,
    ) -> DaemonSessionClient:
        """Comes back to a session from now on."""
        return cls._restored(client, await client.resume_session(session_id, request, client_id))

    @classmethod
    def _restored(cls, client: DaemonClient, session: RestoredSession) -> DaemonSessionClient:
        return cls(client, session, last_event_id=session.last_event_id or 0, event_epoch=session.event_epoch)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.session.session_id

    @property
    def client_id(self) -> str | None:
        """Who the caller is in this session; it changes when a server that forgot it is asked for a new one."""
        return self._client_id

    @property
    def last_event_id(self) -> int | None:
        """The last event that the caller has done with; where `events` goes on."""
        return self._cursor.last_id

    @property
    def event_epoch(self) -> str | None:
        """The life of the event log that `last_event_id` belongs to."""
        return self._cursor.epoch

    @property
    def max_pending_prompts_per_session(self) -> int | None:
        """The local limit; None where there is none."""
        own = self._limit
        return self.client.max_pending_prompts_per_session if isinstance(own, Inherited) else own

    @property
    def pending_prompts_here(self) -> int:
        """How many prompts of this session the client has pending (not what the server counts)."""
        return self.client.pending_prompts_of(self.session_id)

    def require_room(self) -> None:
        """Raises `DaemonPendingPromptLimitError` where `prompt` would, without a reservation and without I/O."""
        self.client.require_room(self.session_id, self.max_pending_prompts_per_session)

    # Prompts

    async def prompt(
        self, request: PromptInput, *, timeout_s: float | None = None, cancel_on_server: bool = False
    ) -> PromptResult:
        """Hands in a prompt and waits for its end. See `DaemonClient.prompt`."""
        async with self.stream(request, timeout_s=timeout_s, cancel_on_server=cancel_on_server) as turn:
            return await turn.result()

    def stream(self, request: PromptInput, *, timeout_s: float | None = None, cancel_on_server: bool = False) -> Turn:
        """Hands in a prompt and gives its events as they come. See `DaemonClient.stream`."""
        call = PromptCall(
            self.session_id,
            request,
            self.max_pending_prompts_per_session,
            timeout_s,
            cancel_on_server,
            lambda: self._client_id,
            self._heal,
        )
        return self.client.turn_of(call)

    async def submit_prompt(self, request: PromptInput) -> PromptAccepted:
        """Hands in a prompt and returns its 202. Nothing is reserved, and its end is told as events only."""
        return await self.client.submit_prompt(self.session_id, request, self._client_id)

    async def cancel(self) -> None:
        """Cancels the prompt that runs, whoever sent it; the others stay."""
        await self.client.cancel(self.session_id, self._client_id)

    async def pending_prompts(self) -> tuple[PendingPrompt, ...]:
        """Accepted prompts that have not ended, in their order."""
        return await self.client.pending_prompts(self.session_id, self._client_id)

    async def remove_pending_prompt(self, prompt_id: str) -> bool:
        """Takes one prompt out of the queue, or cancels it if it runs. False if it is not pending."""
        return await self.client.remove_pending_prompt(self.session_id, prompt_id, self._client_id)

    async def current_turn(self) -> TurnStatus:
        """What became of the prompt that runs, else of the next one, else of the last."""
        return await self.client.current_turn(self.session_id, self._client_id)

    async def turn(self, prompt_id: str) -> TurnStatus:
        """What became of one prompt."""
        return await self.client.turn(self.session_id, prompt_id, self._client_id)

    # Events

    def events(self, *, max_queued: int | None = None, resume: bool = True) -> EventStream:
        """The session's events from where they were read last: `async with session.events() as events`.

        An event counts as read when the next one is asked for, so one whose handling failed comes again in the next
        block. There is one block at a time. Prompts do not depend on it: they have a stream of their own.

        Args:
            max_queued: how many events may wait at the server for this reader, 16 to 2048.
            resume: False for what happens from now on, wherever they were read last.
        """
        cursor = Cursor(self._cursor.last_id, self._cursor.epoch) if resume else Cursor()
        return self.client.event_stream(
            self.session_id,
            cursor,
            max_queued=max_queued,
            client_id=self._client_id,
            on_enter=self._subscribe,
            on_taken=self._taken,
            on_exit=self._unsubscribe,
        )

    # The session itself

    async def status(self) -> SessionSummary:
        """What the session is doing."""
        return await self.client.session_status(self.session_id, self._client_id)

    async def update_metadata(self, *, display_name: str) -> Mapping[str, JsonValue]:
        """Names the session."""
        return await self.client.update_metadata(self.session_id, display_name=display_name, client_id=self._client_id)

    async def heartbeat(self) -> Mapping[str, JsonValue]:
        """Keeps the session, should it be unused, from being closed."""
        return await self.client.heartbeat(self.session_id, self._client_id)

    async def set_model(self, model_id: str) -> Mapping[str, JsonValue]:
        """Sends the turns that begin from now on to another model."""
        return await self.client.set_model(self.session_id, model_id, self._client_id)

    async def branch(self, name: str | None = None) -> DaemonSessionClient:
        """Makes a new session that begins with the texts of this one, once the prompts before it have ended (S5)."""
        return self._restored(self.client, await self.client.branch_session(self.session_id, name, self._client_id))

    async def detach(self) -> None:
        """Leaves the session; nothing happens to its prompts.

        Raises:
            DaemonUsageError: the server never said who the caller is.
        """
        if self._client_id is None:
            raise DaemonUsageError("This session gave its caller no client id, so there is nothing to take back")
        await self.client.detach(self.session_id, self._client_id)

    async def close(self) -> None:
        """Closes the session for everybody; its pending prompts end."""
        await self.client.close_session(self.session_id, self._client_id)

    async def _heal(self, refused: str | None) -> None:
        """The server does not know this client id (any more): asks for another one, once for all who ask at once."""
        if self._healing is None:
            self._healing = anyio.Lock()
        async with self._healing:
            if self._client_id == refused:
                self._client_id = (await self.client.resume_session(self.session_id)).client_id

    def _subscribe(self) -> None:
        if self._subscribed:
            raise DaemonUsageError("A subscription is active; leave its block first, or use another session client")
        self._subscribed = True

    def _unsubscribe(self) -> None:
        self._subscribed = False

    def _taken(self, cursor: Cursor) -> None:
        self._cursor.last_id, self._cursor.epoch = cursor.last_id, cursor.epoch
