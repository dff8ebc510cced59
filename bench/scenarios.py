"""What is measured, one function per question. Each takes the lab and returns the tables of its answer."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from bench.lab import Lab, Measured, Table, middle
from bench.processes import cpu_s, get

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.targets import Running

_KIB, _MIB = 1024, 1024 * 1024
_TURNS_S_MAX = 120.0


def overhead(lab: Lab) -> list[Table]:
    """What a target adds to the backend's own latency, at a few concurrencies (closed loop)."""
    table = Table(
        "Overhead against direct, no-op model, closed loop",
        [
            "connections",
            "target",
            "CPU us/request",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "added p50",
            "added p99",
            "not 200",
        ],
        chart=("connections", "CPU us/request"),
        series="target",
    )
    lab.behave()
    with lab.all() as targets:
        for connections in (1, 8, 64):
            seen = lab.rounds_of(targets, connections=connections)
            direct = seen["direct"]
            for name, runs in seen.items():
                p50, p99 = (middle(runs, _ms(p)) for p in ("p50", "p99"))
                table.rows.append(
                    [
                        connections,
                        name,
                        middle(runs, _cpu_us),
                        middle(runs, _per_second),
                        p50,
                        p99,
                        p50 - middle(direct, _ms("p50")),
                        p99 - middle(direct, _ms("p99")),
                        sum(_not_200(each) for each in runs),
                    ]
                )
                if connections == 1:
                    table.curves[name] = runs[-1].result.curve
    return [table]


def rate(lab: Lab) -> list[Table]:
    """Latency from the time a request is due, at fixed rates (open loop)."""
    table = Table(
        "Latency at a fixed rate, no-op model, open loop (Poisson arrivals)",
        [
            "requests/s due",
            "target",
            "answered/s",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "not 200",
            "unanswered",
            "generator p99",
        ],
        chart=("requests/s due", "p99 ms"),
        series="target",
    )
    lab.behave()
    with lab.all() as targets:
        for due in (100, 200, 400) if lab.quick else (100, 200, 400, 800, 1200):
            for name, runs in lab.rounds_of(targets, rate_per_s=due, connections=256).items():
                percentiles = [middle(runs, _ms(p)) for p in ("p50", "p99", "p99.9")]
                table.rows.append(
                    [
                        due,
                        name,
                        middle(runs, _per_second),
                        *percentiles,
                        sum(_not_200(each) for each in runs),
                        sum(each.result.unanswered for each in runs),
                        middle(runs, lambda each: each.result.lag_p99),
                    ]
                )
    return [table]


def saturation(lab: Lab) -> list[Table]:
    """How much one core of a target can pass on, and the same by CPU time, as a multiple of the stock path."""
    table = Table(
        "Throughput of one core, no-op model, 32 connections, closed loop",
        [
            "target",
            "CPU us/request",
            "requests/s",
            "stock CPU / CPU",
            "requests/s / stock",
            "p50 ms",
            "p99 ms",
            "not 200",
        ],
    )
    lab.behave()
    with lab.all() as targets:
        seen = lab.rounds_of(targets[1:], connections=32)
    for name, runs in seen.items():
        cpu_us, per_s = middle(runs, _cpu_us), middle(runs, _per_second)
        stock = seen.get("stock")
        table.rows.append(
            [
                name,
                cpu_us,
                per_s,
                middle(stock, _cpu_us) / cpu_us if stock else None,
                per_s / middle(stock, _per_second) if stock else None,
                middle(runs, _ms("p50")),
                middle(runs, _ms("p99")),
                sum(_not_200(each) for each in runs),
            ]
        )
    return [table]


