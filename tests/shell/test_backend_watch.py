"""A backend as the governor watches it: down at the start, up, away, back as another process (A8, E6, E12)."""

from __future__ import annotations

import pytest
import trio
from structlog.testing import capture_logs

from governor.core.claims import ClaimState
from tests.shell.harness import Service, ask, service, until
from tests.shell.world import MODEL, Break, Fault, Plan, decoupled_facts

CHECK_S = 1.0
"""The health interval."""


def problem(governed: Service) -> str | None:
    """Why the only model cannot be used."""
    return governed.governor.problems().get(MODEL)


async def test_readiness_follows_the_backend_and_says_why() -> None:
    """A8: within one health interval, in words, logged once per change."""
    async with service() as governed:
        world, health = governed.world, governed.health
        with capture_logs() as logs:
            assert problem(governed) is None
            world.kill()
            await trio.sleep(10 * CHECK_S)
            assert problem(governed) == "http://127.0.0.1:8000 refuses connections"
            world.start()
            health.not_ready = True
            await trio.sleep(CHECK_S + 0.1)
            assert problem(governed) == "http://127.0.0.1:8000 answers, but says it is not ready"
            health.not_ready = False
            health.models_not_ready.add(MODEL)
            await trio.sleep(CHECK_S + 0.1)
            assert problem(governed) == "not ready"
            health.models_not_ready.clear()
            await trio.sleep(CHECK_S + 0.1)
            assert problem(governed) is None
        events = [line["event"] for line in logs if line["event"].startswith(("backend", "model"))]
        assert events == ["backend_unusable", "backend_unusable", "backend_usable", "model_unusable", "model_usable"]


async def test_before_the_first_check_nothing_is_ready() -> None:
    """A8: ready means that somebody looked."""
    async with service() as governed:
        assert governed.health.checks == 1
    governor = governed.governor
    fresh = type(governor)(governor.config, check=governed.health, make_port=governor.fleet._make_port)
    assert fresh.problems() == {MODEL: "not checked yet"}


async def test_prompts_fail_clearly_while_the_backend_is_down() -> None:
    """`when_unavailable = "fail"`: at once, with a stable code; the session lives on."""
    async with service() as governed:
        governed.world.kill()
        session = governed.session()
        heard = governed.listen(session)
        failed = ask(session, "1")
        await trio.sleep(0.5)
        assert heard.outcome(failed) == "backend_unavailable"
        governed.world.start()
        works = ask(session, "1")
        await trio.sleep(3)
        assert heard.outcome(works) == "end_turn"


@pytest.mark.parametrize(
    ("settings", "outcome"), [({}, "backend_unavailable"), ({"when_unavailable": "wait"}, "end_turn")]
)
async def test_prompts_that_wait_for_a_credit_held_by_a_call_that_the_backend_took_with_it(
    settings: dict[str, str], outcome: str
) -> None:
    """They fail or wait as those do that find a free credit, although it is the credit they wait for."""
    async with service(backend=settings) as governed:
        ask(governed.session(), "100 cut off")
        await trio.sleep(0.1)
        session = governed.session()
        heard = governed.listen(session)
        waits = ask(session, "1")
        await trio.sleep(0.5)
        governed.world.kill()
        await trio.sleep(CHECK_S + 0.1)
        later = governed.session()
        later_heard = governed.listen(later)
        comes = ask(later, "1")
        await trio.sleep(CHECK_S + 0.1)
        assert governed.free == 0
        governed.world.start()
        await trio.sleep(5)
        assert heard.outcome(waits) == outcome
        assert later_heard.outcome(comes) == outcome
        assert governed.world.high_water == 1
        assert len(governed.world.executions) == (3 if outcome == "end_turn" else 1)


async def test_a_server_that_answers_without_being_ready_fails_nobody_who_waits() -> None:
    """A model that is being loaded makes the whole server not ready, while the others compute."""
    async with service() as governed:
        ask(governed.session(), "3")
        await trio.sleep(0.1)
        session = governed.session()
        heard = governed.listen(session)
        waits = ask(session, "1")
        governed.health.not_ready = True
        await trio.sleep(10)
        assert heard.outcome(waits) == "end_turn"


@pytest.mark.parametrize("kind", ["generate", "infer"])
async def test_prompts_wait_for_a_backend_where_the_operator_says_so(kind: str) -> None:
    """`when_unavailable = "wait"`: sent once it is back, also where the model's facts are needed first; once."""
    async with service(backend={"when_unavailable": "wait"}, model={"kind": kind}) as governed:
        world = governed.world
        body = b'{"outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["said"]}]}'
        world.plans["1"] = Plan(seconds=1, body=body if kind == "infer" else None)
        world.kill()
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "1")
        await trio.sleep(5)
        assert heard.terminals(prompt) == []
        world.start()
        await trio.sleep(CHECK_S + 1.5)
        assert heard.outcome(prompt) == "end_turn"
        assert len(world.executions) == 1
        assert len([each for each in heard.types() if each == "user_message_chunk"]) == 1


