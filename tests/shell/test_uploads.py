"""ADR-0018: a large request goes ahead of its credit but for its end; it holds no slot, and nothing of it executes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio

from governor.core.claims import ClaimState
from governor.errors import BackendUnavailableError, CreditQueueFullError, DrainingError, GovernorError
from governor.identity import Call, CallState
from governor.identity.firstlook import FirstLook
from tests.shell.harness import (
    LANE_IDLE_S,
    Bench,
    body_within,
    call_request,
    identity_bench,
    send_ahead,
    service,
    until,
)
from tests.shell.world import Break, Plan, plain_facts

if TYPE_CHECKING:
    from governor.identity.uploads import Upload
    from governor.tracing import CallSpans, PromptSpan
    from governor.triton.metadata import ModelFacts
    from governor.triton.wire import WireRequest


async def upload(bench: Bench, text: str = "1") -> Upload:
    """One with all but its end sent."""
    begun = bench.identity.uploads.begin()
    assert begun is not None
    await send_ahead(begun, call_request(text))
    return begun


def submit(bench: Bench, begun: Upload, *, key: str = "k") -> Call:
    """Its body is nowhere but at the backend."""
    request = call_request()
    return bench.identity.submit(replace(request, wire=replace(request.wire, body=b"")), key=key, upload=begun)


def texts(bench: Bench) -> list[str]:
    return [execution.text for execution in bench.world.executions]


async def test_an_upload_holds_no_slot_and_executes_nothing_before_its_credit() -> None:
    """E3: whoever is whole first is served first, however long another's body takes."""
    async with identity_bench() as bench:
        slow = await upload(bench, "1 slow")
        await trio.sleep(1_000)
        assert bench.free == 1
        assert not bench.world.executions
        quick = bench.submit("1 quick")
        await trio.sleep(0.5)
        assert texts(bench) == ["1 quick"]
        late = submit(bench, slow)
        assert late.state is CallState.WAITING
        await body_within(quick, 1)
        assert b"ok" in await body_within(late, 1.1)
        assert texts(bench) == ["1 quick", "1 slow"]
        assert bench.world.high_water == 1


async def test_its_claim_is_like_any_other() -> None:
    """E5: delivered and broken, it is held until the counters prove its end."""
    async with identity_bench() as bench:
        bench.world.plans["broken"] = Plan(seconds=5, breaks=Break.AFTER_DELIVERY)
        call = submit(bench, await upload(bench, "broken"))
        with pytest.raises(GovernorError):
            await body_within(call, 1)
        assert bench.states == {ClaimState.RECONCILING: 1}
        await until(lambda: bench.free == 1, 8)
        assert not bench.world.executing


async def test_there_are_no_more_of_them_than_slots() -> None:
    """The backend keeps what went ahead: as much again as may execute."""
    async with identity_bench(slots=2) as bench:
        first, second = bench.identity.uploads.begin(), bench.identity.uploads.begin()
        assert first is not None
        assert second is not None
        assert bench.identity.uploads.begin() is None
        first.over()
        first.over()
        assert bench.identity.uploads.under_way == 1, "over counts once"
        third = bench.identity.uploads.begin()
        assert third is not None
        await send_ahead(third, call_request("5 third"))
        running = submit(bench, third)
        await until(lambda: "5 third" in texts(bench), 0.5)
        assert bench.identity.uploads.under_way == 1, "one with a credit is no longer ahead of it"
        await body_within(running, 6)
        assert bench.identity.uploads.under_way == 1


async def test_who_waits_stands_by_and_its_slot_waits_for_one_byte() -> None:
    """A slot that comes free gets a request that is there already, however long sending it takes."""
    async with identity_bench() as bench, trio.open_nursery() as nursery:
        bench.submit("5 running")
        waiting = bench.submit("1 waiting")
        nursery.start_soon(bench.identity.uploads.stand_by, waiting)
        await until(lambda: bench.world.times("begun") != [], 0.5)
        assert bench.world.open_lanes == 2
        assert texts(bench) == ["5 running"]
        assert b"ok" in await body_within(waiting, 7)
        assert texts(bench) == ["5 running", "1 waiting"]
        assert len(bench.world.times("connect")) == 2, "its end went where the rest had gone"


