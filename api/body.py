"""The JSON body of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import request

from .callers import field_of
from .context import this_scope
from .errors import UnsupportedEncodingError
from .wire import decode_object

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope

    from governor.errors import JsonValue


async def json_object() -> dict[str, JsonValue]:
    """The body of the current request as an object; see `object_of`. The guard bounds its size."""
    return object_of(this_scope(), await plain_body())


def object_of(scope: HTTPScope, body: bytes) -> dict[str, JsonValue]:
    """A request's body as an object; see `decode_object`.

    Raises:
        InvalidRequestError: it is no JSON.
        UnsupportedEncodingError: it is compressed.
    """
    _check_plain(scope)
    return decode_object(field_of(scope, b"content-type"), body)


async def plain_body() -> bytes:
    """The body of the current request as it was sent.

    Raises:
        UnsupportedEncodingError: it is compressed.
    """
    body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    _check_plain(this_scope())
    return body


def _check_plain(scope: HTTPScope) -> None:
    encoding = field_of(scope, b"content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise UnsupportedEncodingError
