"""`governor check` names what is missing on a backend, and survives whatever answers there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import httpx
import pytest
import trio

from governor.check import MAX_BODY_BYTES, MAX_REQUESTS, CheckReport, check
from governor.config import parse_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from governor.config import Config

TEXT_IN = {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1], "optional": False}
TEXT_OUT = {"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]}
NUMBER = {"name": "N", "data_type": "TYPE_INT32", "dims": [1], "optional": False}


def model_config(**changes: Any) -> dict[str, Any]:
    """A model's configuration in the shape that Triton 2.51 reports."""
    return {
        "name": "chat",
        "platform": "",
        "backend": "python",
        "max_batch_size": 0,
        "input": [TEXT_IN],
        "output": [TEXT_OUT],
        "instance_group": [{"name": "chat_0", "kind": "KIND_CPU", "count": 2, "gpus": []}],
        **changes,
    }


@dataclass
class FakeTriton:
    """Answers as Triton does; `answers` overrides single paths with (status, body)."""

    model: dict[str, Any] = field(default_factory=model_config)
    name: str = "triton"
    extensions: list[str] = field(default_factory=lambda: ["statistics", "trace"])
    trace_level: list[str] = field(default_factory=lambda: ["OFF"])
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.path))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await trio.lowlevel.checkpoint()
        self.busy -= 1
        status, body = self.answers.get(request.url.path) or self.answer(request.url.path)
        return httpx.Response(status, stream=httpx.ByteStream(body))

    def answer(self, path: str) -> tuple[int, bytes]:
        name = self.model["name"]
        known: dict[str, object] = {
            "/v2": {"name": self.name, "version": "2.51.0", "extensions": self.extensions},
            "/v2/repository/index": [{"name": name, "version": "1", "state": "READY"}, {"name": "other"}],
            "/v2/trace/setting": {"trace_level": self.trace_level, "log_frequency": "0"},
            f"/v2/models/{name}/ready": {},
            f"/v2/models/{name}/config": self.model,
            f"/v2/models/{name}/stats": {"model_stats": [{"name": name, "version": "1"}]},
        }
        if path == "/metrics":
            return (
                200,
                f'# HELP nv_inference_request_success x\nnv_inference_request_success{{model="{name}"}} 0\n'.encode(),
            )
        if path in known:
            return 200, json.dumps(known[path]).encode()
        return 404, b'{"error":"Request for unknown model is not found"}'

    async def check(self, config: Config) -> CheckReport:
        return await check(config, transport=httpx.MockTransport(self))


def config(model: str = "", backend: str = 'metrics_url = "http://triton:8002"', name: str = "chat") -> Config:
    kind = "" if "kind" in model else 'kind = "generate"\n'
    slots = "" if "slots" in model else "slots = 1\n"
    return parse_config(
        f'[[backends]]\nname = "triton"\nurl = "http://triton:8000"\n{backend}\n'
        f'[[models]]\nname = "{name}"\nbackend = "triton"\n{kind}{slots}{model}\n'
    )


def bad(report: CheckReport) -> list[str]:
    return [finding.line() for finding in report.findings if finding.level != "ok"]


def only_bad(report: CheckReport) -> str:
    found = bad(report)
    assert len(found) == 1, found
    assert ". To do: " in found[0] or "? To do: " in found[0], "a finding that is not ok says what to do"
    return found[0]


async def test_a_backend_that_fits_has_only_ok_findings_and_nothing_is_changed_on_it() -> None:
    triton = FakeTriton()
    report = await triton.check(config())
    assert report.ok
    assert bad(report) == []
    assert report.lines()[-1] == "0 errors, 0 warnings, 6 ok"
    assert report.lines()[0] == 'ok      backend "triton": http://triton:8000 is "triton", version "2.51.0"'
    assert {asked for asked in triton.asked if asked[0] != "GET"} == {("POST", "/v2/repository/index")}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"hello"),
        (200, b"{}"),
        (200, b"[]"),
        (200, b"[" * 100_000),
        (404, b""),
        (500, b'{"error":"x"}'),
        (302, b""),
    ],
)
async def test_another_server_at_the_url_is_an_error(status: int, body: bytes) -> None:
    report = await FakeTriton(answers={"/v2": (status, body)}).check(config())
    assert not report.ok
    lines = bad(report)
    assert lines[0].startswith('error   backend "triton": http://triton:8000 answers, but not as a KServe v2 server')
    assert 'its models were not checked: "chat"' in lines[1]
    assert len(lines) == 2