async def test_there_stand_as_many_as_slots_and_the_others_follow_in_order() -> None:
    async with identity_bench() as bench, trio.open_nursery() as nursery:
        bench.submit("1 running")
        calls = [bench.submit(f"1 number {number}") for number in range(4)]
        for call in calls:
            nursery.start_soon(bench.identity.uploads.stand_by, call)
            await trio.sleep(0.01)
        for number, call in enumerate(calls):
            assert [each.upload is not None for each in calls[number:]] == [True] + (3 - number) * [False]
            with trio.fail_after(2):
                await call.started()
            await trio.sleep(0.1)
        await until(lambda: bench.free == 1, 2)
        assert texts(bench) == ["1 running", *(f"1 number {number}" for number in range(4))]
        assert bench.identity.uploads.under_way == 0


async def test_one_that_stands_by_is_sent_again_whole_where_its_process_is_gone() -> None:
    """E3: what stood there never executed, and the body is still here."""
    async with identity_bench() as bench, trio.open_nursery() as nursery:
        bench.submit("5 running")
        waiting = bench.submit("1 waiting")
        nursery.start_soon(bench.identity.uploads.stand_by, waiting)
        await until(lambda: waiting.upload is not None, 0.5)
        bench.world.restart()
        assert b"ok" in await body_within(waiting, 10)
        assert texts(bench) == ["5 running", "1 waiting"]
        await until(lambda: bench.free == 1, 2)
        assert bench.identity.uploads.under_way == 0


async def test_a_call_without_a_body_does_not_stand_by() -> None:
    """E3: its head alone would deliver it."""
    async with identity_bench() as bench:
        bench.submit("5")
        request = call_request("1")
        call = bench.identity.submit(replace(request, wire=replace(request.wire, body=b"")), key="k")
        await bench.identity.uploads.stand_by(call)
        assert call.upload is None
        assert not bench.world.times("begun")
        call.abandon()


async def test_one_that_ends_while_it_is_sent_ahead_keeps_no_place() -> None:
    """Also where nothing on the way notices: what the kernel takes at once has no checkpoint in it."""
    async with identity_bench() as bench:
        bench.submit("5")
        waiting = bench.submit("1")
        begun = bench.identity.uploads.begin()
        assert begun is not None

        async def send_head(_wire: WireRequest, _length: int) -> None:
            waiting.abandon()

        async def send(_piece: bytes) -> None:
            pass

        begun.send_head, begun.send = send_head, send  # type: ignore[method-assign,assignment]  # neither waits
        await bench.identity.uploads._send_ahead(waiting, begun)
        assert waiting.upload is None
        assert bench.identity.uploads.under_way == 0


async def test_who_leaves_wants_no_place_any_more() -> None:
    async with identity_bench() as bench, trio.open_nursery() as nursery:
        bench.submit("5")
        calls = [bench.submit(f"1 {number}") for number in range(3)]
        for call in calls:
            nursery.start_soon(bench.identity.uploads.stand_by, call)
            await trio.sleep(0.01)
        assert len(bench.identity.uploads._wanting) == 2
        calls[1].abandon()
        await trio.testing.wait_all_tasks_blocked()
        assert list(bench.identity.uploads._wanting) == [calls[2]]


async def test_a_call_does_not_wait_for_its_own_standing_by() -> None:
    """It gets its credit while it is being sent ahead: it is sent whole, on another connection, and executes once."""
    async with identity_bench(slots=2) as bench:
        bench.submit("1"), bench.submit("5")
        waiting = bench.submit("1 waiting")
        await trio.sleep(0.5)
        bench.world.connect_s = 3.0
        with trio.fail_after(0.6):
            await bench.identity.uploads.stand_by(waiting)
        assert waiting.state is CallState.STARTED
        assert b"ok" in await body_within(waiting, 5)
        assert texts(bench).count("1 waiting") == 1
        assert bench.identity.uploads.under_way == 0
        await until(lambda: bench.free == 2, 6)
        assert bench.world.open_lanes <= 2


