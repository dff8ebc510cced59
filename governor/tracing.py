"""What the governor tells a tracer, if it has one: a prompt, a call's wait for a credit, its time in the backend.

The governor knows no tracing library. Without a tracer nothing of this exists, and a call costs one comparison more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from governor.errors import GovernorError
    from governor.triton.wire import WireRequest


class CallSpans(Protocol):
    """One call: first it waits for a credit, then it is in the backend, whoever still waits for it."""

    def granted(self, claim_id: int) -> None:
        """It got a credit: the wait is over, the backend's part begins."""

    def request(self, wire: WireRequest) -> WireRequest:
        """The request as it is to be sent, with the trace's context in it."""

    def answered(self, status: int) -> None:
        """The backend's status arrived."""

    def left(self) -> None:
        """The caller has left; the call goes on."""

    def ended(self, error: GovernorError | None) -> None:
        """Nothing more will come; `error` says why not everything did. Called once, granted or not."""


class PromptSpan(Protocol):
    """One prompt, from its admission to its end for the caller."""

    def active(self) -> AbstractContextManager[object]:
        """What is done inside belongs to the prompt."""

    def settled(self, outcome: str, error: GovernorError | None) -> None:
        """It has ended for its caller. Called once."""


class Tracer(Protocol):
    """Begins spans. What is current where it is asked is their parent."""

    def call(self, identity: str) -> CallSpans:
        """A call of an identity begins to wait."""

    def prompt(self, session_id: str, prompt_id: str) -> PromptSpan:
        """A prompt was admitted."""