async def test_without_statistics_nothing_can_be_proven() -> None:
    report = await FakeTriton(extensions=["trace"]).check(config())
    assert "it offers no statistics extension" in only_bad(report)
    assert not report.ok


async def test_closed_statistics_of_a_model_are_an_error() -> None:
    report = await FakeTriton(answers={"/v2/models/chat/stats": (403, b"")}).check(config())
    line = only_bad(report)
    assert line.startswith('error   model "chat": the statistics of "chat" cannot be read')
    assert "it answered 403" in line


NO_TRACE = {"/v2/trace/setting": (403, b'{"error":"restricted"}')}


@pytest.mark.parametrize(
    ("wanted", "name", "answers", "level", "words"),
    [
        ("auto", "triton", {}, "ok", "its trace settings can tell"),
        ("auto", "6f1c", NO_TRACE, "ok", "its --id can tell"),
        ("auto", "triton", NO_TRACE, "warning", 'on_fall = "seen"'),
        ("trace", "6f1c", NO_TRACE, "error", 'it answered 403 ("restricted")'),
        ("id", "triton", {}, "error", "started without --id"),
        ("id", "6f1c", {}, "ok", "its --id can tell"),
        ("none", "triton", {}, "ok", "boot identity is switched off"),
    ],
)
async def test_e8_boot_identity_is_checked_as_configured(
    wanted: str, name: str, answers: dict[str, tuple[int, bytes]], level: str, words: str
) -> None:
    backend = f'metrics_url = "http://triton:8002"\n[backends.evidence]\nboot_identity = "{wanted}"'
    report = await FakeTriton(name=name, answers=dict(answers)).check(config(backend=backend))
    (finding,) = [each for each in report.findings if words in each.sentence]
    assert finding.level == level
    assert len(report.findings) == 6


async def test_e8_a_mark_in_the_trace_settings_needs_tracing_off() -> None:
    assert "tracing is on" in only_bad(await FakeTriton(trace_level=["TIMESTAMPS"]).check(config()))


async def test_e7_no_metrics_url_is_a_warning() -> None:
    report = await FakeTriton().check(config(backend=""))
    assert report.ok
    assert "no metrics_url" in only_bad(report)


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"", "it answered 404"),
        (200, b"# nothing", "nv_inference_request_success is not there"),
        (200, b"\xff", "not there"),
    ],
)
async def test_e7_a_metrics_url_without_the_counter_is_an_error(status: int, body: bytes, why: str) -> None:
    report = await FakeTriton(answers={"/metrics": (status, body)}).check(config())
    assert why in only_bad(report)
    assert not report.ok


async def test_e7_metrics_of_another_process_are_noticed() -> None:
    other = b'nv_inference_request_success{model="other",version="1"} 3\n'
    report = await FakeTriton(answers={"/metrics": (200, other)}).check(config())
    assert 'model "chat": http://triton:8002/metrics does not count "chat"' in only_bad(report)


NOT_READY = {"/v2/models/chat/ready": (400, b'{"error":"Model version not ready"}')}


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([{"name": "chap"}, {"name": "x"}], 'has no model "chat"; did you mean "chap"? To do'),
        ([{"name": "x"}], 'has no model "chat"; it has: "x"'),
        ([], 'has no model "chat"; it has: none'),
        ([{"name": "chat"}], 'is in the repository of backend "triton" but not loaded. To do: load it'),
        ([{"name": "chat", "state": "UNAVAILABLE", "reason": "unloaded"}], 'not loaded: "unloaded"'),
        ([{"name": "chat", "version": "2", "state": "READY"}], 'is not ready on backend "triton"; loaded are: 2'),
        ([3, {"name": 3}, None], "has no model"),
        ({"error": "x"}, '"chat" is not ready on backend "triton": it answered 400 ("Model version not ready")'),
    ],
)
async def test_a_model_that_is_not_ready_is_explained_from_the_repository_index(index: object, words: str) -> None:
    answers = {
        **NOT_READY,
        "/v2/models/chat/config": (404, b""),
        "/v2/repository/index": (200, json.dumps(index).encode()),
    }
    report = await FakeTriton(answers=answers).check(config())
    assert words in only_bad(report)
    assert not report.ok


