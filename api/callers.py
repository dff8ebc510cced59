"""Who sends a request, as its ASGI scope has it: the same for every route, whoever serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .wire import decode_client_id

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope

    from governor.session import Session

_CLIENT_ID: Final = b"x-qwen-client-id"


def field_of(scope: HTTPScope, name: bytes) -> str | None:
    """The first value of a header field, its name in lower case; None if there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def address_of(scope: HTTPScope) -> str:
    """Where the request came from."""
    client = scope["client"]
    return client[0] if client is not None else "unknown"


def client_id_of(scope: HTTPScope) -> str | None:
    """The client id of a request; None for an anonymous caller.

    Raises:
        InvalidRequestError: `invalid_client_id`: it can be none.
    """
    return decode_client_id(field_of(scope, _CLIENT_ID))


def known_caller(session: Session, scope: HTTPScope) -> str | None:
    """The client id of a request, which the session must know; None for an anonymous caller.

    Whoever asks this uses the session.

    Raises:
        InvalidRequestError: `invalid_client_id`: it is none of the session's.
    """
    client_id = client_id_of(scope)
    session.clients.require(client_id)
    session.touch()
    return client_id
