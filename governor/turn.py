"""One turn: a text goes to a model, its answer comes back as text. Knows nothing of sessions or HTTP clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from governor.errors import BackendAnswerError, BackendTimeoutError, BackendUnavailableError
from governor.identity import CallRequest, answer_too_large
from governor.triton.outcomes import CallKind
from governor.triton.text import (
    StreamDecoder,
    StreamError,
    TextTarget,
    build_text_request,
    decode_generate,
    decode_infer,
    error_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.backend import Backend
    from governor.config import ModelConfig
    from governor.identity import Call, Identity
    from governor.requests import RequestCheck
    from governor.triton.text import TextChunk


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as callers name it, with what serves it."""

    config: ModelConfig
    identity: Identity
    backend: Backend
    requests: RequestCheck

    @property
    def kind(self) -> CallKind:
        """How it is called."""
        return CallKind(self.config.kind)

    def problem(self) -> str | None:
        """Why it cannot be used now, in one line; None when it can."""
        return self.backend.status.problem_of(self.config.triton_model)


async def run_turn(
    served: ServedModel,
    text: str,
    *,
    key: str,
    request_id: str,
    max_answer_bytes: int,
    emit: Callable[[str], None],
) -> None:
    """Sends a text and hands every piece of the answer to `emit`, in order.

    Leaving early (cancellation, a deadline) never touches a call that was sent: its claim goes on (E2, S6).
    A call that was never delivered is sent again once the backend is back, where the operator wants that.

    Raises:
        GovernorError: there is no answer, or no complete one, and why.
    """
    give_up_at = float("inf")
    while True:
        try:
            target = await _target(served)
            wire = build_text_request(target, text, parameters=dict(served.config.parameters), request_id=request_id)
            request = CallRequest(
                wire=wire,
                kind=served.kind,
                max_answer_bytes=max_answer_bytes,
                disconnect_on_abandon=served.config.on_abandon == "disconnect",
                prompt_id=request_id,
            )
            await _call(served, target, request, key, emit)
        except BackendUnavailableError as unavailable:
            served.backend.suspect()
            if served.backend.config.when_unavailable == "fail":
                raise
            # From when it was first found away: the time spent waiting for a credit before was not its fault.
            give_up_at = min(give_up_at, trio.current_time() + served.backend.config.unavailable_wait_ms / 1000)
            with trio.move_on_at(give_up_at):
                await served.backend.wait_usable()
                continue
            raise unavailable from None
        else:
            return


async def _call(
    served: ServedModel, target: TextTarget, request: CallRequest, key: str, emit: Callable[[str], None]
) -> None:
    call = served.identity.submit(request, key=key)
    try:
        await served.identity.uploads.stand_by(call)
        await call.started()
        await _relay(served, target, call, emit)
    finally:
        call.abandon()


async def _target(served: ServedModel) -> TextTarget:
    config = served.config
    batched = False
    if served.kind is CallKind.INFER:
        facts = await served.identity.know_facts()
        batched = facts.max_batch_size > 0
    return TextTarget(
        kind=served.kind,
        triton_model=config.triton_model,
        version=config.triton_version,
        text_input=config.text_input,
        text_output=config.text_output,
        batched=batched,
    )


async def _relay(served: ServedModel, target: TextTarget, call: Call, emit: Callable[[str], None]) -> None:
    timeout_ms = served.config.timeout_ms
    if timeout_ms is None:
        await _relay_answer(served.kind, target, call, emit)
        return
    with trio.move_on_after(timeout_ms / 1000):
        await _relay_answer(served.kind, target, call, emit)
        return
    raise BackendTimeoutError(served.config.name, timeout_ms)


async def _relay_answer(kind: CallKind, target: TextTarget, call: Call, emit: Callable[[str], None]) -> None:
    head = await call.head()
    if head.status != 200:
        raise BackendAnswerError(error_message(await call.body()), backend_status=head.status)
    if kind is CallKind.GENERATE_STREAM:
        await _relay_stream(target, call, emit)
    elif kind is CallKind.GENERATE:
        emit(decode_generate(target, await call.body()))
    else:
        header_length = next(
            (value for name, value in head.headers if name.lower() == "inference-header-content-length"), None
        )
        emit(decode_infer(target, await call.body(), header_length))


async def _relay_stream(target: TextTarget, call: Call, emit: Callable[[str], None]) -> None:
    decoder = StreamDecoder(target)
    limit, size = call.request.max_answer_bytes, 0
    while (chunk := await call.next_chunk()) is not None:
        size += len(chunk)
        if size > limit:
            # The call itself bounds only what waits to be taken.
            raise answer_too_large(limit)
        _emit_all(decoder.feed(chunk), emit)
    _emit_all(decoder.close(), emit)


def _emit_all(items: list[TextChunk | StreamError], emit: Callable[[str], None]) -> None:
    for item in items:
        if isinstance(item, StreamError):
            raise BackendAnswerError(item.message, backend_status=200)
        if item.text:
            emit(item.text)
