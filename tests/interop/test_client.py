"""The unmodified TypeScript client against a governor on a socket: what the protocol promises, kept end to end.

Each script asserts for itself; here is what only the server's side can tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import trio

from tests.interop.node import run_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from tests.e2e.stack import Governor

    Govern = Callable[..., AbstractAsyncContextManager[Governor]]


async def metric(url: str, name: str) -> float:
    """The value of a metric that has no labels."""
    async with httpx.AsyncClient(base_url=url) as client:
        text = (await client.get("/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.split(" ")[1])


async def no_subscriber_left(url: str) -> None:
    """A script's end closes its streams; the governor notices."""
    with trio.fail_after(10):
        while await metric(url, "vig_event_subscribers"):
            await trio.sleep(0.02)


async def test_create_attach_choose_an_id_and_close(shared_url: str) -> None:
    sessions = await metric(shared_url, "vig_sessions")
    await run_script("create", {"url": shared_url})
    assert await metric(shared_url, "vig_sessions") == sessions


async def test_a_prompt_is_answered_on_a_subscription_and_without_one(shared_url: str) -> None:
    told = await run_script("prompt", {"url": shared_url})
    assert told["prompts"] == 5
    await no_subscriber_left(shared_url)


async def test_a_hundred_turns_that_are_over_before_the_client_has_read_their_202(shared_url: str) -> None:
    """S7: the terminal event and the 202 come on two connections, and none of a hundred is missed."""
    told = await run_script("fast_turns", {"url": shared_url, "turns": 100, "busyMs": 20})
    assert told["terminals"] == 100


async def test_the_sixth_prompt_is_refused_by_the_client_without_a_request_and_by_the_server(shared_url: str) -> None:
    admitted = await metric(shared_url, "vig_prompts_admitted_total")
    refused = await metric(shared_url, "vig_prompts_refused_total")
    told = await run_script("limits", {"url": shared_url})
    assert await metric(shared_url, "vig_prompts_admitted_total") - admitted == told["admitted"]
    assert await metric(shared_url, "vig_prompts_refused_total") - refused == told["refused"]


async def test_cancel_abort_and_deadline_end_one_prompt_each(shared_url: str) -> None:
    await run_script("cancel", {"url": shared_url})
    await no_subscriber_left(shared_url)


async def test_a_client_that_comes_back_hears_every_event_once(shared_url: str) -> None:
    """By its cursor, by load and by resume, in the middle of a turn and after it."""
    await run_script("reconnect", {"url": shared_url})
    await no_subscriber_left(shared_url)


async def test_the_queue_names_status_model_and_branches(shared_url: str) -> None:
    await run_script("session", {"url": shared_url})


async def test_close_ends_every_pending_prompt_and_the_stream(shared_url: str) -> None:
    await run_script("close", {"url": shared_url})
    await no_subscriber_left(shared_url)


async def test_a_shutdown_ends_every_pending_prompt_and_the_stream(govern: Govern) -> None:
    async with govern() as governor:
        await run_script("shutdown", {"url": governor.url, "pid": governor.process.pid})
        assert await governor.wait_exit(seconds=10) == 0


async def test_a_reader_that_stops_reading_is_cut_off_and_misses_nothing(govern: Govern) -> None:
    async with govern(server="send_timeout_ms = 1000", limits="subscriber_queue_bytes = 262144") as governor:
        told = await run_script("eviction", {"url": governor.url, "turns": 40, "promptBytes": 200_000})
        assert told["cutOffAfter"] < told["published"]
        await governor.wait_metric("vig_event_subscribers", 0)


async def test_a_token_opens_every_route_and_nothing_else_does(govern: Govern) -> None:
    token = "0123456789abcdef0123456789abcdef"
    async with govern(limits=f'[tokens]\napi = "{token}"') as governor:
        await run_script("token", {"url": governor.url, "token": token})


async def test_the_clients_acp_transport_works_as_well(shared_url: str) -> None:
    """A4: responses on streams, none missed though its 202 comes on another connection; and nothing is left behind."""
    sessions = await metric(shared_url, "vig_sessions")
    await run_script("acp", {"url": shared_url, "turns": 30})
    await no_subscriber_left(shared_url)
    assert await metric(shared_url, "vig_sessions") <= sessions + 2
