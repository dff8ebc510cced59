"""The commands of the client: what they print, what they exit with, and what they leave behind."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from rich.console import Console

from api.cli import main
from governor.cli import board, tables
from governor.cli.running import Exit, clean
from governor.cli.tables import HEADINGS, duration
from governor.cli.watch import Picture
from governor.client import AdminState, ClaimState, CreateSessionRequest, SyncAdminClient, SyncDaemonClient
from tests.client.conftest import ADMIN_TOKEN
from tests.client.fake import SESSION, accept, chunk, complete, fake_server, refuse, tell, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.errors import JsonValue

    Command = Callable[..., tuple[int, str, str]]

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process; its exit code, standard output and standard error."""
    for name in ("GOVERNOR_URL", "GOVERNOR_TOKEN", "GOVERNOR_ADMIN_TOKEN", "QWEN_SERVER_TOKEN", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, url: str | None = None, stdin: bytes | None = None) -> tuple[int, str, str]:
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main([*arguments, *(("--url", url) if url is not None else ())])
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


# Prompts


def test_an_answer_goes_to_standard_output_and_leaves_no_session_behind(command: Command, governor_url: str) -> None:
    with SyncDaemonClient(governor_url) as client:
        before = board.value_of(client.metrics(), "vig_sessions")
        code, out, err = command("prompt", "Alice opened the door", "--model", "short", url=governor_url)
        assert (code, err) == (0, "")
        assert len(out.split()) > 3
        assert out.endswith("\n")
        code, told, err = command("prompt", "-", "--model", "short", "--json", url=governor_url,
                                  stdin=b"Alice opened the door")  # fmt: skip
        assert (code, err) == (0, "")
        answer = json.loads(told)
        assert {*answer} == {"sessionId", "promptId", "stopReason", "text", "complete"}
        assert answer["text"] + "\n" == out
        assert board.value_of(client.metrics(), "vig_sessions") == before


def test_a_session_is_kept_and_gone_on_with(command: Command, governor_url: str) -> None:
    code, _, err = command("prompt", "What a day", "--model", "sentiment", "--keep", url=governor_url)
    session = err.removeprefix("session: ").strip()
    with SyncDaemonClient(governor_url) as client:
        assert command("prompt", "What a day", "--session", session, "--json", url=governor_url)[0] == code == 0
        turns = client.load_session(session).compacted_replay
        assert [event.type for event in turns].count("turn_complete") == 2
        assert client.session_status(session).client_count == 2  # who made it, and this test's own load
        client.close_session(session)
    assert command("prompt", "x", "--session", session, "--model", "sentiment", url=governor_url)[0] == Exit.USAGE
    code, _, err = command("prompt", "x", "--session", session, url=governor_url)
    assert (code, "No session with id" in err) == (Exit.FAILED, True)


def test_a_prompt_that_is_not_done_in_time_is_cancelled(command: Command, governor_url: str) -> None:
    arguments = ("prompt", "0.4 seconds", "--model", "slow", "--timeout", "0.1")
    assert command(*arguments, url=governor_url) == (
        Exit.TIMED_OUT, "", "governor: not done within 0.1 s; cancelled\n",
    )  # fmt: skip
    code, out, _ = command(*arguments, "--json", url=governor_url)
    assert (code, json.loads(out)["code"]) == (Exit.TIMED_OUT, "timeout")


@pytest.mark.parametrize(
    ("prompt", "events", "code", "fields"),
    [
        (refuse(503, {"error": "full", "code": "prompt_queue_full", "limit": 5, "pendingCount": 5}), None,
         Exit.TRY_LATER, {"code": "prompt_queue_full", "limit": 5, "pendingCount": 5}),
        (refuse(503, {"error": "x", "code": "daemon_draining"}), None, Exit.TRY_LATER, {"code": "daemon_draining"}),
        (refuse(404, {"error": "x", "code": "session_not_found"}), None, Exit.FAILED, {"status": 404}),
        (None, tell(complete(1, "p1", "cancelled")), Exit.FAILED, {"stopReason": "cancelled"}),
        (None, refuse(404, {"error": "x"}), Exit.FAILED, {"status": 404}),
        (lambda _, wire: wire.reset(), None, Exit.NOT_REACHED, {"code": "not_reached"}),
    ],
)  # fmt: skip
def test_what_goes_wrong_has_its_exit_code(prompt: Any, events: Any, code: int, fields: Any, command: Command) -> None:
    with fake_server(prompt=prompt, events=events) as server:
        got, out, err = command("prompt", "hello", "--json", url=server.url)
        assert (got, err) == (code, "")
        assert json.loads(out).items() >= fields.items()
        got, out, err = command("prompt", "hello", url=server.url)
        assert (got, out) == (code, "")
        assert err.startswith("governor: ")
        assert err.count("\n") == 1


