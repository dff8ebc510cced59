"""`/v2/models/...` pass-through under credits: A6, E2, D7."""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING

import pytest
import trio

from governor.core.claims import ClaimState
from tests.api.harness import AsgiExchange, Service, make_config, service, streaming
from tests.shell.world import Break, Plan

if TYPE_CHECKING:
    from trio.testing import MockClock

INFER = "/v2/models/chat/infer"
BINARY = bytes(range(256)) * 64


def claims(up: Service) -> dict[ClaimState, int]:
    """Claims by state, without zeros."""
    identity = next(iter(up.governor.identities.values()))
    return {state: count for state, count in identity.statistics().ledger.states.items() if count}


async def test_bodies_pass_unchanged_and_only_named_headers_do(autojump_clock: MockClock) -> None:
    """Binary tensors and odd JSON arrive byte for byte, both ways; hop-by-hop fields and secrets never do."""
    answer_body = os.urandom(5000)
    sent = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": "17",
        "Accept": "*/*",
        "Accept-Encoding": "gzip",
        "Content-Encoding": "deflate",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    private = {"Authorization": "Bearer x", "Cookie": "a=b", "X-Other": "1", "Keep-Alive": "5", "TE": "trailers"}
    async with service() as up:
        up.world.next_plans.append(
            Plan(
                body=answer_body,
                headers=(
                    ("Content-Type", "application/octet-stream"),
                    ("Content-Length", str(len(answer_body))),
                    ("Inference-Header-Content-Length", "33"),
                    ("Content-Encoding", "gzip"),
                    ("Connection", "keep-alive"),
                    ("Set-Cookie", "x=y"),
                    ("Server", "triton"),
                ),
            )
        )
        data = zlib.compress(BINARY)
        answer = await up.ask("POST", INFER, data=data, headers={**sent, **private})
        (wire,) = up.world.wires
        assert wire.body == data
        assert wire.path == "/v2/models/m/infer", "the public name is replaced by Triton's"
        assert dict(wire.headers) == {name.lower(): value for name, value in sent.items()}
        assert answer.status == 200
        assert answer.body == answer_body
        assert answer.headers == {
            "content-type": "application/octet-stream",
            "content-length": "5000",
            "inference-header-content-length": "33",
            "content-encoding": "gzip",
        }


async def test_the_operator_names_further_headers_for_triton(autojump_clock: MockClock) -> None:
    """For its header forwarding and its restricted APIs; on inferences and on everything else under `/v2`."""
    sent = {"X-Tenant": "t", "triton-key": "k", "X-Other": "o"}
    async with service(backend={"forward_headers": ["X-Tenant", "triton-key"]}) as up:
        up.world.next_plans.append(Plan(body=b"{}"))
        assert (await up.ask("POST", INFER, data=b"{}", headers=sent)).status == 200
        for method, path in (("GET", "/v2"), ("GET", "/v2/models/chat/stats"), ("POST", "/v2/repository/index")):
            await up.ask(method, path, headers=sent)
        for wire in (*up.world.wires, *up.world.questions[1:]):
            assert dict(wire.headers) == {"x-tenant": "t", "triton-key": "k"}, wire
        assert len(up.world.questions) == 4


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/v2/models/chat/infer", b"", "/v2/models/m/infer"),
        ("/v2/models/m/infer", b"", "/v2/models/m/infer"),
        ("/v2/models/chat/versions/3/infer", b"", "/v2/models/m/versions/3/infer"),
        ("/v2/models/chat/generate", b"a=b%20c", "/v2/models/m/generate?a=b%20c"),
        ("/v2/models/chat/versions/12/generate_stream", b"", "/v2/models/m/versions/12/generate_stream"),
    ],
)
async def test_the_target_names_the_backends_model(
    path: str, query: bytes, expected: str, autojump_clock: MockClock
) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(body=b"{}"))
        assert (await up.ask("POST", path, data=b"{}", query=query)).status == 200
        assert [wire.path for wire in up.world.wires] == [expected]


