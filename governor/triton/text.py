"""Text in, text out: how a prompt becomes a Triton request and an answer becomes text again.

Three kinds of call (`CallKind`): `infer` with a BYTES tensor, encoded and decoded by tritonclient; `generate`, one JSON
object each way; `generate_stream`, one SSE frame per response. The text tensors are `text_input` and `text_output`
by the convention of Triton's vLLM and TensorRT-LLM backends, unless the configuration names others.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from governor.errors import BackendAnswerError, BackendProtocolError, InvalidRequestError
from governor.triton.jsons import parse_json
from governor.triton.outcomes import CallKind
from governor.triton.wire import WireRequest, model_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from governor.errors import JsonValue
    from governor.triton.wire import Headers

_MAX_MESSAGE = 2_000
_EXCERPT_BYTES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTarget:
    """How one model takes and gives text.

    Attributes:
        kind: endpoint.
        triton_model: Triton's name of the model.
        version: version to call; None leaves it to Triton's version policy.
        text_input: input that gets the text.
        text_output: output that holds the answer.
        batched: the model's max_batch_size is above 0, so an `infer` tensor gets a batch dimension of 1 in front.
    """

    kind: CallKind
    triton_model: str
    version: str | None = None
    text_input: str = "text_input"
    text_output: str = "text_output"
    batched: bool = False


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of the answer, in order; may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class StreamError:
    """The model's own error in a stream; further chunks may follow it."""

    message: str


def preload_tensor_codec() -> None:
    """Import tritonclient (about 200 ms) before the first `infer` prompt has to wait for it."""
    _codec()


def build_text_request(
    target: TextTarget,
    text: str,
    *,
    parameters: Mapping[str, JsonValue] | None = None,
    request_id: str | None = None,
) -> WireRequest:
    """The request that carries one prompt.

    Args:
        target: the model.
        text: the prompt; any text, NUL included.
        parameters: further fields: members of the `generate` body, request parameters of `infer`.
        request_id: comes back in the answer and in Triton's log.

    Raises:
        InvalidRequestError: the text or a parameter cannot be sent.
    """
    fields = dict(parameters or {})
    for taken in (target.text_input, "id"):
        if taken in fields:
            raise InvalidRequestError(f'Parameter "{taken}" is set by the governor itself; remove it')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The text is not valid Unicode at character {error.start} ({error.reason}); send it as UTF-8"
        ) from error
    body_of = _infer_body if target.kind is CallKind.INFER else _generate_body
    try:
        _encode(fields)  # tritonclient's encoder would let NaN pass
        headers, body = body_of(target, text, fields, request_id)
    except ValueError as error:
        raise InvalidRequestError(f"A parameter cannot be sent as JSON: {error}") from error
    path = model_path(target.triton_model, target.version, target.kind.value)
    return WireRequest(method="POST", path=path, headers=headers, body=body)


def decode_generate(target: TextTarget, body: bytes) -> str:
    """The text of a `generate` answer with status 200.

    Raises:
        BackendAnswerError: the body is an error all the same: a decoupled model gave other than one response.
        BackendProtocolError: the body has no text output.
    """
    value = _object(body)
    error = value.get("error")
    if isinstance(error, str):
        raise BackendAnswerError(error, backend_status=200)
    return _text_output(target, value)


def decode_infer(target: TextTarget, body: bytes, header_length: str | None) -> str:
    """The text of an `infer` answer with status 200.

    Args:
        target: the model.
        body: the whole body.
        header_length: the answer's Inference-Header-Content-Length field; None for a JSON-only body.

    Raises:
        BackendProtocolError: the body has no text output, or is not encoded as its own header says.
    """
    length: int | None = None
    if header_length is not None:
        length = int(header_length) if header_length.isascii() and header_length.isdigit() else -1
        if not 0 < length <= len(body):
            raise BackendProtocolError(f"The header length {header_length[:20]!r} does not fit the answer")
    try:
        elements = _codec().decode(body, length, target.text_output)
    except (LookupError, ValueError, TypeError, AttributeError, struct.error, ArithmeticError) as error:
        raise BackendProtocolError(f"The backend's tensors cannot be decoded: {error}") from error
    if elements is None:
        raise BackendProtocolError(f'The answer has no output "{target.text_output}"')
    return _join(target, elements)


def error_message(body: bytes) -> str:
    """The `error` text of an error answer, or a bounded excerpt of what came instead. Never empty."""
    try:
        value = parse_json(body.strip().removeprefix(b"data:"), lenient_text=True)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(error := value.get("error"), str) and error:
        return error[:_MAX_MESSAGE]
    excerpt = body[:_EXCERPT_BYTES].decode("utf-8", errors="replace").strip()
    return excerpt or "the backend gave no reason"