def test_a_server_that_goes_away_meanwhile_is_told_of_once(command: Command) -> None:
    """Its sessions go with it: that this one could not be left is no news."""
    away = (f"DELETE /session/{SESSION}", lambda _, wire: wire.reset())
    with fake_server(prompt=refuse(503, {"error": "x", "code": "daemon_draining"}), more=(away,)) as server:
        code, out, err = command("prompt", "hello", url=server.url)
        assert server.count(f"DELETE /session/{SESSION}") == 1
    assert (code, out, err) == (Exit.TRY_LATER, "", f"governor: POST /session/{SESSION}/prompt: x\n")


def test_nobody_listens(command: Command) -> None:
    code, out, err = command("status", url="http://127.0.0.1:9")
    assert (code, out) == (Exit.NOT_REACHED, "")
    assert err.startswith("governor: GET /readyz: cannot connect to http://127.0.0.1:9")


@pytest.mark.parametrize(
    "arguments",
    [("prompt",), ("prompt", "x", "--timeout", "0"), ("prompt", "x", "--timeout", "nan"),
     ("prompt", "x", "--deadline-ms", "0"), ("prompt", "x", "--url", "localhost"), ("prompt", "x", "--token", "a b"),
     ("watch", "--interval", "-1"), ("admin",),
     ("admin", "restart", "--reason", "x"), ("admin", "restart", "a:b", "--all", "--reason", "x"),
     ("admin", "restart", "--all", "--expected-epoch", "1", "--reason", "x"), ("admin", "restart", "a:b"),
     ("admin", "release", "a:b", "x", "--reason", "x"), ("completion", "tcsh"), ("prompts",)],
    ids=" ".join,
)  # fmt: skip
def test_command_lines_that_cannot_be_carried_out(arguments: tuple[str, ...], command: Command,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin", Terminal())
    code, out, err = command(*arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert err


class Terminal(io.StringIO):
    """Standard input with somebody in front of it."""

    def isatty(self) -> bool:
        return True


def test_standard_input_that_is_no_text(command: Command) -> None:
    code, _, err = command("prompt", stdin=b"\xff\xfe", url="http://127.0.0.1:9")
    assert (code, "no UTF-8" in err) == (Exit.USAGE, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_prompt_and_closes_the_session(number: int, code: int) -> None:
    with fake_server(prompt=accept(), events=tell(chunk(1, "p1", "one"))) as server:
        process = start("prompt", "hello", "--url", server.url, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read(3) == b"one"
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.stdout.read() == b"\n"
        assert server.count(f"DELETE /session/{SESSION}/pending-prompts/p1") == 1
        assert server.count(f"DELETE /session/{SESSION}") == 1


def test_whoever_reads_the_output_may_leave() -> None:
    pieces = (chunk(number, "p1", "x" * 10_000) for number in range(1, 50))
    with fake_server(events=tell(*pieces, complete(50, "p1"))) as server:
        process = start("prompt", "hello", "--url", server.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(20) == Exit.PIPE_CLOSED
        assert process.stderr.read() == b""


def test_a_terminal_that_cannot_show_every_character_loses_no_answer(governor_url: str) -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}

    def run(*arguments: str, url: str) -> bytes:
        process = start(*arguments, "--url", url, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ascii_only)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, b"")
        return out

    for options, out in (((), b"it?ll do\n"), (("--json",), b'"text": "it\\u2019ll do"')):
        with fake_server(events=tell(chunk(1, "p1", "it\u2019ll do"), complete(2, "p1"))) as server:
            assert out in run("prompt", "hello", *options, url=server.url)
    assert re.search(rb"^triton:sentiment +\.\. 0/2 ", run("status", url=governor_url), re.MULTILINE)


@pytest.mark.parametrize("arguments", [("status",), ("watch", "--once"), ("watch", "--once", "--json")])
def test_whoever_reads_a_table_may_leave(arguments: tuple[str, ...], governor_url: str) -> None:
    """As in `governor status | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*arguments, "--url", governor_url, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (Exit.PIPE_CLOSED, b"")


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "api.cli", *arguments], **options)


# Status and watch


def test_status_says_whether_the_server_can_be_used(command: Command, governor_url: str) -> None:
    code, out, err = command("status", url=governor_url)
    assert (code, err) == (0, "")
    assert re.search(r"^triton:sentiment +\S+ 0/2 ", out, re.MULTILINE)
    assert "\x1b" not in out
    code, out, _ = command("status", "--json", url=governor_url)
    told = json.loads(out)
    assert (code, told["ready"], told["models"]["slow"]["usable"]) == (0, True, True)
    assert [row["slots"] for row in told["identities"]] == [2, 1, 1]
    not_ready = refuse(503, {"ready": False, "models": {"m": {"usable": False, "reason": "gone"}}})
    more = (
        ("GET /readyz", not_ready),
        ("GET /capabilities", refuse(200, {"governorVersion": "1"})),
        ("GET /metrics", refuse(200, None)),
    )
    with fake_server(more=more) as server:
        code, out, _ = command("status", url=server.url)
        assert (code, "not ready" in out, "gone" in out) == (Exit.NOT_READY, True, True)


def test_the_metrics_and_the_operators_state_give_the_same_rows(governor_url: str) -> None:
    with SyncAdminClient(governor_url, token=ADMIN_TOKEN) as admin, SyncDaemonClient(governor_url) as client:
        as_operator = [board.row_of(identity) for identity in admin.state().identities]
        from_metrics = board.rows_of(client.metrics())
    assert [row.identity for row in as_operator] == ["triton:sentiment", "triton:slow", "triton:storyteller"]
    assert [(row.identity, row.slots) for row in as_operator] == [(row.identity, row.slots) for row in from_metrics]


def test_rows_out_of_metrics() -> None:
    metrics = """# HELP vig_slots x
vig_slots{backend="a",model="m\\"1"} 3.0
vig_free_slots{backend="a",model="m\\"1"} 1.0
vig_claims{backend="a",model="m\\"1",state="running"} 1.0
vig_claims{backend="a",model="m\\"1",state="quarantined"} 1.0
vig_waiting_calls{backend="a",model="m\\"1"} 7.0
vig_contested{backend="a",model="m\\"1"} 1.0
vig_released_unproven_total{backend="a",model="m\\"1"} 2.0
vig_something{backend="b",model="n"} 2.0
vig_sessions 4.0
"""
    (row,) = board.rows_of(metrics)
    assert (row.identity, row.slots, row.free, row.waiting, row.pending) == ('a:m"1', 3, 1, 7, None)
    assert row.states == {"running": 1, "timed_out": 0, "reconciling": 0, "awaiting_baseline": 0, "quarantined": 1}
    assert row.notes == ("somebody else calls the model", "2 released without proof")
    assert (board.value_of(metrics, "vig_sessions"), board.value_of(metrics, "vig_none")) == (4, 0)
    assert board.rows_of('vig_slots{ no\nvig_slots{backend="a",model="b"} x')[0].slots == 0


def test_watching_once_with_and_without_the_operators_token(
    command: Command, governor_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = command("watch", "--once", url=governor_url)
    assert (code, "triton:slow" in out) == (0, True)
    monkeypatch.setenv("GOVERNOR_ADMIN_TOKEN", ADMIN_TOKEN)
    code, out, _ = command("watch", "--once", "--json", url=governor_url)
    told = json.loads(out)
    assert (code, told["trouble"], told["identities"][0]["pendingPrompts"]) == (0, None, 0)


@pytest.mark.parametrize("token", [None, ADMIN_TOKEN])
def test_watching_shows_a_call_as_it_comes_and_goes(token: str | None, governor_url: str) -> None:
    """On a terminal, as a person sees it."""
    inside, outside = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "LINES": "40", "TERM": "xterm", "NO_COLOR": "1"}
    if token is not None:
        environment["GOVERNOR_ADMIN_TOKEN"] = token
    process = start("watch", "--interval", "0.1", "--url", governor_url, stdin=outside, stdout=outside,
                    stderr=subprocess.PIPE, env=environment)  # fmt: skip
    os.close(outside)
    seen = b""

    def shows(pattern: bytes) -> bool:
        nonlocal seen
        seen += os.read(inside, 65536)
        return re.search(pattern, re.sub(rb"\x1b\[[\d;?]*[A-Za-z]", b"", seen)) is not None

    with SyncDaemonClient(governor_url) as client:
        wait_until(lambda: shows(rb"triton:slow\s+\S+ 0/1 "), lambda: repr(seen))
        session = client.create_or_attach_session(CreateSessionRequest(model_service_id="slow"))
        with client.stream(session.session_id, "0.8 seconds") as turn:
            wait_until(lambda: shows(rb"triton:slow\s+\S+ 1/1 +1 "), lambda: repr(seen))
            turn.result()
    process.send_signal(signal.SIGINT)
    while True:
        try:
            if not os.read(inside, 65536):
                break
        except OSError:
            break  # the terminal's other end is closed
    assert process.wait(20) == 130
    os.close(inside)
    assert process.stderr is not None
    assert process.stderr.read() == b""


# What to do about an error


@pytest.mark.parametrize(
    ("arguments", "status", "body", "to_do"),
    [
        (("status",), 401, {"error": "Unauthorized", "code": "unauthorized"}, "set GOVERNOR_TOKEN to the governor's"),
        (("status",), 404, {"error": "Not Found"}, "look whether {url} is a governor; --url or GOVERNOR_URL says"),
        (("status",), 501, "<html>", "look whether {url} is a governor; --url or GOVERNOR_URL says"),
        (("admin", "audit"), 404, {"error": "no", "code": "not_found"}, "set tokens.admin in the governor's"),
        (("status",), 500, {"error": "broken", "code": "internal_error"}, None),
        (("status",), 200, "<html>", "look whether {url} is a governor; --url or GOVERNOR_URL says"),
    ],
)
def test_an_error_says_what_to_do_where_there_is_something(
    command: Command, arguments: tuple[str, ...], status: int, body: Any, to_do: str | None
) -> None:
    path = "/admin/audit.*" if arguments[0] == "admin" else "/readyz"
    with fake_server(more=((f"GET {path}", refuse(status, body)),)) as server:
        _, _, err = command(*arguments, url=server.url)
        _, told, _ = command(*arguments, "--json", url=server.url)
    if to_do is None:
        assert ("To do" in err, "advice" in json.loads(told)) == (False, False)
    else:
        assert f". To do: {to_do.format(url=server.url)}" in err or to_do in err
        assert to_do.format(url=server.url) in json.loads(told)["advice"]


def test_nothing_on_standard_input_is_no_prompt(command: Command) -> None:
    """`git diff | governor prompt` where nothing has changed."""
    code, out, err = command("prompt", stdin=b"", url="http://127.0.0.1:9")
    assert (code, out) == (Exit.USAGE, "")
    assert err == "governor: standard input was empty: give the prompt as an argument, or pipe it in\n"


# The operator


def test_the_operators_commands_against_a_governor(
    command: Command, governor_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVERNOR_ADMIN_TOKEN", ADMIN_TOKEN)
    code, out, _ = command("admin", "identities", url=governor_url)
    assert (code, "triton:storyteller" in out) == (0, True)
    act = ("admin", "restart", "triton:storyteller", "--reason", "a test", "--operator", "me")
    code, out, err = command(*act, stdin=b"", url=governor_url)
    assert (code, out, "--yes" in err) == (Exit.USAGE, "", True)
    code, out, _ = command(*act, "--yes", url=governor_url)
    assert code == 0
    assert re.fullmatch(
        r"triton:storyteller: epoch \d+ has begun; 0 claims forgotten without proof, 0 proven ended, 0 go on\n", out
    )
    code, out, err = command(*act, "--yes", "--expected-epoch", "999", "--json", url=governor_url)
    assert (code, json.loads(out)["code"], err) == (Exit.FAILED, "epoch_changed", "")
    code, out, _ = command("admin", "restart", "--all", "--reason", "all", "--yes", "--json", url=governor_url)
    assert (code, json.loads(out)["restarted"]) == (0, 3)
    code, _, err = command("admin", "release", "triton/slow", "99", "--reason", "x", "--yes", url=governor_url)
    assert (code, "has no claim 99" in err) == (Exit.FAILED, True)
    code, out, _ = command("admin", "audit", url=governor_url)
    assert (code, "a test" in out, "me (127.0.0.1)" in out, "refused: epoch_changed" in out) == (0, True, True, True)
    code, _, err = command("admin", "audit", "--admin-token", "wrong", url=governor_url)
    assert code == Exit.FAILED
    assert err.startswith("governor: GET /admin/audit: Unauthorized. To do: the token that was given is another; set")
    monkeypatch.delenv("GOVERNOR_ADMIN_TOKEN")
    code, _, err = command("admin", "audit", url=governor_url)
    assert (code, "no token was given; set GOVERNOR_ADMIN_TOKEN to the" in err) == (Exit.FAILED, True)


def test_the_audit_log_tells_tries_from_acts_and_signals_from_people(command: Command) -> None:
    acts = [
        {"id": 2, "atMs": 2, "act": "reload", "by": "SIGHUP", "address": None, "result": "refused",
         "code": "config_invalid"},
        {"id": 1, "atMs": 1, "act": "reload", "by": "admin token", "address": "::1", "result": "done", "code": None,
         "asked": {"dryRun": True}},
    ]  # fmt: skip
    with fake_server(more=(("GET /admin/audit.*", refuse(200, {"entries": acts})),)) as server:
        _, out, _ = command("admin", "audit", "--admin-token", "t", url=server.url)
    _, signalled, tried = out.splitlines()
    assert re.search(r"reload +refused: config_invalid +SIGHUP", signalled)
    assert re.search(r"reload \(dry run\) +done +unnamed \(::1\)", tried)


@pytest.mark.parametrize(
    ("told", "asked"), [("b/m", "b:m"), ("b/modèle ~1", "b:mod~C3~A8le~20~7E1"), ("b:m", "b:m"), ("b:x/y", "b:x/y")]
)
def test_an_identity_may_be_given_as_the_log_writes_it(told: str, asked: str, command: Command) -> None:
    with fake_server() as server:
        command("admin", "release", told, "4", "--reason", "why", "--admin-token", "t", "--yes", url=server.url)
        assert [request.path for request in server.requests] == [f"/admin/identities/{quote(asked, safe='')}"]


def test_a_long_name_hides_no_number() -> None:
    states = {**dict.fromkeys(board.STATES, 0), "running": 13}
    row = board.Row("gpu-a100-node7:meta-llama-3.1-70b-instruct", 16, 3, states, 1024, 1500, ())
    out = Console(file=io.StringIO(), width=80)
    out.print(tables.identities([row]))
    heading, first, *rest = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert heading.split() == ["identity", "slots", *HEADINGS]
    assert first.split()[2:] == ["13/16", "13", "0", "0", "0", "0", "1024", "1500"]
    assert first.split()[0] + "".join(map(str.strip, rest)) == row.identity


def test_sentences_stand_below_the_tables_in_the_whole_width() -> None:
    row = board.Row("triton:storyteller", 1, 0, dict.fromkeys(board.STATES, 0), 0, 0, ("the backend is down",))
    claim = ClaimState.decode({**CLAIM, "broke": "The connection broke before the answer was complete"})  # type: ignore[dict-item]
    out = Console(file=io.StringIO(), width=80)
    out.print(tables.identities([row]), tables.claims([("triton:storyteller", claim)]))
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert "triton:storyteller: the backend is down" in lines
    assert "triton:storyteller claim 4: E12" in lines
    assert len(lines) == 6


@pytest.mark.parametrize("asked", ["question", "terminal", "pipe"])
def test_ctrl_c_ends_the_wait_for_somebody_to_type(asked: str) -> None:
    """A thread that waits in a read would keep the process from ending."""
    act = ("admin", "release", "b:m", "4", "--reason", "why", "--admin-token", "t")
    more = (("GET /admin/identities/b%3Am", refuse(200, {"v": 1, "identity": IDENTITY})),)
    inside, outside = pty.openpty()
    with fake_server(more=more) as server:
        process = start(
            *(act if asked == "question" else ("prompt", "-")),
            *("--url", server.url),
            stdin=subprocess.PIPE if asked == "pipe" else outside,
            stderr=subprocess.PIPE,
        )
        os.close(outside)
        assert process.stderr is not None
        if asked == "question":
            said = b""
            while b"[y/N]" not in said:
                assert process.poll() is None, said
                said += os.read(process.stderr.fileno(), 65536)
        else:
            wait_until(lambda: listens_for_signals(process.pid), lambda: "it does not listen for signals")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert server.count("POST .*") == 0
    os.close(inside)


def listens_for_signals(pid: int) -> bool:
    """Whether it has an event loop and, looked at after that, a handler for SIGINT."""
    try:
        if not any("eventpoll" in link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()):
            return False
    except FileNotFoundError:
        return False  # one was closed meanwhile
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) & 1 << (signal.SIGINT - 1))


def test_a_drained_governor_is_not_said_to_be_shutting_down() -> None:
    for stopping, words in ((False, "draining: nothing new is accepted"), (True, "stopping")):
        picture = Picture("http://there")
        state: JsonValue = {"draining": True, "stopping": stopping, "identities": []}
        picture.show_state(AdminState.decode(state, "a state"))
        out = Console(file=io.StringIO(), width=200)
        out.print(picture)
        assert f"0 prompts pending, {words}\n" in out.file.getvalue()  # type: ignore[attr-defined]


CLAIM = {"id": 4, "state": "quarantined", "releasable": True, "ageMs": 61250, "epoch": 1, "kind": "generate",
         "serves": {"promptId": "p9"}, "broke": "it broke", "quarantined": "E12"}  # fmt: skip
IDENTITY = {"id": "b:m", "epoch": 2, "claims": [CLAIM], "claimsTotal": 1}


def test_one_is_asked_before_anything_is_forgotten(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    released = refuse(200, {"identity": "b:m", "released": CLAIM, "freeSlots": 1})
    more = (
        ("GET /admin/identities/b%3Am", refuse(200, {"v": 1, "identity": IDENTITY})),
        ("POST /admin/identities/b%3Am/claims/4/release", released),
    )
    act = ("admin", "release", "b:m", "4", "--reason", "why", "--admin-token", "t")
    with fake_server(more=more) as server:
        for answer, code in (("n\n", Exit.USAGE), ("\n", Exit.USAGE), ("", Exit.USAGE), ("y\n", Exit.DONE)):
            monkeypatch.setattr("sys.stdin", Terminal(answer))
            got, out, err = command(*act, url=server.url)
            assert got == code
            assert "prompt p9" in err
            assert server.count("POST .*") == (1 if code == Exit.DONE else 0)
        assert out == "b:m: claim 4 released without proof; 1 slots free\n"
        (sent,) = (request for request in server.requests if request.method == "POST")
        assert json.loads(sent.body) == {"reason": "why", "expectedEpoch": 2}
        assert sent.headers["authorization"] == "Bearer t"


# What a shell may offer


def offered(line: str, folder: Path, **environment: str) -> list[str]:
    """What the shell is told, as argcomplete's own shell code asks for it."""
    told = folder / "offered"
    asking = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(told), "_ARGCOMPLETE_IFS": "\n",
              "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}  # fmt: skip
    command = [str(Path(sys.executable).parent / "governor")]
    subprocess.run(command, env={**os.environ, **asking, **environment}, check=True, timeout=30)
    return [word.strip() for word in told.read_text().splitlines()]


def test_a_shell_may_offer_commands_and_what_the_server_knows(governor_url: str, tmp_path: Path) -> None:
    assert {"prompt", "status", "watch", "admin", "completion", "serve", "check"} <= {*offered("governor ", tmp_path)}
    assert offered("governor admin r", tmp_path) == ["restart", "release"]
    here = {"GOVERNOR_URL": governor_url}
    assert set(offered("governor prompt --model s", tmp_path, **here)) == {"slow", "storyteller", "sentiment", "short"}
    begun = time.monotonic()
    assert offered("governor prompt --model s", tmp_path, GOVERNOR_URL="http://127.0.0.1:9") == []
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_code_for_each_shell(shell: str, command: Command) -> None:
    code, out, err = command("completion", shell)
    assert (code, err) == (0, "")
    assert "governor" in out


# The page, and what is written to a terminal


def test_the_page_names_every_exit_code_and_every_column() -> None:
    table = PAGE.split("## Exit codes")[1]
    codes = {int(number) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for number in cell.split(",")}
    assert codes == {*map(int, Exit), 130, 143}
    assert all(f"| `{name}` |" in PAGE for name in HEADINGS)


def test_every_command_of_the_page_is_one(command: Command) -> None:
    lines = re.findall(r"governor (prompt|status|watch|admin|completion)\b([^|\n`]*)", PAGE)
    assert len(lines) > 10
    for name, rest in lines:
        flags = re.findall(r"--[\w-]+", rest)
        act = [word for word in rest.split()[:1] if name == "admin" and not word.startswith("-")]
        _, out, _ = command(name, *act, "--help")
        assert [flag for flag in flags if flag not in out] == []


def test_nothing_from_the_network_acts_on_a_terminal() -> None:
    assert clean("a\x1b[31mb\x9b\x07\u202e\r\n\tc") == "a\ufffd[31mb\ufffd\ufffd\ufffd\ufffd\n\tc"
    assert [duration(ms) for ms in (0, 61_250, 3_723_000)] == ["0.0 s", "1 min 01 s", "1 h 02 min"]
