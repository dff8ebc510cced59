"""Another configuration while calls run: nothing is lost, and never more in flight than is allowed (A7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from governor.core.claims import ClaimState
from governor.errors import ConnectionLostError, DrainingError, UnknownModelError
from governor.turn import run_turn
from tests.shell.fleet import Fleet, config_of, fleet
from tests.shell.harness import Listener, ask, body_within, call_request, until
from tests.shell.world import Break, Plan, decoupled_facts

if TYPE_CHECKING:
    from governor.session import Session


def listen(up: Fleet, session: Session) -> Listener:
    """Hears everything of a session."""
    listener = Listener(session)
    up.nursery.start_soon(listener.run)
    return listener


async def break_one(up: Fleet, model: str, seconds: float) -> None:
    """A call whose connection breaks while it executes."""
    up.world(model).plans["broken"] = Plan(seconds=seconds, breaks=Break.AFTER_DELIVERY)
    with pytest.raises(ConnectionLostError):
        await body_within(up.identity(model).submit(call_request("broken"), key="k"), 100)


async def test_more_slots_go_to_who_waits_at_once() -> None:
    async with fleet(config_of({"name": "m"})) as up:
        calls = [up.identity("m").submit(call_request("10"), key="k") for _ in range(3)]
        await trio.sleep(1)
        assert len(up.world("m").executing) == 1
        up.governor.reconfigure(config_of({"name": "m", "slots": 3}))
        await trio.sleep(1)
        assert len(up.world("m").executing) == 3
        for call in calls:
            await body_within(call, 20)
        assert up.free("m") == 3


async def test_slots_taken_away_come_back_as_their_holders_end() -> None:
    """E1: nobody is cut off, and nothing starts before fewer are held than there are slots."""
    async with fleet(config_of({"name": "m", "slots": 3})) as up:
        for seconds in (1, 2, 3, 1):
            up.identity("m").submit(call_request(str(seconds)), key="k")
        await trio.sleep(0.5)
        assert len(up.world("m").executing) == 3
        up.governor.reconfigure(config_of({"name": "m", "slots": 1}))
        assert up.free("m") == -2
        await trio.sleep(2)
        assert len(up.world("m").executing) == 1
        assert up.world("m").times("start") == up.world("m").times("start")[:3], "the fourth waits for the third"
        await trio.sleep(2)
        assert len(up.world("m").times("start")) == 4
        await trio.sleep(2)
        assert up.free("m") == 1
        assert all(execution.ended_s is not None for execution in up.world("m").executions)


async def test_halved_and_doubled_under_load_no_prompt_is_lost_and_never_too_many_run() -> None:
    """The world's own record is the judge: at every start, no more run than the slots there were at that moment."""
    slots = {0.0: 4}
    async with fleet(config_of({"name": "m", "slots": 4})) as up:
        sessions = [up.governor.create_session("m") for _ in range(20)]
        listeners = [listen(up, session) for session in sessions]
        prompts = [
            (listener, ask(listener.session, f"0.{number + 1}")) for listener in listeners for number in range(9)
        ]
        for count in (2, 1, 4, 2, 8, 1, 4):
            await trio.sleep(1.7)
            up.governor.reconfigure(config_of({"name": "m", "slots": count}))
            slots[trio.current_time()] = count
        await until(lambda: not any(session.pending_count for session in sessions), 500)
        await trio.sleep(1)
        for listener, prompt in prompts:
            assert listener.outcome(prompt) == "end_turn"
        assert [held for held in _running_at_each_start(up, slots) if held[0] > held[1]] == []
        assert max(held for held, _ in _running_at_each_start(up, slots)) == 8, "the slots were used"
        assert up.free("m") == 4


