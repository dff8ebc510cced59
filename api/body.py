"""The JSON body of the current request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import request

from .errors import UnsupportedEncodingError
from .wire import decode_object

if TYPE_CHECKING:
    from governor.errors import JsonValue


async def json_object() -> dict[str, JsonValue]:
    """The body as an object; see `decode_object`. Its size is bounded by the guard in front of the application.

    Raises:
        InvalidRequestError: it is no JSON.
        UnsupportedEncodingError: it is compressed.
    """
    return decode_object(request.headers.get("Content-Type"), await plain_body())


async def plain_body() -> bytes:
    """The body as it was sent.

    Raises:
        UnsupportedEncodingError: it is compressed.
    """
    body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise UnsupportedEncodingError
    return body