async def test_standing_by_can_be_left_at_any_time() -> None:
    """Cancelled at the n-th step, for every n: no place is lost, no connection stays, nothing executes."""
    for step in range(30):
        async with identity_bench() as bench:
            bench.submit("5")
            waiting = bench.submit("1 left")
            with trio.CancelScope() as scope:

                async def leave(scope: trio.CancelScope = scope, step: int = step) -> None:
                    for _ in range(step):
                        await trio.sleep(0.0005)
                    scope.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(leave)
                    await bench.identity.uploads.stand_by(waiting)
                    await waiting.started()
            waiting.abandon()
            assert bench.identity.uploads.under_way == 0
            await trio.sleep(5 + LANE_IDLE_S + 0.1)
            assert bench.free == 1
            assert texts(bench) == ["5"]
            assert bench.world.open_connections == 0


async def test_what_cannot_stand_by_waits_as_ever() -> None:
    """No place, nothing to send ahead, nobody there: the call is sent whole with its credit."""
    async with identity_bench() as bench:
        running = bench.submit("1")
        await bench.identity.uploads.stand_by(running)
        assert running.upload is None
        await body_within(running, 2)
        bench.submit("2")
        await trio.sleep(0.1)
        waiting = bench.submit("1 waiting")
        bench.world.connects_hang = True
        with trio.move_on_after(0.5):
            await bench.identity.uploads.stand_by(waiting)
        assert waiting.upload is None
        assert bench.identity.uploads.under_way == 0
        bench.world.connects_hang = False
        assert b"ok" in await body_within(waiting, 5)


async def test_one_that_waits_for_its_credit_can_be_abandoned_without_a_trace() -> None:
    """A6, E3: its connection is closed, so the backend can forget it."""
    async with identity_bench() as bench:
        begun = await upload(bench, "1 left")
        bench.submit("5 running")
        call = submit(bench, begun)
        await until(lambda: bench.world.open_lanes == 2, 0.5)
        call.abandon()
        assert bench.world.open_lanes == 1
        await until(lambda: bench.free == 1, 6)
        await trio.sleep(10)
        assert texts(bench) == ["5 running"]
        assert bench.identity.uploads.under_way == 0


async def test_one_that_was_never_submitted_leaves_no_connection() -> None:
    async with identity_bench() as bench:
        begun = await upload(bench)
        assert bench.world.open_lanes == 1
        begun.over()
        assert bench.world.open_lanes == 0
        assert not bench.world.executions


async def test_a_refused_one_is_over_and_one_that_gave_way_too() -> None:
    """A6: the queue's rules are the same for both."""
    async with identity_bench(max_waiting=1) as bench:
        begun = await upload(bench)
        bench.submit("5"), bench.submit("5")
        with pytest.raises(CreditQueueFullError):
            submit(bench, begun)
        await until(lambda: bench.world.open_lanes == 1, 0.5)  # the running call's
        await until(lambda: bench.free == 1, 11)
        waits = await upload(bench)
        bench.submit("5", key="other")
        call = submit(bench, waits, key="greedy")
        bench.identity.end_waiting(DrainingError)
        with pytest.raises(DrainingError):
            await call.started()
        assert bench.identity.uploads.under_way == 0


async def test_no_upload_begins_where_no_call_would_start() -> None:
    async with identity_bench() as bench:
        async with bench.identity.handing_out_nothing(0):
            assert bench.identity.uploads.begin() is None
        bench.identity.drain()
        assert bench.identity.uploads.begin() is None
    assert bench.identity.uploads.begin() is None, "the identity has ended"


@pytest.mark.parametrize("boots", [True, False])
async def test_its_process_is_replaced_before_it_has_a_credit(*, boots: bool) -> None:
    """E6: the end of the request goes to nobody, the caller hears it at once, and no credit is lost."""
    async with identity_bench(boots=boots) as bench:
        begun = await upload(bench, "1 lost")
        bench.world.restart()
        call = submit(bench, begun)
        with pytest.raises(BackendUnavailableError):
            await body_within(call, 1)
        await until(lambda: bench.free == 1, 1)
        assert not bench.world.executions
        await body_within(bench.submit("1 next"), 2)


async def test_an_orphan_that_keeps_the_connection_open_gets_no_end() -> None:
    """E6: a process that was replaced may hold its connections, and would never answer on them."""
    async with identity_bench() as bench:
        begun = await upload(bench, "1 lost")
        bench.world.replace()
        await body_within(bench.submit("1 to the new one"), 2)
        call = submit(bench, begun)
        with pytest.raises(BackendUnavailableError):
            await body_within(call, 1)
        assert texts(bench) == ["1 to the new one"]
        await until(lambda: bench.free == 1, 1)