def _running_at_each_start(up: Fleet, slots: dict[float, int]) -> list[tuple[int, int]]:
    """What ran just after each start, and how many slots there were."""
    executions = up.world("m").executions
    found = []
    for execution in executions:
        at = execution.started_s
        assert at is not None
        running = sum(
            1
            for other in executions
            if other.started_s is not None and other.started_s <= at and (other.ended_s or 1e9) > at
        )
        found.append((running, [count for since, count in slots.items() if since <= at][-1]))
    return found


async def test_an_added_model_works_at_once_and_on_a_new_backend_too() -> None:
    async with fleet(config_of({"name": "m"})) as up:
        up.governor.reconfigure(
            config_of({"name": "m"}, {"name": "n"}, {"name": "o", "backend": "c", "slots": 2}, backends=("b", "c"))
        )
        for model in ("n", "o"):
            session = up.governor.create_session(model)
            listener = listen(up, session)
            prompt = ask(session, "1")
            await trio.sleep(2)
            assert listener.outcome(prompt) == "end_turn"
        assert set(up.checked) == {"b", "c"}, "the new backend is watched"


async def test_a_removed_model_finishes_what_was_accepted_and_takes_nothing_new() -> None:
    """Running and queued prompts end as if nothing were; calls that wait get their credit; then the identity ends."""
    async with fleet(config_of({"name": "m"}, {"name": "n"})) as up:
        session = up.governor.create_session("n")
        listener = listen(up, session)
        prompts = [ask(session, "2") for _ in range(3)]
        await trio.sleep(0.5)
        waiting = up.identity("n").submit(call_request("1"), key="k")
        identity = up.identity("n")
        up.governor.reconfigure(config_of({"name": "m"}))
        for attempt in (
            lambda: session.admit("1"),
            lambda: up.governor.create_session("n"),
            lambda: up.governor.model("n"),
        ):
            with pytest.raises(UnknownModelError):
                attempt()
        assert not up.governor.fleet.is_served(identity)
        await body_within(waiting, 20)
        await until(lambda: session.pending_count == 0, 20)
        assert [listener.outcome(prompt) for prompt in prompts] == ["end_turn"] * 3
        await trio.sleep(1)
        assert list(map(str, up.governor.identities)) == ["b/m"]
        assert up.gone == ["b/n at http://127.0.0.1:8098"]
        with pytest.raises(DrainingError):
            identity.submit(call_request("1"), key="k")
        session.switch_model(up.governor.model("m"))
        prompt = ask(session, "1")
        await trio.sleep(2)
        assert listener.outcome(prompt) == "end_turn", "the session itself lives, and can go to another model"


async def test_a_removed_model_keeps_its_quarantined_claims_and_gets_them_back() -> None:
    """Never forgotten: otherwise leaving and coming back would put two calls on one slot."""
    both, without = config_of({"name": "m"}, {"name": "n"}), config_of({"name": "m"})
    async with fleet(both) as up:
        up.world("n").reload(decoupled_facts())
        await break_one(up, "n", 1000)
        await trio.sleep(2)
        identity = up.identity("n")
        up.governor.reconfigure(without)
        await trio.sleep(100)
        assert up.identity("n") is identity
        assert identity.statistics().ledger.states[ClaimState.QUARANTINED] == 1
        up.governor.reconfigure(both)
        assert up.identity("n") is identity
        call = identity.submit(call_request("1"), key="k")
        await trio.sleep(50)
        assert up.world("n").high_water == 1
        assert up.free("n") == 0
        up.world("n").restart()
        await body_within(call, 20)
        up.governor.reconfigure(without)
        await trio.sleep(1)
        assert up.gone == ["b/n at http://127.0.0.1:8098"]


async def test_a_backend_without_models_is_watched_no_more() -> None:
    two = config_of({"name": "m"}, {"name": "o", "backend": "c"}, backends=("b", "c"))
    async with fleet(two) as up:
        await trio.sleep(2)
        up.governor.reconfigure(config_of({"name": "m"}))
        await trio.sleep(2)
        assert list(up.governor.backends) == ["b"]
        last = up.checked["c"]
        await trio.sleep(10)
        assert up.checked["c"] == last
        assert up.checked["b"] > last + 5
        up.governor.reconfigure(two)
        await trio.sleep(2)
        assert up.checked["c"] > last + 5
        listener = listen(up, session := up.governor.create_session("o"))
        prompt = ask(session, "1")
        await trio.sleep(2)
        assert listener.outcome(prompt) == "end_turn"