async def test_the_configured_version_is_the_one_that_is_asked_for() -> None:
    triton = FakeTriton()
    report = await triton.check(config('triton_version = "3"'))
    assert ("GET", "/v2/models/chat/versions/3/ready") in triton.asked
    assert '"chat" version 3 is not ready' in only_bad(report)


async def test_odd_model_names_are_quoted_in_urls() -> None:
    triton = FakeTriton(model=model_config(name="a?b#c%41"))
    report = await triton.check(config('triton_model = "a?b#c%41"'))
    assert ("GET", "/v2/models/a?b#c%41/ready") in triton.asked
    assert report.ok


async def test_a_closed_model_configuration_is_a_warning() -> None:
    report = await FakeTriton(answers={"/v2/models/chat/config": (403, b"")}).check(config())
    assert "its configuration cannot be read: it answered 403" in only_bad(report)
    assert report.ok


DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("infer", "Triton refuses plain infer calls"),
        ("generate", "more or less than one answer"),
        ("generate_stream", None),
    ],
)
async def test_e12_a_decoupled_model_is_called_with_generate_stream(kind: str, words: str | None) -> None:
    report = await FakeTriton(model=model_config(**DECOUPLED)).check(config(f'kind = "{kind}"'))
    if words is None:
        assert bad(report) == []
    else:
        assert words in only_bad(report)
        assert not report.ok


async def test_a_model_that_is_not_decoupled_may_stream() -> None:
    assert bad(await FakeTriton().check(config('kind = "generate_stream"'))) == []


async def test_e12_disconnecting_from_a_decoupled_model_leaves_no_proof() -> None:
    text = 'kind = "generate_stream"\non_abandon = "disconnect"'
    assert "proves nothing" in only_bad(await FakeTriton(model=model_config(**DECOUPLED)).check(config(text)))
    assert bad(await FakeTriton().check(config(text))) == []


@pytest.mark.parametrize(
    ("changes", "model", "level", "words"),
    [
        ({"input": [NUMBER]}, "", "error", 'it has no input "text_input", so prompts cannot be sent'),
        ({"input": []}, 'kind = "infer"', "warning", "call it through /v2 only"),
        ({"input": []}, 'kind = "infer"\ntext_input = "text_input"', "error", "it has no input"),
        ({"output": [NUMBER]}, "", "error", 'it has no output "text_output"'),
        ({"input": [{**TEXT_IN, "name": "PROMPT"}]}, "", "error", 'set text_input to its text input: "PROMPT"'),
        (
            {"input": [{**NUMBER, "name": "text_input"}]},
            "",
            "error",
            'its input "text_input" is INT32, not text (BYTES)',
        ),
        ({"input": [TEXT_IN, NUMBER]}, "", "error", 'it also needs the inputs "N"'),
        ({"input": [TEXT_IN, NUMBER]}, 'kind = "infer"\nparameters = { N = 1 }', "error", "To do: make them optional"),
        ({"input": [TEXT_IN, NUMBER]}, "parameters = { N = 1 }", "ok", ""),
        ({"input": [TEXT_IN, {**NUMBER, "optional": True}]}, "", "ok", ""),
        ({"output": [TEXT_OUT, NUMBER]}, "", "ok", ""),
    ],
)
async def test_the_text_tensors_exist_hold_text_and_are_enough(
    changes: dict[str, Any], model: str, level: str, words: str
) -> None:
    report = await FakeTriton(model=model_config(**changes)).check(config(model))
    if level == "ok":
        assert bad(report) == []
    else:
        line = only_bad(report)
        assert line.startswith(level)
        assert words in line