async def test_when_nobody_answers_there_uploads_end_with_the_others() -> None:
    async with identity_bench() as bench:
        begun = await upload(bench)
        bench.submit("5")
        call = submit(bench, begun)
        bench.identity.backend_away(lambda: BackendUnavailableError("away"))
        with pytest.raises(BackendUnavailableError, match="away"):
            await call.started()
        assert bench.identity.uploads.under_way == 0


async def test_one_in_the_middle_of_its_body_ends_when_nobody_answers_there() -> None:
    async with identity_bench() as bench:
        begun = bench.identity.uploads.begin()
        assert begun is not None
        await begun.send_head(call_request().wire, 100)
        await begun.send(b"some")
        bench.identity.backend_away(lambda: BackendUnavailableError("away"))
        with pytest.raises(BackendUnavailableError):
            await begun.send(b"more")
        begun.over()
        assert bench.identity.uploads.under_way == 0
        assert bench.world.open_lanes == 0


async def test_one_that_has_its_credit_is_left_alone_like_any_running_call() -> None:
    """E1: what executes is answered, whatever becomes of those without a credit."""
    async with identity_bench() as bench:
        call = submit(bench, await upload(bench, "5"))
        await until(lambda: bool(bench.world.executing), 1)
        bench.identity.backend_away(lambda: BackendUnavailableError("away"))
        assert b"ok" in await body_within(call, 6)


async def test_traced_calls_do_not_go_ahead() -> None:
    """The head names the span of the call (W3C trace context), which begins with its credit."""
    async with identity_bench() as bench:
        bench.identity._tracer = Untraced()
        assert bench.identity.uploads.begin() is None


class Untraced:
    """A tracer that is never asked."""

    def call(self, identity: str) -> CallSpans:
        raise NotImplementedError

    def prompt(self, session_id: str, prompt_id: str) -> PromptSpan:
        raise NotImplementedError


async def test_what_the_model_is_is_asked_again_before_the_end_is_sent() -> None:
    """E12: a load that was seen meanwhile may count otherwise."""
    async with identity_bench() as bench:
        begun = await upload(bench, "1")
        bench.identity.expect_another_load()
        asked = len(bench.world.times("facts"))
        await body_within(submit(bench, begun), 2)
        assert len(bench.world.times("facts")) == asked + 1


async def test_its_connection_serves_the_next_call() -> None:
    async with identity_bench() as bench:
        await body_within(submit(bench, await upload(bench)), 2)
        await body_within(bench.submit("1"), 2)
        assert len(bench.world.times("connect")) == 1


async def test_one_that_is_connecting_while_a_restart_is_noticed_goes_on() -> None:
    """E6: what is being opened just now leads to nobody who was replaced."""
    async with identity_bench(slots=2) as bench:
        await body_within(bench.submit("1"), 2)
        bench.world.restart()
        first, second = bench.identity.uploads.begin(), bench.identity.uploads.begin()
        assert first is not None
        assert second is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_ahead, first, call_request("1 first"))
            await trio.sleep(bench.world.connect_s + bench.world.read_s / 2)
            nursery.start_soon(send_ahead, second, call_request("1 second"))
        for each in (first, second):
            assert b"ok" in await body_within(submit(bench, each), 2)


async def test_one_whose_head_has_not_come_keeps_no_connection_open() -> None:
    """D2: an open connection that carries nothing delays the backend's own shutdown."""
    async with identity_bench() as bench:
        await body_within(bench.submit("1"), 2)
        begun = bench.identity.uploads.begin()
        assert begun is not None
        await until(lambda: bench.world.open_lanes == 0, 5)
        await send_ahead(begun, call_request("1"))
        assert b"ok" in await body_within(submit(bench, begun), 2)
        assert bench.world.open_lanes == 1


async def test_a_prompt_that_waits_for_its_slot_stands_by() -> None:
    async with service() as governed:
        for text in ("5 first", "1 second"):
            session = governed.session()
            session.let_start(session.admit(text).prompt_id)
            await trio.sleep(0.5)
        assert len(governed.world.times("begun")) == 1
        await until(lambda: [each.text for each in governed.world.executions] == ["5 first", "1 second"], 6)
        assert governed.world.high_water == 1