async def test_the_configured_version_is_called_where_the_caller_names_none(autojump_clock: MockClock) -> None:
    async with service(model={"triton_version": "7"}) as up:
        up.world.next_plans.append(Plan(body=b"{}"))
        await up.ask("POST", INFER, data=b"{}")
        assert up.world.wires[0].path == "/v2/models/m/versions/7/infer"


async def test_an_error_of_the_backend_passes_as_it_is(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(status=400, body=b'{"error":"unexpected shape"}', counts=(0, 0)))
        answer = await up.ask("POST", INFER, data=b"{}")
        assert (answer.status, answer.body) == (400, b'{"error":"unexpected shape"}')
        await trio.sleep(1)
        assert up.free == 1


async def test_a_stream_arrives_piece_by_piece(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(
            Plan(seconds=3, texts=("a", "b", "c"), headers=(("Content-Type", "text/event-stream"),))
        )
        async with streaming(up, "/v2/models/chat/generate_stream", method="POST", data=b"{}") as exchange:
            began = trio.current_time()
            for number, text in enumerate("abc", 1):
                assert await exchange.piece() == b"data: " + json.dumps({"text_output": text}).encode() + b"\n\n"
                assert trio.current_time() - began == pytest.approx(number, abs=0.1)
            assert await exchange.piece() is None
            assert exchange.complete


async def test_a_long_answer_of_known_length_is_not_held_back(autojump_clock: MockClock) -> None:
    async with service() as up:
        headers = (("Content-Length", "70000"), ("Content-Type", "text/plain"))
        up.world.next_plans.append(Plan(seconds=2, texts=("a", "b"), headers=headers))
        async with streaming(up, "/v2/models/chat/generate_stream", method="POST", data=b"{}") as exchange:
            began = trio.current_time()
            assert await exchange.piece()
            assert trio.current_time() - began == pytest.approx(1, abs=0.1)


async def test_a_caller_that_leaves_leaves_the_call_and_its_late_answer_frees_the_credit(
    autojump_clock: MockClock,
) -> None:
    """E2: the claim goes on as `timed_out`; no second call runs beside it; no reading is needed for its end."""
    async with service() as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=3, body=b"{}"), Plan(seconds=1, body=b"[]")])
        exchange = AsgiExchange(up.app, "POST", INFER, data=b"{}")
        nursery.start_soon(exchange.run)
        await trio.sleep(0.5)
        assert claims(up) == {ClaimState.RUNNING: 1}
        exchange.leave()
        await exchange.ended.wait()
        assert exchange.status is None
        assert claims(up) == {ClaimState.TIMED_OUT: 1}
        began = trio.current_time()
        assert (await up.ask("POST", INFER, data=b"{}")).body == b"[]"
        assert trio.current_time() - began == pytest.approx(3.5, abs=0.1)
        assert up.world.high_water == 1
        assert up.free == 1


async def test_a_caller_that_leaves_while_waiting_is_taken_out_of_the_queue(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=3, body=b"{}"))
        nursery.start_soon(AsgiExchange(up.app, "POST", INFER, data=b"{}").run)
        await trio.sleep(0.5)
        waiting = AsgiExchange(up.app, "POST", INFER, data=b"{}")
        nursery.start_soon(waiting.run)
        await trio.sleep(0.5)
        assert up.governor.statistics().identities[0].waiting == 1
        waiting.leave()
        await waiting.ended.wait()
        assert up.governor.statistics().identities[0].waiting == 0
        await trio.sleep(5)
        assert len(up.world.executions) == 1