class StreamDecoder:
    """Turns the bytes of a `generate_stream` answer into chunks of text, however they arrive. Does no I/O.

    Args:
        target: the model.
        max_frame_bytes: a single response may not be larger.
    """

    def __init__(self, target: TextTarget, *, max_frame_bytes: int = 1024 * 1024) -> None:
        self._target = target
        self._max_frame_bytes = max_frame_bytes
        self._rest = bytearray()  # of a line whose end has not arrived
        self._data: list[bytes] = []  # data lines of a frame whose end has not arrived
        self._frame_bytes = 0
        self._fields_without_text: list[str] | None = None
        self._said_something = False

    def feed(self, data: bytes) -> list[TextChunk | StreamError]:
        """What these bytes complete.

        Raises:
            BackendProtocolError: a frame is too large, or is not what `generate_stream` sends.
        """
        items: list[TextChunk | StreamError] = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = bytes(self._rest) + line
            self._rest.clear()
            items += self._line(whole.removesuffix(b"\r"))
        self._rest += rest
        if self._frame_bytes + len(self._rest) > self._max_frame_bytes:
            raise self._too_large()
        return items

    def close(self) -> list[TextChunk | StreamError]:
        """The answer is complete: decode a last frame that lacks its blank line.

        Raises:
            BackendProtocolError: the frame is cut off, or no response of the stream held the text output.
        """
        items = self._line(bytes(self._rest)) + self._line(b"")
        self._rest.clear()
        if self._fields_without_text is not None and not self._said_something:
            raise _missing(self._target, self._fields_without_text)
        return items

    def _line(self, line: bytes) -> list[TextChunk | StreamError]:
        if line:
            self._frame_bytes += len(line)
            if self._frame_bytes > self._max_frame_bytes:
                raise self._too_large()
            if line.startswith(b"data:"):  # other fields and comments carry nothing here
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
            return []
        frame, self._data, self._frame_bytes = b"\n".join(self._data), [], 0
        return self._frame(frame) if frame else []

    def _frame(self, frame: bytes) -> list[TextChunk | StreamError]:
        value = _object(frame)
        error = value.get("error")
        if isinstance(error, str):
            self._said_something = True
            return [StreamError(error[:_MAX_MESSAGE])]
        if self._target.text_output not in value:
            # A decoupled model may send responses without this output, but not only such.
            self._fields_without_text = sorted(value)
            return []
        self._said_something = True
        return [TextChunk(_text_output(self._target, value))]

    def _too_large(self) -> BackendProtocolError:
        return BackendProtocolError(f"A streamed response is larger than {self._max_frame_bytes} bytes")


def _generate_body(
    target: TextTarget, text: str, fields: dict[str, JsonValue], request_id: str | None
) -> tuple[Headers, bytes]:
    document: dict[str, JsonValue] = {**fields, target.text_input: text}
    if request_id is not None:
        document["id"] = request_id
    return (("Content-Type", "application/json"),), _encode(document)


def _infer_body(
    target: TextTarget, text: str, fields: dict[str, JsonValue], request_id: str | None
) -> tuple[Headers, bytes]:
    shape = [1, 1] if target.batched else [1]
    body, json_size = _codec().encode(target, shape, text.encode("utf-8"), fields, request_id or "")
    return (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(json_size)),
    ), body


def _encode(document: dict[str, JsonValue]) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def _object(body: bytes) -> dict[str, JsonValue]:
    try:
        value = parse_json(body, lenient_text=True)
    except ValueError as error:
        raise BackendProtocolError(f"The backend's answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BackendProtocolError("The backend's answer is not a JSON object")
    return value


def _text_output(target: TextTarget, value: dict[str, JsonValue]) -> str:
    if target.text_output not in value:
        raise _missing(target, sorted(value))
    output = value[target.text_output]
    return _join(target, output if isinstance(output, list) else [output])


def _join(target: TextTarget, elements: Iterable[object]) -> str:
    """The elements of a BYTES tensor as one text, put together without anything between them."""
    texts: list[str] = []
    for element in elements:
        if isinstance(element, bytes):
            texts.append(element.decode("utf-8", errors="replace"))
        elif isinstance(element, str):
            texts.append(element)
        else:
            raise BackendProtocolError(f'Output "{target.text_output}" holds no text but {str(element)[:40]!r}')
    return "".join(texts)


def _missing(target: TextTarget, fields: list[str]) -> BackendProtocolError:
    names = ", ".join(fields)[:200]
    return BackendProtocolError(
        f'The answer has no output "{target.text_output}"; it has {names}. Set text_output to the right one'
    )


class _Codec(Protocol):
    """tritonclient's pure functions, behind types of our own."""

    def encode(
        self, target: TextTarget, shape: list[int], text: bytes, fields: dict[str, JsonValue], request_id: str
    ) -> tuple[bytes, int]: ...

    def decode(self, body: bytes, header_length: int | None, output: str) -> list[object] | None: ...


@cache
def _codec() -> _Codec:
    # Imported on first use: numpy, gevent and the rest cost 200 ms and 26 MB that generate models never need.
    from governor.triton.tensors import TensorCodec  # noqa: PLC0415

    return TensorCodec()
