"""When the client goes away: the work runs to its natural end and then counts, unless it never arrived."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import h11
import pytest
import trio

from tests.contract.driver import new_id, sleep_body, text_tensor, until
from tests.contract.wire import as_body, request_bytes

if TYPE_CHECKING:
    from tests.contract.driver import TritonDriver
    from tests.contract.wire import Wire


async def leave(wire: Wire, how: str) -> None:
    match how:
        case "close":
            await wire.close()
        case "reset":
            await wire.reset()
        case _:
            await wire.half_close()


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
async def test_executing_infer_runs_to_its_end_and_counts(triton: TritonDriver, how: str) -> None:
    before, execution = await triton.settled_counts("nobatch"), new_id()
    async with triton.wire() as wire:
        await wire.send("POST", "/v2/models/nobatch/infer", sleep_body(400, id=execution))
        await triton.wait_for_start(execution)
        await leave(wire, how)
        await trio.sleep(0.1)
        assert triton.times_of(execution)[1] is None
        assert await triton.counts("nobatch") == before
        if how == "half-close":
            assert (await wire.reply()).status == 200
    await triton.wait_for_end(execution)
    started, ended = triton.times_of(execution)
    assert started is not None
    assert ended is not None
    assert 0.39 < ended - started < 0.6
    assert await triton.settled_counts("nobatch") == (before[0] + 1, before[1])


@pytest.mark.parametrize("model", ["nobatch", "sleep_db"])
async def test_queued_infer_executes_and_counts(triton: TritonDriver, model: str) -> None:
    """Default scheduler and dynamic batcher: the queued one is not withdrawn with its client."""
    before, first, queued = await triton.settled_counts(model), new_id(), new_id()
    batch = 1 if model == "sleep_db" else None
    async with triton.wire() as one, triton.wire() as two:
        await one.send("POST", f"/v2/models/{model}/infer", sleep_body(250, batch=batch, id=first))
        await triton.wait_for_start(first)
        await two.send("POST", f"/v2/models/{model}/infer", sleep_body(50, batch=batch, id=queued))
        await trio.sleep(0.02)
        await two.reset()
        assert (await one.reply()).status == 200
    await triton.wait_for_end(queued)
    assert await triton.settled_counts(model) == (before[0] + 2, before[1])


async def test_every_request_that_was_sent_whole_executes_and_counts(triton: TritonDriver) -> None:
    """Twenty connections, each closed or reset right after its last byte."""
    before, executions = await triton.settled_counts("nobatch"), [new_id() for _ in range(20)]
    for index, execution in enumerate(executions):
        async with triton.wire() as wire:
            await wire.send("POST", "/v2/models/nobatch/infer", sleep_body(1, id=execution))
            await leave(wire, "reset" if index % 2 else "close")
    for execution in executions:
        await triton.wait_for_end(execution)
    assert await triton.settled_counts("nobatch") == (before[0] + 20, before[1])


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("kind", ["infer", "generate", "generate_stream"])
async def test_truncated_body_never_executes_and_never_counts(triton: TritonDriver, kind: str, how: str) -> None:
    before, execution = await triton.settled_counts("nobatch"), new_id()
    body = sleep_body(1, id=execution) if kind == "infer" else {"DELAY_MS": 1, "X": 5, "id": execution}
    whole = request_bytes("POST", f"/v2/models/nobatch/{kind}", as_body(body))
    async with triton.wire() as wire:
        await wire.stream.send_all(whole[:-1])
        await trio.sleep(0.05)
        await leave(wire, how)
        if how == "half-close":
            assert await wire.stream.receive_some() == b""
    await trio.sleep(0.2)
    assert triton.times_of(execution) == (None, None)
    assert await triton.settled_counts("nobatch") == before


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
async def test_stream_of_a_model_that_looks_ends_early_and_counts(triton: TritonDriver, how: str) -> None:
    """`storyteller` stops at its next token; a half-close ends the stream as well, without its last chunk."""
    before, execution = await triton.settled_counts("storyteller"), new_id()
    body = {"text_input": "Alice was", "max_tokens": 50, "id": execution}
    async with triton.wire() as wire:
        await wire.send("POST", "/v2/models/storyteller/generate_stream", body)
        assert (await wire.head()).status == 200
        assert await wire.next_data()
        await leave(wire, how)
        if how == "half-close":
            with pytest.raises(h11.RemoteProtocolError):
                await wire.rest()
    await triton.wait_for_end(execution)
    started, ended = triton.times_of(execution)
    assert started is not None
    assert ended is not None
    assert ended - started < 0.75, "fifty tokens take 1.5 s"
    assert await triton.settled_counts("storyteller") == (before[0] + 1, before[1])


async def test_stream_of_a_model_that_does_not_look_runs_to_its_end_and_counts(triton: TritonDriver) -> None:
    before, execution = await triton.settled_counts("stream"), new_id()
    async with triton.wire() as wire:
        await wire.send("POST", "/v2/models/stream/generate_stream", {"N": 4, "DELAY_MS": 100, "id": execution})
        assert (await wire.head()).status == 200
        await wire.close()
    assert await triton.counts("stream") == before
    await triton.wait_for_end(execution)
    started, ended = triton.times_of(execution)
    assert started is not None
    assert ended is not None
    assert ended - started > 0.39
    assert await triton.settled_counts("stream") == (before[0] + 1, before[1])


async def test_generate_without_a_client_runs_to_its_end_and_counts(triton: TritonDriver) -> None:
    before, execution = await triton.settled_counts("slow"), new_id()
    async with triton.wire() as wire:
        await wire.send("POST", "/v2/models/slow/generate", {"text_input": "0.4 s", "id": execution})
        await triton.wait_for_start(execution)
        await wire.reset()
    await trio.sleep(0.1)
    assert await triton.counts("slow") == before
    await triton.wait_for_end(execution)
    assert await triton.settled_counts("slow") == (before[0] + 1, before[1])


async def test_model_with_a_thread_is_counted_long_before_its_work_ends(triton: TritonDriver) -> None:
    """Its counter proves no end; the end of its stream does."""
    before, execution = await triton.settled_counts("late"), new_id()
    async with triton.wire() as wire:
        await wire.send("POST", "/v2/models/late/generate_stream", {"N": 3, "DELAY_MS": 250, "id": execution})
        await until(lambda: _counted(triton, before), "the count")
        assert triton.times_of(execution)[1] is None
        assert (await wire.head()).status == 200
        await wire.rest()
        await triton.wait_for_end(execution)
    assert await triton.settled_counts("late") == (before[0] + 1, before[1])


async def _counted(triton: TritonDriver, before: tuple[int, int]) -> bool:
    return (await triton.counts("late"))[0] == before[0] + 1


@pytest.mark.parametrize("how", ["close", "reset", "half-close", "send it"])
async def test_a_large_body_without_its_last_byte_is_no_request(triton: TritonDriver, how: str) -> None:
    """ADR-0018 rests on it: for as long as that byte is missing nothing runs, whatever else is here; then once."""
    before, execution = await triton.settled_counts("slow"), new_id()
    body, headers = text_tensor(b"0.05 seconds" + b" " * 3_000_000, execution)
    async with triton.wire() as wire:
        request = request_bytes("POST", "/v2/models/slow/infer", body, headers)
        await wire.stream.send_all(request[:-1])
        await trio.sleep(1)
        assert triton.times_of(execution) == (None, None)
        assert await triton.counts("slow") == before
        if how == "send it":
            await wire.stream.send_all(request[-1:])
        else:
            await leave(wire, how)
        await trio.sleep(0.4)
    assert sum(line["id"] == execution for line in triton.work()) == (2 if how == "send it" else 0)
    assert await triton.settled_counts("slow") == (before[0] + (how == "send it"), before[1])


async def test_requests_that_stand_without_their_end_hold_up_no_other(triton: TritonDriver) -> None:
    """ADR-0018 rests on this too: more of them than the server has threads (eight), and the next call is served."""
    body, headers = text_tensor(b"0.01 seconds" + b" " * 500_000, "stands")
    request = request_bytes("POST", "/v2/models/slow/infer", body, headers)
    async with AsyncExitStack() as stack:
        for _ in range(20):
            wire = await stack.enter_async_context(triton.wire())
            await wire.stream.send_all(request[:-1])
        reply = await triton.ask("POST", "/v2/models/slow/infer", *text_tensor(b"0.01 seconds", new_id()))
        assert reply.status == 200
    assert triton.times_of("stands") == (None, None)
