"""`SyncDaemonClient` and `SyncDaemonSessionClient`: the async client for code that is not async (C1).

    with SyncDaemonClient("http://127.0.0.1:4170") as client:
        session = SyncDaemonSessionClient.create_or_attach(client)
        with session.stream("Alice opened the door") as turn:
            for piece in turn.text:
                print(piece, end="", flush=True)

All objects may be used by several threads. A stream can be closed by another thread than the one that reads it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from .blocking import Blocking, Opening, OwnLoop, Twin, next_of, wait
from .client import DaemonClient
from .session import INHERITED, DaemonSessionClient
from .subscription import EventStream
from .turn import TextPieces, Turn

if TYPE_CHECKING:
    from types import TracebackType

    import httpx
    from anyio.from_thread import BlockingPortal

    from .events import DaemonEvent
    from .retry import RetryPolicy
    from .session import Inherited
    from .shapes import CreateSessionRequest, DaemonSession, PromptInput, RestoreSessionRequest


class ClientOptions(TypedDict, total=False):
    """The options of `DaemonClient`, with its defaults."""

    token: str | None
    max_pending_prompts_per_session: float | None
    request_timeout_s: float
    retry: RetryPolicy | None
    max_answer_bytes: int
    stream_silence_s: float
    transport: httpx.AsyncBaseTransport | None


class SyncTextPieces(Twin[TextPieces]):
    """The pieces of a turn's answer. See `Turn.text`."""

    def __iter__(self) -> SyncTextPieces:
        return self

    def __next__(self) -> str:
        return next_of(self.portal, self.inner.__anext__)


class SyncTurn(Twin[Turn]):
    """A prompt that was accepted, and its events as they come. See `Turn`."""

    result = Blocking(Turn.result)
    close = Blocking(Turn.aclose)

    @property
    def session_id(self) -> str:
        """The session that the prompt belongs to."""
        return self.inner.session_id

    @property
    def prompt_id(self) -> str | None:
        """The prompt's id; None from a server that answers prompts in one piece."""
        return self.inner.prompt_id

    @property
    def text(self) -> SyncTextPieces:
        """The pieces of the answer as they come. At the end of a turn that failed, `DaemonTurnError` is raised."""
        return SyncTextPieces(self.inner.text, self.portal)

    def __iter__(self) -> SyncTurn:
        return self

    def __next__(self) -> DaemonEvent:
        return next_of(self.portal, self.inner.__anext__)

    def __enter__(self) -> SyncTurn:
        self.inner.require_room()
        wait(self.portal, self.inner.__aenter__)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        wait(self.portal, self.inner.aclose)


class SyncEventStream(Twin[EventStream]):
    """A session's events. See `EventStream`."""

    close = Blocking(EventStream.aclose)

    @property
    def last_event_id(self) -> int | None:
        """The last event that was given out."""
        return self.inner.last_event_id

    @property
    def event_epoch(self) -> str | None:
        """The life of the event log that it belongs to."""
        return self.inner.event_epoch

    def __iter__(self) -> SyncEventStream:
        return self

    def __next__(self) -> DaemonEvent:
        return next_of(self.portal, self.inner.__anext__)

    def __enter__(self) -> SyncEventStream:
        wait(self.portal, self.inner.__aenter__)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> None:
        wait(self.portal, self.inner.aclose)


def _refuse_early(
    client: DaemonClient,
    session_id: str,
    request: PromptInput,
    *,
    client_id: str | None = None,
    timeout_s: float | None = None,
    cancel_on_server: bool = False,
) -> None:
    del request, client_id, timeout_s, cancel_on_server
    client.require_room(session_id, client.max_pending_prompts_per_session)


def _refuse_early_here(
    session: DaemonSessionClient,
    request: PromptInput,
    *,
    timeout_s: float | None = None,
    cancel_on_server: bool = False,
) -> None:
    del request, timeout_s, cancel_on_server
    session.require_room()


class SyncDaemonClient(OwnLoop[DaemonClient]):
    """The blocking twin of `DaemonClient`, used as `with SyncDaemonClient(url) as client`.

    Args:
        base_url: as of `DaemonClient`.
        backend: what runs in the thread.
        options: as of `DaemonClient`.
    """

    def __init__(
        self, base_url: str, *, backend: Literal["asyncio", "trio"] = "asyncio", **options: Unpack[ClientOptions]
    ) -> None:
        super().__init__(DaemonClient(base_url, **options), backend)

    @property
    def base_url(self) -> str:
        """The server's URL, without slashes at its end."""
        return self.inner.base_url

    @property
    def max_pending_prompts_per_session(self) -> int | None:
        """The local limit; None where there is none."""
        return self.inner.max_pending_prompts_per_session

    def pending_prompts_of(self, session_id: str) -> int:
        """How many prompts of a session this client has pending (not what the server counts)."""
        return self.inner.pending_prompts_of(session_id)

    @property
    def pending_prompts_total(self) -> int:
        """How many prompts of all sessions this client has pending."""
        return self.inner.pending_prompts_total

    health = Blocking(DaemonClient.health)
    ready = Blocking(DaemonClient.ready)
    capabilities = Blocking(DaemonClient.capabilities)
    adopt_server_limit = Blocking(DaemonClient.adopt_server_limit)
    daemon_status = Blocking(DaemonClient.daemon_status)
    metrics = Blocking(DaemonClient.metrics)
    create_or_attach_session = Blocking(DaemonClient.create_or_attach_session)
    load_session = Blocking(DaemonClient.load_session)
    resume_session = Blocking(DaemonClient.resume_session)
    branch_session = Blocking(DaemonClient.branch_session)
    list_sessions = Blocking(DaemonClient.list_sessions)
    session_status = Blocking(DaemonClient.session_status)
    update_metadata = Blocking(DaemonClient.update_metadata)
    heartbeat = Blocking(DaemonClient.heartbeat)
    set_model = Blocking(DaemonClient.set_model)
    detach = Blocking(DaemonClient.detach)
    close_session = Blocking(DaemonClient.close_session)
    prompt = Blocking(DaemonClient.prompt, before=_refuse_early)
    stream = Opening(DaemonClient.stream, SyncTurn)
    submit_prompt = Blocking(DaemonClient.submit_prompt)
    cancel = Blocking(DaemonClient.cancel)
    pending_prompts = Blocking(DaemonClient.pending_prompts)
    remove_pending_prompt = Blocking(DaemonClient.remove_pending_prompt)
    current_turn = Blocking(DaemonClient.current_turn)
    turn = Blocking(DaemonClient.turn)
    events = Opening(DaemonClient.events, SyncEventStream)


