"""Looking at a session's queue and at what became of its prompts: protocol 2.7, S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from governor.history import SETTLED_MAX, TEXT_CHARS_MAX
from tests.api.harness import kinds, listening, service
from tests.shell.world import Plan

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_the_list_of_pending_prompts_is_the_queue_in_order(autojump_clock: MockClock) -> None:
    async with service() as up:
        made = (await up.ask("POST", "/session", body={"sessionScope": "thread"})).json
        session, mine = made["sessionId"], {"X-Qwen-Client-Id": made["clientId"]}
        path = f"/session/{session}/pending-prompts"
        assert (await up.ask("GET", path)).json == {"pendingPrompts": []}
        first = (await up.prompt(session, "10 first")).json["promptId"]
        body = {"prompt": [{"type": "text", "text": "10 second"}]}
        second = (await up.ask("POST", f"/session/{session}/prompt", body=body, headers=mine)).json["promptId"]
        one, other = (await up.ask("GET", path, headers=mine)).json["pendingPrompts"]
        assert one == {"promptId": first, "text": "10 first", "queuedAt": one["queuedAt"], "state": "running"}
        assert other == {
            "promptId": second, "text": "10 second", "queuedAt": other["queuedAt"], "state": "queued",
            "originatorClientId": made["clientId"],
        }  # fmt: skip
        assert one["queuedAt"] <= other["queuedAt"]
        assert len((await up.ask("GET", path)).json["pendingPrompts"]) == up.governor.sessions[session].pending_count


async def test_a_removed_prompt_is_told_and_frees_its_place_at_once(autojump_clock: MockClock) -> None:
    async with service(limits={"max_pending_prompts_per_session": 2}) as up:
        session = await up.new_session()
        async with listening(up, session) as events:
            running = (await up.prompt(session, "10")).json["promptId"]
            queued = (await up.prompt(session, "10")).json["promptId"]
            assert (await up.prompt(session, "10")).code == "prompt_queue_full"
            path = f"/session/{session}/pending-prompts"
            answer = await up.ask("DELETE", f"{path}/{queued}")
            assert (answer.status, answer.json) == (200, {"removed": True})
            assert (await up.prompt(session, "0")).status == 202
            assert (await up.ask("DELETE", f"{path}/{queued}")).json == {"removed": False}
            assert (await up.ask("DELETE", f"{path}/unknown")).json == {"removed": False}
            assert (await up.ask("DELETE", f"{path}/{running}")).json == {"removed": True}
            seen = await events.until("pending_prompt_completed")
            assert seen[-1]["data"] == {"sessionId": session, "promptId": queued, "state": "removed"}
            ended = (await events.until("prompt_cancelled", "turn_complete"))[-1]
            assert (ended["type"], ended["data"]["promptId"]) == ("prompt_cancelled", running)
            terminal = (await events.until("turn_complete"))[-1]["data"]
            assert (terminal["promptId"], terminal["stopReason"]) == (running, "cancelled")


async def test_a_caller_that_polls_learns_what_one_that_listens_learns(autojump_clock: MockClock) -> None:
    """Idle, running, queued, completed, with the text of the answer."""
    async with service(model={"kind": "generate_stream"}) as up:
        up.world.next_plans.append(Plan(seconds=2, texts=("one ", "two")))
        session = await up.new_session()
        path = f"/session/{session}/turns/"
        assert (await up.ask("GET", path + "current")).json == {"sessionId": session, "state": "idle"}
        first = (await up.prompt(session, "first")).json["promptId"]
        second = (await up.prompt(session, "0 second")).json["promptId"]
        await trio.sleep(1.5)
        running = (await up.ask("GET", path + "current")).json
        assert running == {
            "sessionId": session, "state": "running", "promptId": first, "promptText": "first",
            "queuedAt": running["queuedAt"], "startedAt": running["startedAt"], "resultText": "one ",
        }  # fmt: skip
        queued = (await up.ask("GET", path + second)).json
        assert queued == {
            "sessionId": session, "state": "queued", "promptId": second, "promptText": "0 second",
            "queuedAt": queued["queuedAt"],
        }  # fmt: skip
        await trio.sleep(2)
        done = (await up.ask("GET", path + first)).json
        assert (done["state"], done["stopReason"], done["resultText"]) == ("completed", "end_turn", "one two")
        assert done["queuedAt"] <= done["startedAt"] < done["endedAt"]
        assert (await up.ask("GET", path + "current")).json["promptId"] == second


async def test_failed_and_cancelled_turns_say_so(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(status=500, texts=("out of memory",)))
        session = await up.new_session()
        failed = (await up.prompt(session, "0")).json["promptId"]
        await trio.sleep(1)
        told = (await up.ask("GET", f"/session/{session}/turns/{failed}")).json
        assert told["state"] == "error"
        assert told["error"] == {"message": "out of memory", "code": "backend_answered_error"}
        assert "stopReason" not in told
        cancelled = (await up.prompt(session, "10")).json["promptId"]
        await trio.sleep(1)
        await up.ask("POST", f"/session/{session}/cancel")
        told = (await up.ask("GET", f"/session/{session}/turns/{cancelled}")).json
        assert (told["state"], told["stopReason"]) == ("cancelled", "cancelled")


async def test_long_texts_are_cut_and_that_is_said(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(texts=("a" * (TEXT_CHARS_MAX + 1),)))
        session = await up.new_session()
        prompt = (await up.prompt(session, "q" * (TEXT_CHARS_MAX + 1))).json["promptId"]
        await trio.sleep(1)
        told = (await up.ask("GET", f"/session/{session}/turns/{prompt}")).json
        assert (len(told["promptText"]), told["promptTextTruncated"]) == (TEXT_CHARS_MAX, True)
        assert (len(told["resultText"]), told["resultTruncated"]) == (TEXT_CHARS_MAX, True)
        assert told["resultCode"] == "RESULT_TEXT_TRUNCATED"


async def test_the_last_64_settled_prompts_are_known(autojump_clock: MockClock) -> None:
    async with service(limits={"max_pending_prompts_per_session": 0}) as up:
        session = await up.new_session()
        prompts = [(await up.prompt(session, "0")).json["promptId"] for _ in range(SETTLED_MAX + 1)]
        await trio.sleep(10)
        forgotten = await up.ask("GET", f"/session/{session}/turns/{prompts[0]}")
        assert (forgotten.status, forgotten.code) == (404, "prompt_not_found")
        assert (forgotten.json["sessionId"], forgotten.json["promptId"]) == (session, prompts[0])
        for prompt in prompts[1:]:
            assert (await up.ask("GET", f"/session/{session}/turns/{prompt}")).json["state"] == "completed"


async def test_a_cancelled_turn_says_when_and_after_how_long(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        async with listening(up, session) as events:
            await up.prompt(session, "10")
            await trio.sleep(2)
            await up.ask("POST", f"/session/{session}/cancel")
            told = (await events.until("turn_complete"))[-1]["data"]["promptCancelled"]
            assert set(told) == {"cancelledAt", "elapsedMs"}
            assert 1900 <= told["elapsedMs"] <= 2100


async def test_a_cancel_while_nothing_runs_is_told_once(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        async with listening(up, session) as events:
            for _ in range(3):
                assert (await up.ask("POST", f"/session/{session}/cancel")).status == 204
            await up.prompt(session, "0")
            assert kinds(await events.until("turn_complete")).count("prompt_cancelled") == 1


async def test_whoever_cancels_is_named_in_the_event(autojump_clock: MockClock) -> None:
    async with service() as up:
        session = await up.new_session()
        client = up.governor.sessions[session].clients.register()
        async with listening(up, session) as events:
            await up.prompt(session, "10")
            await up.ask("POST", f"/session/{session}/cancel", headers={"X-Qwen-Client-Id": client})
            told = await events.until("turn_complete")
            assert told[-2]["type"] == "prompt_cancelled"
            assert told[-2]["originatorClientId"] == client
            assert "originatorClientId" not in told[-1], "the prompt was an anonymous caller's"


async def test_a_retry_after_a_failure_is_not_echoed_and_any_other_is(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(status=500, texts=("ill",)))
        session = await up.new_session()
        async with listening(up, session) as events:
            await up.prompt(session, "0 text", retry=True)
            assert "user_message_chunk" in kinds(await events.until("turn_error"))
            await up.prompt(session, "0 text", retry=True)
            assert kinds(await events.until("turn_complete")) == ["agent_message_chunk", "turn_complete"]
            await up.prompt(session, "0 text", retry=True)
            assert "user_message_chunk" in kinds(await events.until("turn_complete"))
