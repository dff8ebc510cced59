"""What is wrong with an identity, in one sentence that an operator understands (A8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from governor.diagnosis import HUNG_S, STUCK_S, Diagnosis, diagnose
from governor.errors import ConnectionLostError
from tests.shell.harness import Service, ask, body_within, call_request, service, until
from tests.shell.world import Break, Fault, Plan, decoupled_facts

if TYPE_CHECKING:
    from collections.abc import Collection

    from governor.backend import BackendStatus
    from governor.config import BackendConfig
    from governor.triton.metadata import ServerFacts


def look(up: Service) -> Diagnosis:
    """The diagnosis of the only identity."""
    return diagnose(up.identity, up.governor.backends["b"])


async def break_one(up: Service, seconds: float) -> None:
    up.world.plans["broken"] = Plan(seconds=seconds, breaks=Break.AFTER_DELIVERY)
    with pytest.raises(ConnectionLostError):
        await body_within(up.identity.submit(call_request("broken"), key="k"), 100)


async def test_a_well_identity_has_nothing_wrong() -> None:
    async with service() as up:
        ask(up.session(), "1")
        await trio.sleep(0.5)
        assert look(up) == Diagnosis(None, ())


async def test_a_dead_backend_shows_with_its_reason() -> None:
    async with service() as up:
        up.world.kill()
        await trio.sleep(2)
        assert look(up).problem == "http://127.0.0.1:8000 refuses connections"
        up.world.start()
        await trio.sleep(2)
        assert look(up).problem is None


async def test_slots_that_are_all_broken_are_a_problem_once_they_stay_so() -> None:
    """A break that is proven within moments turns no probe red."""
    async with service() as up:
        await break_one(up, 1000)
        await trio.sleep(STUCK_S - 1)
        assert look(up).problem is None
        await trio.sleep(2)
        problem = look(up).problem
        assert problem is not None
        assert "the only slot" in problem
        assert problem.endswith("for up to 11 s; no reading has shown their end")
        up.world.fault = Fault.UNLOADED
        await trio.sleep(2)
        problem = look(up).problem
        assert problem is not None
        assert "readings fail: " in problem
        assert "not available" in problem
        up.world.fault = None
        up.world.restart()
        await trio.sleep(2)
        assert look(up) == Diagnosis(None, ())


async def test_one_free_slot_is_enough_and_failing_readings_are_a_remark() -> None:
    async with service(model={"slots": 2}) as up:
        await break_one(up, 1000)
        up.world.fault = Fault.UNLOADED
        await trio.sleep(20)
        found = look(up)
        assert found.problem is None
        assert len(found.remarks) == 1
        assert found.remarks[0].startswith("the last reading failed: ")


async def test_slots_that_nothing_can_prove_are_a_problem_at_once() -> None:
    async with service() as up:
        up.world.reload(decoupled_facts())
        await break_one(up, 1000)
        await trio.sleep(2)
        problem = look(up).problem
        assert problem is not None
        assert "nothing can prove ended" in problem


async def test_a_poller_that_hangs_shows() -> None:
    """Not one that fails: that one says so itself."""
    async with service(model={"slots": 2}) as up:
        await body_within(up.identity.submit(call_request("1"), key="k"), 10)
        up.world.read_s = 1e9
        await break_one(up, 1000)
        await trio.sleep(HUNG_S - 2)
        assert look(up) == Diagnosis(None, ())
        await trio.sleep(5)
        (remark,) = look(up).remarks
        assert "the poller hangs" in remark


async def test_a_poller_that_fails_and_fails_does_not_hang() -> None:
    async with service(model={"slots": 2}) as up:
        await body_within(up.identity.submit(call_request("1"), key="k"), 10)
        up.world.fault = Fault.HANGS
        await break_one(up, 1000)
        await trio.sleep(3 * HUNG_S)
        assert not any("hangs" in remark for remark in look(up).remarks)


async def test_a_health_check_that_hangs_shows() -> None:
    async with service() as up:
        backend = up.governor.backends["b"]

        async def hang(config: BackendConfig, models: Collection[str], known: ServerFacts | None) -> BackendStatus:
            await trio.sleep_forever()
            raise AssertionError

        await trio.sleep(5)
        backend._check = hang
        await trio.sleep(HUNG_S)
        assert look(up).remarks == ()
        await trio.sleep(10)
        (remark,) = look(up).remarks
        assert "the watcher hangs" in remark


async def test_a_foreign_caller_is_a_remark() -> None:
    async with service(model={"slots": 2}) as up:
        await body_within(up.identity.submit(call_request("1"), key="k"), 10)
        await trio.sleep(2)
        await break_one(up, 1000)
        for _ in range(5):
            up.world.foreign_call()
        await until(lambda: bool(look(up).remarks), 5)
        assert look(up).remarks == ("somebody else calls the model: nothing is proven by its counter until that ends",)