def group(count: int, *gpus: int) -> dict[str, Any]:
    return {"kind": "KIND_GPU", "count": count, "gpus": list(gpus)}


@pytest.mark.parametrize(
    ("changes", "slots", "room"),
    [
        ({"instance_group": [group(1)]}, 1, None),
        ({"instance_group": [group(1)]}, 2, "1 call at once (1 instance)"),
        ({"instance_group": [group(2, 0, 1)]}, 4, None),
        ({"instance_group": [group(2, 0, 1)]}, 5, "4 calls at once (4 instances)"),
        ({"instance_group": [group(1), group(2)]}, 4, "3 calls at once"),
        ({"max_batch_size": 8}, 3, "2 calls at once (2 instances)"),
        ({"max_batch_size": 8, "dynamic_batching": {}}, 16, None),
        ({"max_batch_size": 8, "dynamic_batching": {}}, 17, "16 calls at once (2 instances of up to 8 requests)"),
        ({"backend": "vllm"}, 100, None),
        ({"instance_group": []}, 100, None),
        ({"instance_group": [{**group(1), "passive": True}]}, 100, None),
        ({"instance_group": [{**group(1), "passive": True}, group(2)]}, 3, "2 calls at once"),
        ({"instance_group": [{"gpus": [0, 1]}]}, 3, "2 calls at once"),
    ],
)
async def test_more_slots_than_executions_is_a_warning(changes: dict[str, Any], slots: int, room: str | None) -> None:
    report = await FakeTriton(model=model_config(**changes)).check(config(f"slots = {slots}"))
    assert report.ok
    if room is None:
        assert bad(report) == []
    else:
        line = only_bad(report)
        assert f"slots = {slots}, but it runs up to {room}" in line
        assert "wait inside Triton" in line


async def test_e12_an_ensemble_is_recognised() -> None:
    ensemble = model_config(platform="ensemble", backend="", instance_group=[], ensemble_scheduling={"step": []})
    assert "one failed request counts twice" in only_bad(await FakeTriton(model=ensemble).check(config("slots = 9")))


@pytest.mark.parametrize("configured", ["3", "[]", "null", "{}", '{"name": 3}', "nonsense"])
async def test_a_configuration_that_is_none_is_survived(configured: str) -> None:
    answers = {"/v2/models/chat/config": (200, configured.encode())}
    assert "its configuration cannot be read" in only_bad(await FakeTriton(answers=answers).check(config()))