class SyncDaemonSessionClient(Twin[DaemonSessionClient]):
    """The blocking twin of `DaemonSessionClient`; its arguments are the same."""

    def __init__(
        self,
        client: SyncDaemonClient,
        session: DaemonSession,
        *,
        max_pending_prompts_per_session: float | Inherited | None = INHERITED,
        last_event_id: int | None = None,
        event_epoch: str | None = None,
    ) -> None:
        inner = DaemonSessionClient(
            client.inner,
            session,
            max_pending_prompts_per_session=max_pending_prompts_per_session,
            last_event_id=last_event_id,
            event_epoch=event_epoch,
        )
        super().__init__(inner, client.portal)

    @classmethod
    def create_or_attach(
        cls, client: SyncDaemonClient, request: CreateSessionRequest | None = None, client_id: str | None = None
    ) -> SyncDaemonSessionClient:
        """Creates a session, or attaches to the one that the callers of a model share."""
        call = partial(DaemonSessionClient.create_or_attach, client.inner, request, client_id)
        return cls._of(wait(client.portal, call), client.portal)

    @classmethod
    def load(
        cls,
        client: SyncDaemonClient,
        session_id: str,
        request: RestoreSessionRequest | None = None,
        client_id: str | None = None,
    ) -> SyncDaemonSessionClient:
        """Comes back to a session, with what was told in it (`session` then is a `RestoredSession`)."""
        call = partial(DaemonSessionClient.load, client.inner, session_id, request, client_id)
        return cls._of(wait(client.portal, call), client.portal)

    @classmethod
    def resume(
        cls,
        client: SyncDaemonClient,
        session_id: str,
        request: RestoreSessionRequest | None = None,
        client_id: str | None = None,
    ) -> SyncDaemonSessionClient:
        """Comes back to a session from now on."""
        call = partial(DaemonSessionClient.resume, client.inner, session_id, request, client_id)
        return cls._of(wait(client.portal, call), client.portal)

    @classmethod
    def _of(cls, inner: DaemonSessionClient, portal: BlockingPortal) -> SyncDaemonSessionClient:
        made = cls.__new__(cls)
        Twin.__init__(made, inner, portal)
        return made

    def branch(self, name: str | None = None) -> SyncDaemonSessionClient:
        """Makes a new session that begins with the texts of this one, once the prompts before it have ended (S5)."""
        return self._of(wait(self.portal, partial(self.inner.branch, name)), self.portal)

    @property
    def session(self) -> DaemonSession:
        """What the server said when the session was made or attached to."""
        return self.inner.session

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.inner.session_id

    @property
    def client_id(self) -> str | None:
        """Who the caller is in this session."""
        return self.inner.client_id

    @property
    def last_event_id(self) -> int | None:
        """The last event that the caller has done with; where `events` goes on."""
        return self.inner.last_event_id

    @property
    def event_epoch(self) -> str | None:
        """The life of the event log that `last_event_id` belongs to."""
        return self.inner.event_epoch

    @property
    def max_pending_prompts_per_session(self) -> int | None:
        """The local limit; None where there is none."""
        return self.inner.max_pending_prompts_per_session

    @property
    def pending_prompts_here(self) -> int:
        """How many prompts of this session the client has pending (not what the server counts)."""
        return self.inner.pending_prompts_here

    prompt = Blocking(DaemonSessionClient.prompt, before=_refuse_early_here)
    stream = Opening(DaemonSessionClient.stream, SyncTurn)
    submit_prompt = Blocking(DaemonSessionClient.submit_prompt)
    cancel = Blocking(DaemonSessionClient.cancel)
    pending_prompts = Blocking(DaemonSessionClient.pending_prompts)
    remove_pending_prompt = Blocking(DaemonSessionClient.remove_pending_prompt)
    current_turn = Blocking(DaemonSessionClient.current_turn)
    turn = Blocking(DaemonSessionClient.turn)
    events = Opening(DaemonSessionClient.events, SyncEventStream)
    status = Blocking(DaemonSessionClient.status)
    update_metadata = Blocking(DaemonSessionClient.update_metadata)
    heartbeat = Blocking(DaemonSessionClient.heartbeat)
    set_model = Blocking(DaemonSessionClient.set_model)
    detach = Blocking(DaemonSessionClient.detach)
    close = Blocking(DaemonSessionClient.close)