def overload(lab: Lab) -> list[Table]:
    """A 20 ms model with 4 slots is offered more than it can do."""
    slots, waiting, delay_ms = 4, 8, 20
    capacity = slots * 1000 / delay_ms
    table = Table(
        f"Overload: {delay_ms} ms model, {slots} slots, {waiting} may wait; capacity {capacity:g}/s, open loop",
        ["offered", "target", "200/s", "slots busy %", "peak", "service p50", "service p99", "refused/s", "refused p50",
         "refused p99", "200 p99", "unanswered", "CPU us/request"],
        notes=[
            "Peak: the most executions at once, by the backend's own record; above 4 means over-admitted.",
            "Service: milliseconds from a request's last byte at the backend to its answer, by the backend's record.",
        ],
    )  # fmt: skip
    lab.behave(delay_ms=delay_ms)
    place = {"slots": slots, "waiting": waiting, "wait_ms": 1000}
    plans = {
        factor: {"rate_per_s": factor * capacity, "connections": 2048, "seconds": lab.seconds + 2}
        for factor in (2, 5, 10)
    }
    rows: dict[int, list[list[str | float | int | None]]] = {factor: [] for factor in plans}
    with lab.all(but="stock", **place) as targets:
        for factor, plan in plans.items():
            # Without a gateway nothing is refused: beyond twice its capacity, direct would only be a pile of work.
            for name, runs in lab.rounds_of(targets[1:], **plan).items():
                rows[factor].append([f"{factor}x", name, *_overload_row(runs, slots)])
    for factor, plan in plans.items() if "stock" in lab.targets else ():
        # It refuses nothing either, and would go on with its pile of work beside whoever is next.
        with lab.start("stock", **place) as running:
            rows[factor].append([f"{factor}x", "stock", *_overload_row([lab.measure(running, **plan)], slots)])
    table.rows = [row for each in rows.values() for row in each]
    return [table]


def _overload_row(runs: list[Measured], slots: int) -> list[str | float | int | None]:
    refused = max((status for seen in runs for status in seen.result.answers if status != "200"), default="-")
    return [
        middle(runs, _per_second_of("200")),
        100 * middle(runs, _busy_in_the_middle) / slots,
        max(seen.truth["peak"] for seen in runs),
        middle(runs, lambda seen: seen.truth["service_ms"]["p50"]),
        middle(runs, lambda seen: seen.truth["service_ms"]["p99"]),
        middle(runs, _per_second_of(refused)),
        middle(runs, _ms("p50", refused)),
        middle(runs, _ms("p99", refused)),
        middle(runs, _ms("p99")),
        sum(seen.result.unanswered for seen in runs),
        middle(runs, _cpu_us),
    ]


def _per_second_of(status: str) -> Callable[[Measured], float]:
    return lambda seen: seen.result.answers.get(status, 0) / seen.result.seconds


def _busy_in_the_middle(seen: Measured) -> float:
    """Mean number of running executions, without the first and the last tenth of the run: there is no overload yet."""
    events = seen.truth["events"]
    if len(events) < 2:
        return 0.0
    first_s, last_s = events[0][0], events[-1][0]
    from_s, to_s = first_s + 0.1 * (last_s - first_s), last_s - 0.1 * (last_s - first_s)
    busy_s = 0.0
    for (at_s, running), (next_s, _) in pairwise(events):
        busy_s += running * max(0.0, min(next_s, to_s) - max(at_s, from_s))
    return busy_s / (to_s - from_s)


def slots(lab: Lab) -> list[Table]:
    """Does a request cost more where there are more slots?"""
    table = Table(
        "Cost per request by number of slots, no-op model, 64 connections",
        ["slots", "CPU us/request", "requests/s", "p50 ms", "p99 ms", "peak at the backend"],
        chart=("slots", "CPU us/request"),
    )
    lab.behave()
    for count in (1, 4, 16, 64):  # one after the other: a model has one governor at a time
        with lab.start("governor", slots=count) as running:
            runs = [lab.measure(running, connections=64) for _ in range(lab.rounds)]
        table.rows.append(
            [
                count,
                middle(runs, _cpu_us),
                middle(runs, _per_second),
                middle(runs, _ms("p50")),
                middle(runs, _ms("p99")),
                max(each.truth["peak"] for each in runs),
            ]
        )
    return [table]


