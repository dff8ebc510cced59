"""Boot identity: which process of the backend is behind a connection (E8).

A stock Triton offers two things. Its trace settings keep a number that nothing uses while tracing is off
(`log_frequency`); one that the governor wrote survives a reload of the model and is gone after a restart. And
`GET /v2` tells the `--id` it was started with, which is unique only if the operator made it so.

The number is written per model, so that each identity has its own: its one owner (D8) is its only writer.
"""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Literal

import trio

from governor.triton.jsons import parse_json
from governor.triton.wire import WireRequest, model_path

if TYPE_CHECKING:
    from governor.errors import JsonValue
    from governor.triton.lane import FreshConnection

BootSource = Literal["auto", "trace", "id", "none"]

_ANSWER_MAX = 64 * 1024
_LOW, _HIGH = 2**30, 2**31
"""Triton takes signed 32-bit numbers only, and its own defaults are not in this range."""
_MODULUS, _REMAINDER = 1009, 417
"""What makes a number recognisable as one that a governor wrote, so that the next governor adopts it."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def new_nonce(source: random.Random) -> int:
    """A number that `is_nonce` recognises; one of about a million."""
    return source.randrange(_LOW + (_REMAINDER - _LOW) % _MODULUS, _HIGH, _MODULUS)


def is_nonce(value: int) -> bool:
    """True for a number that a governor wrote."""
    return _LOW <= value < _HIGH and value % _MODULUS == _REMAINDER


class BootStamp:
    """Asks a fresh connection for the boot identity of the process behind it; a lane's `Stamp`.

    Args:
        model: Triton's model name, whose trace settings carry the nonce.
        source: where the identity comes from; `auto` tries the nonce, then an id that holds a UUID, and keeps to
            what it found first: two kinds of name for one process would look like two processes.
    """

    def __init__(self, model: str, source: BootSource, *, entropy: random.Random | None = None) -> None:
        self._model = model
        self._source: BootSource = source
        self._entropy = entropy or random.SystemRandom()
        # Two connections that find no nonce must not both write one: the later would look like a restart.
        # Held for at most the lane's connect timeout, which bounds the stamp.
        self._writing = trio.Lock()
        # A write that was given up may still arrive. Whoever writes next writes the same, so that it changes nothing.
        self._unconfirmed: int | None = None

    async def __call__(self, connection: FreshConnection) -> str | None:
        """The boot identity, or None where there is none to be had.

        Raises:
            BackendError: the connection broke.
        """
        if self._source == "none":
            return None
        if self._source != "id":
            nonce = await self._nonce(connection)
            if nonce is not None or self._source == "trace":
                return nonce if self._keep_to("trace") else None
        server_id = await self._server_id(connection)
        # A model that is unloaded has no trace settings just now: its id must not stand in for its nonce.
        return server_id if server_id is not None and self._keep_to("id") else None

    def _keep_to(self, source: BootSource) -> bool:
        """Settles what `auto` uses; False if it was settled otherwise meanwhile."""
        if self._source == "auto":
            self._source = source
        return self._source == source

    async def _nonce(self, connection: FreshConnection) -> str | None:
        value = await self._trace_setting(connection)
        if value is not None and not is_nonce(value):
            async with self._writing:
                value = await self._trace_setting(connection)
                if value is not None and not is_nonce(value):
                    self._unconfirmed = self._unconfirmed or new_nonce(self._entropy)
                    value = await self._trace_setting(connection, write=self._unconfirmed)
        if value is None or not is_nonce(value):
            return None
        self._unconfirmed = None
        return f"trace:{value}"

    async def _trace_setting(self, connection: FreshConnection, *, write: int | None = None) -> int | None:
        """The model's `log_frequency`, after writing it if asked; None if it cannot be had or must not be touched."""
        path = model_path(self._model, None, "trace", "setting")
        if write is None:
            request = WireRequest(method="GET", path=path)
        else:
            body = json.dumps({"log_frequency": str(write)}).encode()
            request = WireRequest(method="POST", path=path, headers=(("Content-Type", "application/json"),), body=body)
        status, answer = await connection.fetch(request, max_bytes=_ANSWER_MAX)
        settings = _object(answer) if status == 200 else {}
        if settings.get("trace_level") != ["OFF"]:
            return None  # the number has a meaning while tracing is on: hands off
        value = settings.get("log_frequency")
        return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else None

    async def _server_id(self, connection: FreshConnection) -> str | None:
        status, answer = await connection.fetch(WireRequest(method="GET", path="/v2"), max_bytes=_ANSWER_MAX)
        name = _object(answer).get("name") if status == 200 else None
        if not isinstance(name, str) or not name:
            return None
        return f"id:{name}" if self._source == "id" or _UUID.search(name) else None


def _object(body: bytes) -> dict[str, JsonValue]:
    try:
        value = parse_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