async def test_nothing_goes_ahead_where_nobody_sees_that_the_peer_has_left() -> None:
    """Over TLS a proxy that gave the request up would be sent the last byte, and the claim be held."""
    async with identity_bench() as bench:
        bench.world.tells_departures = False
        assert bench.identity.uploads.begin() is None


async def test_one_that_stands_is_sent_whole_where_the_last_look_shows_another_process() -> None:
    """E6: the look before the delivery closes what stood at the old process; the body is here."""
    async with identity_bench() as bench, trio.open_nursery() as nursery:
        bench.submit("2 running")
        waiting = bench.submit("1 waiting")
        nursery.start_soon(bench.identity.uploads.stand_by, waiting)
        await until(lambda: waiting.upload is not None, 0.5)
        bench.world.replace()
        bench.identity.expect_another_load()
        assert b"ok" in await body_within(waiting, 10)
        assert texts(bench) == ["2 running", "1 waiting"]
        await until(lambda: bench.free == 1, 2)
        assert bench.identity.uploads.under_way == 0


async def test_a_look_that_was_given_up_is_none_for_those_who_joined_it() -> None:
    """E4, E6: whoever looked was a caller that left; who joined looks again before anything is delivered."""
    for _ in range(20):  # which of those who wait goes on first is the scheduler's choice
        looker = Looker()
        look = FirstLook(looker, looker)  # type: ignore[arg-type]  # all of a ledger that is needed
        scopes = [trio.CancelScope() for _ in range(3)]
        done: list[int] = []

        async def confirm(number: int, look: FirstLook = look, done: list[int] = done) -> None:
            await look.confirm(None)
            done.append(number)

        async def confirm_in(scope: trio.CancelScope, number: int) -> None:
            with scope:
                await confirm(number)

        async with trio.open_nursery() as nursery:
            for number, scope in enumerate(scopes):
                nursery.start_soon(confirm_in, scope, number)
                await trio.testing.wait_all_tasks_blocked()
            for scope in scopes[:2]:
                scope.cancel()
                await trio.testing.wait_all_tasks_blocked()
        assert done == [2]
        assert looker.finished == 1, "a look that told nothing was taken for one"


class Looker:
    """A model that is known, and a ledger that wants one reading."""

    boot = None
    facts = plain_facts()

    def __init__(self) -> None:
        self.finished = 0

    def wants_baseline(self, _now_s: float) -> bool:
        return not self.finished

    async def know_facts(self) -> ModelFacts:
        return self.facts

    async def take_reading(self) -> None:
        await trio.sleep(1)
        self.finished += 1


async def test_places_that_appear_are_taken_by_those_who_wait() -> None:
    """More slots, or credits that are handed out again."""
    async with identity_bench() as bench, trio.open_nursery() as nursery:
        bench.submit("5")
        await trio.sleep(0.1)
        calls = [bench.submit(f"1 {number}") for number in range(2)]
        async with bench.identity.handing_out_nothing(0):
            for call in calls:
                nursery.start_soon(bench.identity.uploads.stand_by, call)
            await trio.sleep(0.1)
            assert bench.identity.uploads.under_way == 0
        await trio.sleep(0.1)
        assert sorted(call.upload is not None for call in calls) == [False, True]


async def test_a_lane_that_comes_back_after_the_end_is_closed() -> None:
    """D2: nobody closes idle connections any more."""
    async with identity_bench(boots=False) as bench, trio.open_nursery() as nursery:
        bench.world.read_s = 5.0
        begun = bench.identity.uploads.begin()
        assert begun is not None

        async def look(upload: Upload) -> None:
            with trio.move_on_after(1):
                await upload.send_head(call_request().wire, 10)
            upload.over()

        nursery.start_soon(look, begun)
        await until(lambda: bench.world.open_lanes == 1, 0.5)
        bench.stop.cancel()
        await trio.sleep(2)
        assert bench.world.open_lanes == 0


async def test_an_upload_keeps_its_identity_busy() -> None:
    """A model that is taken out of the configuration is seen off once nobody needs it any more."""
    async with identity_bench() as bench:
        busy = [bench.identity.is_busy]
        begun = bench.identity.uploads.begin()
        assert begun is not None
        busy.append(bench.identity.is_busy)
        begun.over()
        assert [*busy, bench.identity.is_busy] == [False, True, False]
