"""Requests and their answers: labels, tokens, bounds, and what may be tried again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import anyio
import httpx

from .errors import DaemonConnectionError, DaemonHttpError, DaemonProtocolError, DaemonUsageError
from .fields import decode_json
from .lanes import Body, LaneTransport, WholeBody
from .retry import RetryPolicy, parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from governor.errors import JsonValue

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of one answer; `load` tells all that a server keeps of a session."""
TOKEN_VARIABLES: Final = ("GOVERNOR_TOKEN", "QWEN_SERVER_TOKEN")
"""Where the token comes from if it is not given; the second is the protocol's own."""
NOTHING_DONE: Final = frozenset({"rate_limit_exceeded", "too_many_requests_in_flight", "daemon_runtime_starting"})
"""Codes with which a server refuses before it does anything, so that the same request may be sent again."""
_UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
_FINAL: Final = frozenset({"prompt_queue_full", "daemon_draining", "session_limit_exceeded"})
"""Codes that are 503 and yet an answer: who asks should hear of it, not wait."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status that was expected, and its body (None if there is none)."""

    status: int
    body: JsonValue


class Http:
    """Speaks to one server.

    Args:
        base_url: `http[s]://host[:port][/prefix]`.
        token: for `Authorization`; None to take it from the environment, "" for none.
        transport: another httpx transport than our own (a proxy, a test's).
        request_timeout_s: the longest time from a request to the end of its answer.
        retry: how often what may be tried again is.

    Raises:
        ValueError: the URL or the token can be none.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None,
        transport: httpx.AsyncBaseTransport | None,
        request_timeout_s: float,
        retry: RetryPolicy,
    ) -> None:
        self.base_url = checked_url(base_url)
        self.request_timeout_s = request_timeout_s
        self.retry = retry
        self._token = _checked_token(token if token is not None else _token_of_environment())
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    def open(self) -> None:
        """Must come before the first request."""
        tls = httpx.create_ssl_context() if self.base_url.startswith("https:") else None
        headers = {"Accept-Encoding": "identity", "User-Agent": "triton-governor"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        # Every wait is bounded as a whole (`fail_after`), which httpx's timeouts, one for each piece, cannot do.
        self._client = httpx.AsyncClient(
            transport=self._transport if self._transport is not None else LaneTransport(tls),
            headers=headers,
            timeout=httpx.Timeout(None),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Closes every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        label: str,
        *,
        body: Mapping[str, JsonValue] | None = None,
        client_id: str | None = None,
        token: str | None = None,
        expect: Collection[int] = (200,),
        timeout_s: float | None = None,
        unlimited: bool = False,
        plain: bool = False,
    ) -> Answer:
        """One request and its whole answer, tried again where that is safe.

        Args:
            method: tells what is safe as well: a GET may be tried again whatever became of it.
            path: with its parts quoted.
            label: what is asked, for messages.
            body: sent as JSON.
            client_id: for `X-Qwen-Client-Id`.
            token: another one than usual.
            expect: statuses that are no errors.
            timeout_s: another bound than usual, in seconds.
            unlimited: the answer may take as long as it likes; the caller has a bound of its own.
            plain: the answer is text, not JSON.

        Raises:
            DaemonHttpError: another status than expected.
            DaemonConnectionError: no answer.
            DaemonProtocolError: an answer that is none.
        """
        failures = 0
        while True:
            limit_s = None if unlimited else timeout_s or self.request_timeout_s
            try:
                return await self._ask_once(
                    self._request(method, path, body, client_id, token),
                    label,
                    expect=expect,
                    limit_s=limit_s,
                    plain=plain,
                )
            except DaemonHttpError as error:
                failures += 1
                again = error.code in NOTHING_DONE or (
                    method == "GET" and error.status in _UNAVAILABLE and error.code not in _FINAL
                )
                pause_s = self.retry.pause_s(failures, error.retry_after_s) if again else None
                if pause_s is None:
                    raise
            except DaemonConnectionError as error:
                failures += 1
                pause_s = self.retry.pause_s(failures) if method == "GET" or not error.delivered else None
                if pause_s is None:
                    raise
            await anyio.sleep(pause_s)

    async def text(self, path: str, label: str) -> str:
        """One GET whose answer is text; see `ask`."""
        answer = await self.ask("GET", path, label, plain=True)
        assert isinstance(answer.body, str)
        return answer.body

    async def open_stream(self, path: str, label: str, headers: Mapping[str, str]) -> tuple[httpx.Headers, Body]:
        """Opens an event stream, once: its header fields and its body, which the caller closes.

        Raises:
            DaemonHttpError: another status than 200.
            DaemonConnectionError: no answer within `request_timeout_s`.
            DaemonProtocolError: it is no event stream.
        """
        request = self._request("GET", path, None, None, None)
        request.headers.update({"Accept": "text/event-stream", "Cache-Control": "no-cache", **headers})
        response = await self._send(request, label, self.request_timeout_s)
        body = Body(response)
        kind = response.headers.get("Content-Type", "none")
        if response.status_code == 200 and "text/event-stream" in kind.lower():
            return response.headers, body
        try:
            with anyio.move_on_after(self.request_timeout_s):
                if response.status_code != 200:
                    raise _refusal(response, await _read(body, label), label)
            raise DaemonProtocolError(f"{label}: expected an event stream; received content type {kind[:100]!r}")
        finally:
            await body.aclose()

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, JsonValue] | None,
        client_id: str | None,
        token: str | None,
    ) -> httpx.Request:
        if self._client is None:
            raise DaemonUsageError("The client is not open: use it inside of `async with DaemonClient(...) as client`")
        headers = {}
        content = b""
        if body is not None:
            content = json.dumps(body, separators=(",", ":")).encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        if client_id:
            headers["X-Qwen-Client-Id"] = client_id
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = self._client.build_request(method, self.base_url + path, headers=headers)
        request.stream = WholeBody(content)
        return request

    async def _ask_once(
        self, request: httpx.Request, label: str, *, expect: Collection[int], limit_s: float | None, plain: bool
    ) -> Answer:
        bound = anyio.move_on_after(limit_s)
        with bound:
            response = await self._send(request, label, None)
            content = Body(response)
            try:
                data = await _read(content, label)
            finally:
                await content.aclose()
            if response.status_code not in expect:
                raise _refusal(response, data, label)
            if plain:
                return Answer(response.status_code, data.decode("utf-8", "replace"))
            return Answer(response.status_code, _decoded(data, label) if data else None)
        raise DaemonConnectionError(f"{label}: no answer within {limit_s:g} s", delivered=True)

    async def _send(self, request: httpx.Request, label: str, limit_s: float | None) -> httpx.Response:
        client = self._client
        if client is None:
            raise DaemonUsageError("The client was closed")
        try:
            with anyio.fail_after(limit_s):
                return await client.send(request, stream=True)
        except TimeoutError:
            raise DaemonConnectionError(f"{label}: no answer within {limit_s:g} s", delivered=True) from None
        except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
            raise DaemonConnectionError(
                f"{label}: cannot connect to {self.base_url}: {_reason(error)}", delivered=False
            ) from error
        except httpx.TransportError as error:
            raise DaemonConnectionError(
                f"{label}: the connection broke before the answer: {_reason(error)}", delivered=True
            ) from error


def segment(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="")


def checked_url(text: str) -> str:
    """A server's URL without the slashes at its end.

    Raises:
        ValueError: it is no `http[s]://host[:port][/prefix]`.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"{text!r} is no URL: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment:
        raise ValueError(f"{text!r} is no URL of a server; it must look like http://127.0.0.1:4170")
    if url.userinfo:
        raise ValueError("a server's URL carries no user or password; give a token")  # no echo: it may hold a secret
    return text.rstrip("/")