async def test_what_does_not_change_stays_the_same_object_and_the_rest_follows() -> None:
    """Sessions that share a model go on sharing; a changed model is what their next turn goes to."""
    async with fleet(config_of({"name": "m"}, {"name": "n"})) as up:
        before = dict(up.governor.models)
        session = up.governor.create_session("m")
        up.governor.reconfigure(config_of({"name": "m", "timeout_ms": 500}, {"name": "n"}))
        assert up.governor.models["n"] is before["n"]
        assert session.served is up.governor.models["m"] is not before["m"]
        listener = listen(up, session)
        prompt = ask(session, "5")
        await trio.sleep(1)
        assert listener.outcome(prompt) == "backend_timeout"


async def test_limits_hold_for_sessions_that_are_there_already() -> None:
    async with fleet(config_of({"name": "m"})) as up:
        session = up.governor.create_session()
        for _ in range(3):
            ask(session, "1")
        up.governor.reconfigure(config_of({"name": "m"}, limits={"max_pending_prompts_per_session": 2}))
        with pytest.raises(Exception, match="3/2 pending"):
            session.admit("1")
        await trio.sleep(2.5)
        ask(session, "1")
        up.governor.reconfigure(config_of({"name": "m"}, limits={"max_sessions": 1, "max_waiting_per_identity": 1}))
        with pytest.raises(Exception, match="which is the limit"):
            up.governor.create_session()
        await trio.sleep(20)
        calls: list[Any] = [up.identity("m").submit(call_request("1"), key="k") for _ in range(2)]
        with pytest.raises(Exception, match="already wait"):
            calls.append(up.identity("m").submit(call_request("1"), key="k"))


async def test_two_names_of_one_identity_share_its_slots_whichever_leaves() -> None:
    two = config_of({"name": "m", "slots": 2}, {"name": "also", "triton_model": "m", "slots": 2})
    async with fleet(two) as up:
        identity = up.identity("m")
        up.governor.reconfigure(config_of({"name": "also", "triton_model": "m", "slots": 1}))
        await trio.sleep(2)
        assert up.identity("m") is identity
        assert up.free("m") == 1
        assert up.gone == []


async def test_idle_lanes_of_an_identity_that_ends_are_closed() -> None:
    """T2: an idle open connection would delay the backend's own shutdown."""
    async with fleet(config_of({"name": "m"}, {"name": "n", "lane_idle_ms": 600_000})) as up:
        await body_within(up.identity("n").submit(call_request("1"), key="k"), 10)
        assert up.world("n").open_lanes == 1
        up.governor.reconfigure(config_of({"name": "m"}))
        await trio.sleep(1)
        assert up.world("n").open_lanes == 0


async def test_a_governor_that_stops_takes_no_configuration() -> None:
    async with fleet(config_of({"name": "m"})) as up:
        up.governor.drain()
        with pytest.raises(DrainingError):
            up.governor.reconfigure(config_of({"name": "m", "slots": 2}))


async def test_a_turn_in_mid_wait_for_its_backend_survives_the_removal() -> None:
    """S7: whatever a reload does, an accepted prompt gets its one terminal event."""
    async with fleet(config_of({"name": "m"}, {"name": "n"})) as up:
        served = up.governor.models["n"]
        said: list[str] = []
        up.governor.reconfigure(config_of({"name": "m"}))
        await trio.sleep(1)
        with pytest.raises(DrainingError):
            await run_turn(served, "1", key="k", request_id="r", max_answer_bytes=100, emit=said.append)
        assert not said
