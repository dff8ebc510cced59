"""The client of a governor: sessions, prompts and their answers, from Python.

    async with DaemonClient("http://127.0.0.1:4170") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        print((await session.prompt("Alice opened the door")).text)

It works under trio and under asyncio; `SyncDaemonClient` and `SyncDaemonSessionClient` are the same for code that is
not async. It needs nothing of the server's dependencies. docs/sdk.md tells the rest.
"""

from .admin import AdminClient
from .admin_shapes import (
    AdminState,
    AuditPage,
    ClaimState,
    IdentityState,
    ReleaseReport,
    RestartReport,
    RestartResult,
)
from .admin_stream import AdminEvents, AdminStream
from .client import DaemonClient
from .errors import (
    DaemonConnectionError,
    DaemonError,
    DaemonHttpError,
    DaemonPendingPromptLimitError,
    DaemonProtocolError,
    DaemonSessionIdProtocolError,
    DaemonStreamError,
    DaemonTurnError,
    DaemonUsageError,
    SseFramingError,
)
from .events import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ClientEvicted,
    DaemonEvent,
    ModelSwitched,
    ModelSwitchFailed,
    PendingPromptAdded,
    PendingPromptCompleted,
    PendingPromptStarted,
    PromptCancelled,
    ReplayComplete,
    SessionBranched,
    SessionClosed,
    SessionDied,
    SessionEnded,
    SessionMetadataUpdated,
    SessionSnapshot,
    SessionUpdate,
    SlowClientWarning,
    StateResyncRequired,
    StreamFailed,
    TerminalEvent,
    TurnComplete,
    TurnError,
    UnknownEvent,
    UserMessageChunk,
)
from .retry import RetryPolicy
from .session import DaemonSessionClient
from .shapes import (
    Capabilities,
    CreateSessionRequest,
    DaemonSession,
    PendingPrompt,
    PromptAccepted,
    PromptRequest,
    PromptResult,
    RestoredSession,
    RestoreSessionRequest,
    SessionPage,
    SessionSummary,
    TurnStatus,
)
from .sse import SseFrame, SseParser
from .subscription import EventStream
from .sync import SyncDaemonClient, SyncDaemonSessionClient, SyncEventStream, SyncTurn
from .sync_admin import SyncAdminClient, SyncAdminStream
from .turn import Turn

__all__ = [
    "AdminClient",
    "AdminEvents",
    "AdminState",
    "AdminStream",
    "AgentMessageChunk",
    "AgentThoughtChunk",
    "AuditPage",
    "Capabilities",
    "ClaimState",
    "ClientEvicted",
    "CreateSessionRequest",
    "DaemonClient",
    "DaemonConnectionError",
    "DaemonError",
    "DaemonEvent",
    "DaemonHttpError",
    "DaemonPendingPromptLimitError",
    "DaemonProtocolError",
    "DaemonSession",
    "DaemonSessionClient",
    "DaemonSessionIdProtocolError",
    "DaemonStreamError",
    "DaemonTurnError",
    "DaemonUsageError",
    "EventStream",
    "IdentityState",
    "ModelSwitchFailed",
    "ModelSwitched",
    "PendingPrompt",
    "PendingPromptAdded",
    "PendingPromptCompleted",
    "PendingPromptStarted",
    "PromptAccepted",
    "PromptCancelled",
    "PromptRequest",
    "PromptResult",
    "ReleaseReport",
    "ReplayComplete",
    "RestartReport",
    "RestartResult",
    "RestoreSessionRequest",
    "RestoredSession",
    "RetryPolicy",
    "SessionBranched",
    "SessionClosed",
    "SessionDied",
    "SessionEnded",
    "SessionMetadataUpdated",
    "SessionPage",
    "SessionSnapshot",
    "SessionSummary",
    "SessionUpdate",
    "SlowClientWarning",
    "SseFrame",
    "SseFramingError",
    "SseParser",
    "StateResyncRequired",
    "StreamFailed",
    "SyncAdminClient",
    "SyncAdminStream",
    "SyncDaemonClient",
    "SyncDaemonSessionClient",
    "SyncEventStream",
    "SyncTurn",
    "TerminalEvent",
    "Turn",
    "TurnComplete",
    "TurnError",
    "TurnStatus",
    "UnknownEvent",
    "UserMessageChunk",
]