async def test_the_wait_for_a_credit_is_bounded(autojump_clock: MockClock) -> None:
    async with service(limits={"max_credit_wait_ms": 2000}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        nursery.start_soon(AsgiExchange(up.app, "POST", INFER, data=b"{}").run)
        await trio.sleep(0.5)
        began = trio.current_time()
        answer = await up.ask("POST", INFER, data=b"{}")
        assert trio.current_time() - began == pytest.approx(2, abs=0.1)
        assert (answer.status, answer.code) == (503, "credit_wait_timeout")
        assert answer.headers["retry-after"] == "5"
        assert answer.json["waitedMs"] == 2000
        assert up.governor.statistics().identities[0].waiting == 0
        nursery.cancel_scope.cancel()


def with_timeout(value: object) -> dict[str, object]:
    return {"inputs": [], "parameters": {"timeout": value}}


@pytest.mark.parametrize(
    ("body", "header", "expected_s"),
    [
        (with_timeout(2_000_000), None, 2),
        (with_timeout(1_500), None, 0.0015),
        ({}, "3000000", 3),
        (with_timeout(2_000_000), "3000000", 2),
        (with_timeout(4_000_000), "3000000", 3),
        (with_timeout(60_000_000), "0", 10),
        (with_timeout(0), None, 10),
        (with_timeout(-5), None, 10),
        (with_timeout(True), None, 10),
        (with_timeout("2"), None, 10),
        (with_timeout(2.5), None, 10),
        ({"parameters": [1]}, None, 10),
    ],
)
async def test_the_wait_for_a_credit_heeds_the_callers_timeout(
    body: dict[str, object], header: str | None, expected_s: float, autojump_clock: MockClock
) -> None:
    """Microseconds, as Triton's request parameter; it only shortens what the operator allows."""
    async with service(limits={"max_credit_wait_ms": 10_000}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=60, body=b"{}"))
        nursery.start_soon(AsgiExchange(up.app, "POST", INFER, data=b"{}").run)
        await trio.sleep(0.5)
        began = trio.current_time()
        answer = await up.ask("POST", INFER, body=body, headers={"Triton-Timeout": header} if header else {})
        assert trio.current_time() - began == pytest.approx(expected_s, abs=0.01)
        assert (answer.status, answer.code) == (503, "credit_wait_timeout")
        assert up.governor.statistics().identities[0].waiting == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("value", ["-1", "1.5", "x", "", "9" * 19])
async def test_a_timeout_header_that_is_none_is_a_400(value: str, autojump_clock: MockClock) -> None:
    async with service() as up:
        answer = await up.ask("POST", INFER, data=b"{}", headers={"Triton-Timeout": value})
        assert (answer.status, answer.code) == (400, "invalid_timeout")
        assert not up.world.wires


async def test_the_timeout_parameter_is_passed_on_and_no_field_of_generate(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=3, body=b"{}"), Plan(body=b"{}")])
        nursery.start_soon(AsgiExchange(up.app, "POST", INFER, data=b"{}").run)
        await trio.sleep(0.5)
        sent = with_timeout(1_000)
        assert (await up.ask("POST", "/v2/models/chat/generate", body=sent)).status == 200
        assert json.loads(bytes(up.world.wires[1].body)) == sent


async def test_a_full_queue_for_credits_is_a_503_at_once(autojump_clock: MockClock) -> None:
    async with service(limits={"max_waiting_per_identity": 1}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=60, body=b"{}")] * 2)
        for _ in range(2):
            nursery.start_soon(AsgiExchange(up.app, "POST", INFER, data=b"{}").run)
        await trio.sleep(0.5)
        answer = await up.ask("POST", INFER, data=b"{}")
        assert (answer.status, answer.code) == (503, "credit_queue_full")
        assert answer.headers["retry-after"] == "5"
        nursery.cancel_scope.cancel()


async def test_a_backend_that_takes_too_long_is_a_504_and_keeps_its_credit(autojump_clock: MockClock) -> None:
    async with service(model={"timeout_ms": 1000}) as up:
        up.world.next_plans.append(Plan(seconds=3, body=b"{}"))
        answer = await up.ask("POST", INFER, data=b"{}")
        assert (answer.status, answer.code) == (504, "backend_timeout")
        assert up.free == 0
        assert claims(up) == {ClaimState.TIMED_OUT: 1}
        await trio.sleep(3)
        assert up.free == 1