def sessions(lab: Lab) -> list[Table]:
    """Do idle sessions cost the others anything, and what memory do they hold?"""
    table = Table(
        "Idle sessions: what they hold, and what a request costs beside them",
        ["sessions", "bytes/session", "infer CPU us", "infer p50 ms", "202 CPU us", "202 p50 ms", "prompt CPU us",
         "not 200/202"],
        chart=("sessions", "infer CPU us"),
        notes=[
            "Bytes: growth of the process's resident memory, sessions over `POST /session` and idle since.",
            "202: while prompts are accepted, and their turns run beside. Prompt: until all of their turns have ended.",
        ],
    )  # fmt: skip
    lab.behave()
    with lab.start("governor") as running:
        for _ in range(3):
            lab.measure(running, connections=8)
        made = 0
        for count in (10, 1_000, 10_000) if lab.quick else (10, 1_000, 10_000, 100_000):
            before_mib = _memory_mib(running)
            prompted = _open_sessions(running.port, count - made)
            held = (_memory_mib(running) - before_mib) * _MIB / (count - made)
            made = count
            infer = [lab.measure(running, connections=8) for _ in range(lab.rounds)]
            prompts = [_prompt(lab, running, prompted) for _ in range(lab.rounds)]
            accepted = [seen for seen, _ in prompts]
            bad = sum(_not_200(each) for each in infer)
            bad += sum(each.result.total - each.result.answers.get("202", 0) for each in accepted)
            table.rows.append(
                [
                    count,
                    held,
                    middle(infer, _cpu_us),
                    middle(infer, _ms("p50")),
                    middle(accepted, _cpu_us),
                    middle(accepted, _ms("p50", "202")),
                    median(cpu_us for _, cpu_us in prompts),
                    bad,
                ]
            )
    return [table]


def _prompt(lab: Lab, running: Running, session_id: str) -> tuple[Measured, float]:
    """Prompts to one session, and the CPU microseconds of each until its turn has ended.

    They are accepted faster than the turns of one session can run, one after the other: most run after the load.
    """
    assert running.server is not None
    ask = {"path": f"/session/{session_id}/prompt", "body": '{"prompt":[{"type":"text","text":"one"}]}'}
    before_s = cpu_s(running.server.pid)
    seen = lab.measure(running, connections=8, warm_up_s=0.0, **ask)
    until_s = time.monotonic() + _TURNS_S_MAX
    while json.loads(get(running.port, f"/session/{session_id}/status")[1])["hasActivePrompt"]:
        if time.monotonic() > until_s:
            raise RuntimeError(f"the turns of {seen.result.total} prompts have not ended within {_TURNS_S_MAX:g} s")
        time.sleep(0.05)
    return seen, 1e6 * (cpu_s(running.server.pid) - before_s) / max(1, seen.result.total)