@pytest.mark.parametrize("key", ["input", "output", "instance_group", "model_transaction_policy", "max_batch_size"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [None], [{}], -1, True])
async def test_odd_model_configurations_are_survived(key: str, value: object) -> None:
    assert (await FakeTriton(model=model_config(**{key: value})).check(config())).findings


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("made/audit.jsonl", None),
        ("made/there.jsonl", None),
        ("none/audit.jsonl", "there is no folder"),
        ("made", "it is a folder"),
        ("link", "it is a link"),
    ],
)
async def test_an_audit_file_that_cannot_be_written_is_a_warning(tmp_path: Path, path: str, why: str | None) -> None:
    """A7: else the first to hear of it is the operator whose act is refused."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "there.jsonl").touch()
    (tmp_path / "link").symlink_to(tmp_path / "made" / "there.jsonl")
    backend = f'[server]\naudit_file = "{tmp_path / path}"'
    report = await FakeTriton().check(config(backend=backend))
    [finding] = [each for each in report.findings if each.subject == "server.audit_file"]
    assert finding.level == ("ok" if why is None else "warning")
    assert (why or "can be written") in finding.sentence
    assert not (tmp_path / "made" / "audit.jsonl").exists(), "a check makes nothing"


async def test_an_audit_file_that_cannot_even_be_looked_at_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("governor.check_files.Path.is_symlink", refuse)
    report = await FakeTriton().check(config(backend='[server]\naudit_file = "/root/audit.jsonl"'))
    assert "cannot be written by this user: Permission denied;" in bad(report)[0]


async def test_findings_keep_the_order_of_the_configuration_and_few_requests_run_at_once() -> None:
    text = "".join(f'[[backends]]\nname = "b{n}"\nurl = "http://b{n}:8000"\n' for n in range(12))
    text += "".join(
        f'[[models]]\nname = "m{n}"\ntriton_model = "chat"\nbackend = "b{n}"\nslots = 1\nkind = "infer"\n'
        for n in range(12)
    )
    triton = FakeTriton()
    report = await triton.check(parse_config(text))
    subjects = list(dict.fromkeys(finding.subject for finding in report.findings))
    assert subjects == [subject for n in range(12) for subject in (f'backend "b{n}"', f'model "m{n}"')]
    assert 1 < triton.busiest <= MAX_REQUESTS


@pytest.fixture
async def serve(nursery: trio.Nursery) -> AsyncIterator[Callable[..., Awaitable[Config]]]:
    """Serves a connection handler on a real socket; returns a configuration whose backend is there."""

    async def start(handler: Callable[[trio.SocketStream], Awaitable[None]]) -> Config:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, handler, [listener])
        return parse_config(
            f'[[backends]]\nname = "b"\nurl = "http://127.0.0.1:{port}"\n'
            '[[models]]\nname = "m"\nbackend = "b"\nslots = 1\nkind = "infer"\n'
        )

    yield start
    nursery.cancel_scope.cancel()


def sending(*parts: bytes) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def handler(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        for part in parts:
            await stream.send_all(part)

    return handler


async def hang(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await trio.sleep_forever()


async def drip(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
    while True:
        await stream.send_all(b"x")
        await trio.sleep(0.05)


async def flood(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n")
    try:
        while True:
            await stream.send_all(bytes(65536))
    except trio.BrokenResourceError:
        return


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (hang, "no complete answer within 0.3 s"),
        (drip, "no complete answer within 0.3 s"),
        (flood, f"an answer of more than {MAX_BODY_BYTES} bytes"),
        (sending(), "no valid HTTP answer"),
        (sending(b"SSH-2.0-OpenSSH_9.2\r\n"), "no valid HTTP answer"),
        (sending(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"), "no valid HTTP answer"),
        (sending(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"), "not as a KServe v2"),
        (sending(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"), "not as a KServe v2 server"),
    ],
)
async def test_whatever_is_at_the_url_the_check_ends_with_a_finding(
    serve: Callable[..., Awaitable[Config]], handler: Callable[[trio.SocketStream], Awaitable[None]], words: str
) -> None:
    where = await serve(handler)
    with trio.fail_after(5):
        report = await check(where, timeout_s=0.3)
    assert words in bad(report)[0]
    assert not report.ok


async def test_https_where_plain_http_is_spoken_is_told_in_words(serve: Callable[..., Awaitable[Config]]) -> None:
    plain = await serve(sending(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"))
    url = plain.backends[0].url.replace("http:", "https:")
    with trio.fail_after(5):
        model = '[[models]]\nname = "m"\nbackend = "b"\nslots = 1\nkind = "infer"\n'
        report = await check(parse_config(f'[[backends]]\nname = "b"\nurl = "{url}"\n{model}'), timeout_s=2)
    line = bad(report)[0]
    assert "SSL" in line
    assert "Triton itself speaks no TLS, so it is http://" in line


async def test_a_closed_port_and_an_unknown_host_are_findings() -> None:
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        text = (
            f'[[backends]]\nname = "a"\nurl = "http://127.0.0.1:{port}"\n'
            '[[backends]]\nname = "b"\nurl = "http://nowhere.invalid:1"\n'
            '[[models]]\nname = "m"\nbackend = "b"\nslots = 1\nkind = "infer"\n'
        )
        lines = bad(await check(parse_config(text), timeout_s=2))
    assert len(lines) == 3
    assert "no connection" in lines[0]
    assert 'backend "b": http://nowhere.invalid:1 cannot be used: no ' in lines[1]