async def test_the_time_in_which_the_caller_does_not_read_is_not_the_backends(autojump_clock: MockClock) -> None:
    async with service(model={"timeout_ms": 1000}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(body=b"x" * 100_000))
        exchange = AsgiExchange(up.app, "POST", INFER, data=b"{}", blocked=trio.Event())
        nursery.start_soon(exchange.run)
        await trio.sleep(5)
        assert exchange.blocked is not None
        exchange.blocked.set()
        assert len((await exchange.whole()).body) == 100_000


async def test_a_backend_that_is_down_is_a_503(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.kill()
        answer = await up.ask("POST", INFER, data=b"{}")
        assert (answer.status, answer.code) == (503, "backend_unavailable")
        assert answer.headers["retry-after"] == "5"
        assert up.free == 1, "what was never delivered never executes (E3)"


async def test_a_connection_that_breaks_is_a_502_and_needs_evidence(autojump_clock: MockClock) -> None:
    async with service() as up:
        up.world.next_plans.append(Plan(seconds=2, body=b"{}", breaks=Break.AFTER_DELIVERY))
        answer = await up.ask("POST", INFER, data=b"{}")
        assert (answer.status, answer.code) == (502, "backend_connection_lost")
        assert claims(up) == {ClaimState.RECONCILING: 1}
        await trio.sleep(3)
        assert up.free == 1


async def test_an_error_in_the_middle_of_a_stream_is_its_last_event(autojump_clock: MockClock) -> None:
    async with service() as up:
        headers = (("Content-Type", "text/event-stream; charset=utf-8"),)
        up.world.next_plans.append(Plan(seconds=2, texts=("a", "b"), headers=headers, breaks=Break.MID_ANSWER))
        answer = await up.ask("POST", "/v2/models/chat/generate_stream", data=b"{}")
        assert answer.status == 200
        last = answer.body.rstrip(b"\n").rpartition(b"\n\n")[2]
        assert json.loads(last.removeprefix(b"data: "))["code"] == "backend_connection_lost"


async def test_any_other_answer_that_breaks_off_is_cut(autojump_clock: MockClock) -> None:
    """No end is invented: the server closes the connection, and the caller sees that something is missing."""
    async with service() as up:
        up.world.next_plans.append(Plan(body=b"x" * 100_000, breaks=Break.MID_ANSWER))
        async with streaming(up, INFER, method="POST", data=b"{}") as exchange:
            assert await exchange.head() == 200
            assert await exchange.piece() == b"x" * 100_000
            assert await exchange.piece() is None
            assert not exchange.complete


async def test_an_answer_larger_than_allowed_is_refused_and_drained(autojump_clock: MockClock) -> None:
    async with service(limits={"max_answer_bytes": 1000}) as up:
        up.world.next_plans.append(Plan(body=b"x" * 1001, headers=(("Content-Length", "1001"),)))
        answer = await up.ask("POST", INFER, data=b"{}")
        assert (answer.status, answer.code) == (502, "backend_protocol_error")
        await trio.sleep(1)
        assert up.free == 1


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 1_000_000])
async def test_answers_of_every_size_are_complete(size: int, autojump_clock: MockClock) -> None:
    async with service() as up:
        body = os.urandom(size)
        up.world.next_plans.append(Plan(body=body, headers=(("Content-Length", str(size)),)))
        answer = await up.ask("POST", INFER, data=b"{}")
        assert answer.body == body
        assert answer.headers["content-length"] == str(size)


async def test_what_names_no_model_or_cannot_be_sent_is_a_4xx(autojump_clock: MockClock) -> None:
    async with service() as up:
        unknown = await up.ask("POST", "/v2/models/nothing/infer", data=b"{}")
        assert (unknown.status, unknown.code) == (404, "unknown_model")
        dots = await up.ask("POST", "/v2/models/chat/versions/../infer", data=b"{}")
        assert (dots.status, dots.code) == (404, "not_found")
        header = await up.ask("POST", INFER, data=b"{}", headers={"Accept": "a\x01b"})
        assert (header.status, header.code) == (400, "invalid_request")
        method = await up.ask("GET", INFER)
        assert (method.status, method.code) == (405, "method_not_allowed")
        assert method.headers["allow"] == "POST"
        assert not up.world.wires