def _open_sessions(port: int, count: int) -> str:
    """Opens so many sessions over one connection; returns the last one's id."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    told: dict[str, str] = {}
    body = json.dumps({"modelServiceId": "text", "sessionScope": "thread"})
    for _ in range(count):
        connection.request("POST", "/session", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"a session was refused: {told}")
    connection.close()
    return told["sessionId"]


def payload(lab: Lab) -> list[Table]:
    """What large bodies cost in time and memory, request and answer being of the same length."""
    table = Table(
        "Bodies of a length (raw tensors), request and answer alike, 1 connection, closed loop",
        ["bytes", "target", "CPU us/request", "p50 ms", "p99 ms", "added p50", "MiB before", "MiB after", "not 200"],
        chart=("bytes", "p50 ms"),
        series="target",
        notes=[
            "relay: a process that passes bytes from one socket to the other and reads none, one more copy each way."
        ],
    )
    sizes: tuple[int, ...] = (100, 10 * _KIB, _MIB, 10_000_000)
    if not lab.quick:
        sizes = (100, _KIB, 10 * _KIB, 100 * _KIB, _MIB, 10_000_000)
    with lab.all() as everything, lab.start("relay") as relay:
        # Others read what they pass on.
        targets = [*(running for running in everything if running.path.startswith("/v2")), relay]
        for size in sizes:
            lab.behave(answer_bytes=size)
            before = {running.name: _memory_mib(running) for running in targets}
            seen = lab.rounds_of(targets, connections=1, body_bytes=size)
            direct_ms = middle(seen["direct"], _ms("p50"))
            for running in targets:
                runs = seen[running.name]
                p50 = middle(runs, _ms("p50"))
                table.rows.append(
                    [
                        size,
                        running.name,
                        middle(runs, _cpu_us),
                        p50,
                        middle(runs, _ms("p99")),
                        p50 - direct_ms,
                        before[running.name],
                        _memory_mib(running),
                        sum(_not_200(each) for each in runs),
                    ]
                )
    return [table]


def streaming(lab: Lab) -> list[Table]:
    """Server-sent events passed on as they come."""
    table = Table(
        "generate_stream, 20 events 5 ms apart, 8 connections, closed loop",
        ["target", "CPU us/stream", "first byte p50 ms", "first byte p99 ms", "p50 ms", "p99 ms", "not 200"],
    )
    lab.behave(stream_events=20, stream_interval_ms=5)
    with lab.all() as everything:
        targets = [each for each in everything if each.path.startswith("/v2") and each.name != "stock"]
        ask = {"path": "/v2/models/text/generate_stream", "body": '{"text_input":"word"}'}
        for name, runs in lab.rounds_of(targets, connections=8, **ask).items():
            first = [middle(runs, _first_byte(p)) for p in ("p50", "p99")]
            whole = [middle(runs, _ms(p)) for p in ("p50", "p99")]
            cpu_us = middle(runs, _cpu_us)
            table.rows.append([name, cpu_us, *first, *whole, sum(_not_200(each) for each in runs)])
    return [table]


def refusals(lab: Lab) -> list[Table]:
    """What it costs to say no: the only slot and the only place to wait are taken."""
    table = Table(
        "Refusals: slot and queue full, 8 connections, closed loop",
        ["target", "status", "CPU us/refusal", "refusals/s", "p50 ms", "p99 ms"],
    )
    lab.behave(delay_ms=600_000)
    with ExitStack() as stack:
        targets = [
            stack.enter_context(lab.start(name, slots=1, waiting=1, wait_ms=600_000))
            for name in lab.targets
            if name in {"governor", "nginx", "smg"}  # the stock path never refuses, HAProxy only by time
        ]
        for running in targets:
            stack.enter_context(_occupied(running, 1 if running.name == "nginx" else 2))
        for name, runs in lab.rounds_of(targets, connections=8).items():
            status = max(runs[0].result.answers, default="-")
            table.rows.append(
                [
                    name,
                    status,
                    middle(runs, _cpu_us),
                    middle(runs, _per_second),
                    middle(runs, _ms("p50", status)),
                    middle(runs, _ms("p99", status)),
                ]
            )
    return [table]


@contextmanager
def _occupied(running: Running, count: int) -> Iterator[None]:
    """So many requests that are not answered while the block lasts."""
    with ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            sock.sendall(running.wire())
            sock.settimeout(0.5)
            try:
                answer = sock.recv(100)
            except TimeoutError:
                continue
            raise RuntimeError(f"{running.name} was to be kept busy, and answered: {answer!r}")
        yield


def _memory_mib(running: Running) -> float:
    return running.server.memory_bytes() / _MIB if running.server else float("nan")


def _not_200(seen: Measured) -> int:
    return seen.result.total - seen.result.answers.get("200", 0) + seen.result.failures


def _ms(percentile: str, status: str = "200") -> Callable[[Measured], float]:
    return lambda each: each.result.ms(percentile, status)


def _first_byte(percentile: str) -> Callable[[Measured], float]:
    return lambda each: each.result.first_byte[percentile]


def _cpu_us(seen: Measured) -> float:
    return seen.cpu_us


def _per_second(seen: Measured) -> float:
    return seen.result.per_second