async def test_waiting_for_a_backend_has_an_end() -> None:
    """`unavailable_wait_ms`: from when it was first found away, then the error that a caller would have got at once."""
    async with service(backend={"when_unavailable": "wait", "unavailable_wait_ms": 7_000}) as governed:
        governed.world.kill()
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "1")
        await trio.sleep(6.9)
        assert heard.terminals(prompt) == []
        await trio.sleep(0.2)
        assert heard.outcome(prompt) == "backend_unavailable"


async def test_a_backend_that_is_healthy_and_takes_no_call_is_tried_once_per_check() -> None:
    """Waiting must not become a busy loop when the health check sees nothing wrong."""
    async with service(backend={"when_unavailable": "wait", "unavailable_wait_ms": 10_000}) as governed:
        governed.world.plans["1"] = Plan(breaks=Break.BEFORE_DELIVERY)
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "1")
        await trio.sleep(11)
        assert heard.outcome(prompt) == "backend_unavailable"
        assert governed.identity.statistics().totals.calls <= 12


async def test_a_delivered_call_is_never_sent_again() -> None:
    """E3: only what never left is safe to send again."""
    async with service(backend={"when_unavailable": "wait"}) as governed:
        governed.world.plans["1"] = Plan(seconds=1, breaks=Break.AFTER_DELIVERY)
        session = governed.session()
        heard = governed.listen(session)
        prompt = ask(session, "1")
        await trio.sleep(10)
        assert heard.outcome(prompt) == "backend_connection_lost"
        assert len(governed.world.executions) == 1


async def quarantine(governed: Service) -> None:
    """One broken call of a decoupled model on its only slot."""
    governed.world.reload(decoupled_facts())
    governed.world.plans["broken"] = Plan(seconds=1_000, breaks=Break.AFTER_DELIVERY, counted_after_s=0.01)
    ask(governed.session(), "broken")
    await until(lambda: governed.identity.statistics().ledger.states[ClaimState.QUARANTINED] == 1, 2)


async def test_a_quarantined_claim_is_freed_when_the_backend_comes_back_as_another_process() -> None:
    """E6, E12: nobody polls for it, so the health check looks; a prompt that waited for the slot runs."""
    async with service(backend={"when_unavailable": "wait"}) as governed:
        await quarantine(governed)
        session = governed.session()
        heard = governed.listen(session)
        waits = ask(session, "1")
        await trio.sleep(30)
        assert heard.terminals(waits) == []
        governed.world.kill()
        await trio.sleep(5)
        assert governed.free == 0
        governed.world.start()
        await trio.sleep(CHECK_S + 1.2)
        assert heard.outcome(waits) == "end_turn"
        assert governed.free == 1


async def test_idle_connections_are_closed_when_nobody_answers_any_more() -> None:
    """D2: the next call must not be sent on one that something else keeps open for a dead server."""
    async with service() as governed:
        ask(governed.session(), "0.1")
        await until(lambda: governed.world.open_lanes == 1 and governed.free == 1, 2)
        governed.world.kill()
        await until(lambda: governed.world.open_lanes == 0, CHECK_S + 0.1)


async def test_a_restart_between_two_health_checks_frees_it_too() -> None:
    """E6: the server was never seen to be away, and no call can come to notice: the only slot is held."""
    async with service() as governed:
        await quarantine(governed)
        governed.world.restart()
        await until(lambda: governed.free == 1, CHECK_S + 0.1)


async def test_a_model_that_is_loaded_late_after_a_restart_does_not_strand_the_claim() -> None:
    """E9: the first look after the outage may find the server up and its model not there yet."""
    async with service() as governed:
        await quarantine(governed)
        governed.world.kill()
        await trio.sleep(3)
        governed.world.start()
        governed.world.fault = Fault.UNLOADED
        await trio.sleep(5)
        assert governed.free == 0
        governed.world.fault = None
        await until(lambda: governed.free == 1, CHECK_S + 0.1)


async def test_looking_again_costs_one_reading_per_check_and_only_while_something_is_quarantined() -> None:
    """E9: no second poller."""
    async with service() as governed:
        await trio.sleep(20)
        assert len(governed.world.readings) == 0
        await quarantine(governed)
        before = len(governed.world.readings)
        await trio.sleep(20)
        assert 18 <= len(governed.world.readings) - before <= 22
        assert not governed.world.ports[0].connected
