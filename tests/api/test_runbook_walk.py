"""The runbook's walk: what an operator is told when prompts hang after a reload, and how it is cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
import trio

from tests.api.harness import Service, service
from tests.api.test_metrics import HERE, value
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from trio.testing import MockClock

OPERATOR = {"Authorization": "Bearer the-token-of-operators"}


async def hang(up: Service) -> tuple[str, str]:
    """A connection breaks, and the model is loaded anew. Returns the session and its next prompt, which hangs."""
    session = await up.new_session()
    await up.prompt(session, "0")
    await trio.sleep(3)
    up.world.next_plans.append(Plan(seconds=90, breaks=Break.AFTER_DELIVERY, breaks_after_s=5))
    await up.prompt(session, "90")
    await trio.sleep(8)
    up.world.reload()
    await trio.sleep(4)
    return session, str((await up.prompt(session, "0")).json["promptId"])


def events(logs: list[Any], *names: str) -> list[str]:
    return [line["event"] for line in logs if line["event"] in names]


async def test_an_operator_finds_out_clears_it_and_sees_that_it_worked(autojump_clock: MockClock) -> None:
    with structlog.testing.capture_logs() as logs:
        async with service(tokens={"admin": "the-token-of-operators"}) as up:
            _, waiting = await hang(up)
            # What is it?
            ready = await up.ask("GET", "/readyz")
            assert ready.status == 503
            [problem] = ready.json["problems"]
            assert problem.startswith("b/m: the only slot is held by a call that nothing can prove ended")
            assert await value(up, "vig_model_usable", name="chat") == 1
            assert await value(up, "vig_quarantined_slots", **HERE) == 1
            assert await value(up, "vig_reloads_total", **HERE) == 1
            assert await value(up, "vig_waiting_calls", **HERE) == 1
            # Why?
            told = events(logs, "call_broken", "epoch_began", "claim_quarantined")
            assert told == ["call_broken", "epoch_began", "claim_quarantined"], "in the order of cause and effect"
            [quarantined] = [line for line in logs if line["event"] == "claim_quarantined"]
            seen = (await up.ask("GET", "/admin/identities/b:m", headers=OPERATOR)).json
            [claim] = seen["claims"]
            assert claim["serves"]["promptId"] == quarantined["prompt"]
            # Is its work over? Triton got the prompt's id.
            assert any(quarantined["prompt"].encode() in wire.body for wire in up.world.wires)
            await trio.sleep(90)
            assert not up.world.executing
            # Clear it.
            order = {"identity": "b:m", "expectedEpoch": seen["epoch"], "reason": "the model logged its end"}
            report = await up.ask("POST", "/admin/restart", body=order, headers=OPERATOR)
            assert [forgotten["id"] for forgotten in report.json["results"][0]["forgottenClaims"]] == [claim["id"]]
            await trio.sleep(2)
            # Did it work?
            assert (await up.ask("GET", "/readyz")).status == 200
            assert await value(up, "vig_free_slots", **HERE) == 1
            assert await value(up, "vig_quarantined_slots", **HERE) == 0
            assert await value(up, "vig_released_unproven_total", **HERE) == 1
            assert await value(up, "vig_epoch", **HERE) == seen["epoch"] + 1
    after = events(logs, "forced_restart", "operator_act")
    assert after == ["forced_restart", "operator_act"]
    assert (logs_of(logs, "prompt_settled")[-1]["prompt"], logs_of(logs, "prompt_settled")[-1]["outcome"]) == (
        waiting,
        "completed",
    )


def logs_of(logs: list[Any], name: str) -> list[dict[str, Any]]:
    return [line for line in logs if line["event"] == name]


async def test_a_restart_of_the_backend_clears_it_by_proof(autojump_clock: MockClock) -> None:
    with structlog.testing.capture_logs() as logs:
        async with service() as up:
            await hang(up)
            up.world.restart()
            await trio.sleep(5)
            assert (await up.ask("GET", "/readyz")).status == 200
            assert await value(up, "vig_released_unproven_total", **HERE) == 0
            assert await value(up, "vig_execution_reconciled_total", **HERE, proof="process_ended") == 1
    assert [line["proof"] for line in logs_of(logs, "claim_ended")] == ["process_ended"]
