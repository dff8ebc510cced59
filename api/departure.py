"""What becomes of a request whose client has left, and of a session whose caller never learned of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trio
    from hypercorn.typing import ASGIReceiveCallable

    from governor.service import Governor
    from governor.session import Session


def forget(governor: Governor, session: Session, client_id: str, *, made: bool) -> None:
    """A caller never learned that it was registered. A session that was made for it goes, unless somebody uses it."""
    session.clients.unregister(client_id)
    used = len(session.clients) or session.in_use
    if made and not used and not session.closed:
        governor.close_session(session.id, reason="client_gone")


async def cancel_when_gone(receive: ASGIReceiveCallable, scope: trio.CancelScope) -> None:
    """Cancels what is done for a client that leaves; for a server that does not offer `departure_of`."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