async def test_a_draining_governor_takes_no_call(autojump_clock: MockClock) -> None:
    async with service() as up, trio.open_nursery() as nursery:
        up.world.next_plans.append(Plan(seconds=2, body=b"{}"))
        started = AsgiExchange(up.app, "POST", INFER, data=b"{}")
        waiting = AsgiExchange(up.app, "POST", INFER, data=b"{}")
        for exchange in (started, waiting):
            nursery.start_soon(exchange.run)
            await trio.sleep(0.5)
        up.governor.drain()
        assert (await waiting.whole()).code == "daemon_draining"
        assert (await up.ask("POST", INFER, data=b"{}")).code == "daemon_draining"
        assert (await started.whole()).body == b"{}", "what has begun is answered"


async def test_one_address_with_many_calls_delays_another_by_one_turn(autojump_clock: MockClock) -> None:
    """A6: credits go round between callers."""
    async with service() as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=1, body=b"{}")] * 6)
        for _ in range(5):
            nursery.start_soon(AsgiExchange(up.app, "POST", INFER, data=b"{}", client=("10.0.0.1", 1)).run)
        await trio.sleep(0.1)
        began = trio.current_time()
        await up.ask("POST", INFER, data=b"{}", client=("10.0.0.2", 1))
        assert trio.current_time() - began < 3.1


async def test_a_full_queue_refuses_before_anything_of_the_request_is_looked_at(autojump_clock: MockClock) -> None:
    """A6: under overload most requests are refused, and what one costs delays those that are served."""
    async with service(limits={"max_waiting_per_identity": 1}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=1, body=b"{}")] * 2)
        for _ in range(2):
            nursery.start_soon(AsgiExchange(up.app, "POST", INFER, data=b"{}").run)
            await trio.sleep(0.01)
        asked = len(up.world.questions)
        refused = await up.ask("POST", INFER, data=b"not even JSON", headers={"triton-timeout": "soon"})
        assert (refused.status, refused.code) == (503, "credit_queue_full")
        assert len(up.world.questions) == asked
        statistics = up.governor.statistics().identities[0]
        assert (statistics.totals.refused, statistics.waiting) == (1, 1)


async def test_who_fills_the_queue_keeps_nobody_else_out(autojump_clock: MockClock) -> None:
    """A6: a full queue refuses the newest call of the caller that has most of them waiting."""
    async with service(limits={"max_waiting_per_identity": 3}) as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=1, body=b"{}")] * 5)
        greedy = []
        for _ in range(4):
            greedy.append(AsgiExchange(up.app, "POST", INFER, data=b"{}", client=("10.0.0.1", 1)))
            nursery.start_soon(greedy[-1].run)
            await trio.sleep(0.01)
        assert (await up.ask("POST", INFER, data=b"{}", client=("10.0.0.1", 1))).code == "credit_queue_full"
        modest = AsgiExchange(up.app, "POST", INFER, data=b"{}", client=("10.0.0.2", 1))
        nursery.start_soon(modest.run)
        newest = await greedy[3].whole()
        assert (newest.status, newest.code, newest.headers["retry-after"]) == (503, "credit_queue_full", "5")
        assert (await modest.whole()).status == 200
        for exchange in greedy[:3]:
            assert (await exchange.whole()).status == 200
        assert len(up.world.executions) == 4
        assert up.governor.statistics().identities[0].totals.refused == 2


async def test_two_names_of_one_model_share_its_slots(autojump_clock: MockClock) -> None:
    alias = make_config().models[0].model_copy(update={"name": "alias", "kind": "infer"})
    async with service(more_models=(alias,)) as up, trio.open_nursery() as nursery:
        up.world.next_plans.extend([Plan(seconds=1, body=b"{}")] * 2)
        for name in ("chat", "alias"):
            nursery.start_soon(AsgiExchange(up.app, "POST", f"/v2/models/{name}/infer", data=b"{}").run)
        await trio.sleep(5)
        assert len(up.world.executions) == 2
        assert up.world.high_water == 1
