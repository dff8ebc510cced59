"""The bench must not flatter: what it measures with is held against servers whose behaviour is known."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from bench import admission
from bench.http1 import Answer, request
from bench.load import Plan, run
from bench.processes import Server, get
from bench.targets import INFER
from bench.truth import Truth
from governor.demo.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    with Server("backend", [sys.executable, "-m", "bench.backend", "--port", str(port)], folder=tmp_path) as server:
        server.wait_for(port, "/v2/health/ready")
        yield port


def _truth(port: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(get(port, "/truth")[1])
    return told


def _truth_where(port: int, *, running: int) -> dict[str, Any]:
    """The record as soon as so many run."""
    give_up_s = time.monotonic() + 10
    while (truth := _truth(port))["running"] != running:
        assert time.monotonic() < give_up_s, truth
    return truth


def test_a_stall_is_charged_to_every_request_that_was_due_meanwhile() -> None:
    """A closed loop would see one slow request; the callers of a real service would all have waited."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve_one_connection_with_a_stall, args=(listener, 0.5), daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        result = run(Plan(port=port, path="/", rate_per_s=100, connections=1, seconds=1.0, warm_up_s=0.0))
    slow = [ms for percent, ms in result.curve if ms > 50]
    assert len(slow) > 0.25 * len(result.curve), "about half of the requests were due in the half second of the stall"


def _serve_one_connection_with_a_stall(listener: socket.socket, stall_s: float) -> None:
    connection, _ = listener.accept()
    with connection:
        for number in range(10_000):
            if not connection.recv(65536):
                return
            if number == 10:
                time.sleep(stall_s)
            connection.sendall(_OK)


def test_the_backend_computes_on_when_its_client_leaves(backend: int) -> None:
    get(backend, "/truth", json.dumps({"delay_ms": 300}).encode())
    with socket.create_connection(("127.0.0.1", backend)) as leaver:
        leaver.sendall(request("POST", "x", INFER, b"{}"))
        assert _truth_where(backend, running=1)["ended"] == 0
    truth = _truth_where(backend, running=0)
    assert truth["ended"] == 1
    assert truth["service_ms"]["p50"] >= 300, "it took its whole time"


def test_the_record_tells_how_busy_the_instances_were() -> None:
    """One from 10 to 11, another from 10.5 to 12: 2.5 in two seconds."""
    truth = Truth()
    for by, now_s in ((1, 10.0), (1, 10.5), (-1, 11.0), (-1, 12.0)):
        truth.change(by, now_s)
    assert truth.told()["busy"] == pytest.approx(1.25)


def test_instances_bound_what_runs(backend: int) -> None:
    get(backend, "/truth", json.dumps({"delay_ms": 20, "instances": 2}).encode())
    result = run(Plan(port=backend, path=INFER, connections=4, seconds=0.6, warm_up_s=0.0))
    truth = _truth(backend)
    assert result.failures == result.unanswered == 0
    assert truth["peak"] == 2
    assert 0 < truth["busy"] <= 2.0


def test_the_kit_sees_what_no_limit_means(backend: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that lets everything through is no gateway: the backend itself stands in for it."""
    monkeypatch.setattr(admission, "WORK_MS", 1_200)
    gateway = admission.Gateway("127.0.0.1", backend, request("POST", "x", INFER, b"{}"), backend)
    assert admission.examine(gateway, "drop") == admission.Outcome("drop", 2, 2, ("200",))


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_answers_are_read_whole_wherever_they_are_cut(cut: int) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    for wire in (_OK, chunked, b"HTTP/1.1 100 Continue\r\n\r\n" + _OK):
        answer = Answer()
        answer.feed(wire[:cut])
        assert not answer.complete or cut >= len(wire)
        answer.feed(wire[cut:])
        assert answer.complete
        assert answer.status == 200
