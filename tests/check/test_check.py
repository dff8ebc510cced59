"""`governor check` names what is missing on a backend, and survives whatever answers there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

import pytest

from governor.check import MAX_REQUESTS
from governor.config import parse_config
from tests.check.fake import FakeTriton, bad, config, model_config, only_bad

if TYPE_CHECKING:
    from pathlib import Path


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