def _checked_token(token: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("a token is printable ASCII without spaces")  # no echo: it is a secret
    return token


def _token_of_environment() -> str:
    return next((os.environ[name] for name in TOKEN_VARIABLES if os.environ.get(name)), "")


async def _read(body: Body, label: str) -> bytes:
    data = bytearray()
    try:
        while (piece := await body.piece()) is not None:
            data += piece
            if len(data) > ANSWER_BYTES_MAX:
                raise DaemonProtocolError(f"{label}: the answer is larger than {ANSWER_BYTES_MAX} bytes")
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise DaemonConnectionError(
            f"{label}: the connection broke in the answer: {_reason(error)}", delivered=True
        ) from error
    return bytes(data)


def _refusal(response: httpx.Response, data: bytes, label: str) -> DaemonHttpError:
    try:
        body = decode_json(data) if data else None
    except ValueError:
        body = data.decode("utf-8", "replace")
    retry_after_s = parse_retry_after(response.headers.get("Retry-After"))
    return DaemonHttpError.of_answer(label, response.status_code, body, retry_after_s)


def _decoded(data: bytes, label: str) -> JsonValue:
    try:
        return decode_json(data)
    except ValueError:
        shown = data[:100].decode("utf-8", "replace")
        raise DaemonProtocolError(f"{label}: the answer is no JSON: {shown!r}") from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
