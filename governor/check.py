"""`governor check`: asks the backends of a configuration whether they fit it. Starts and changes nothing.

Everything is asked with GET, and with the one POST that Triton wants for its repository index. Each request is
bounded in time and in size, and only a few run at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import trio

from governor.check_files import examine_audit_file
from governor.check_model import Finding, Level, counted, examine_model, read_facts
from governor.config.problems import did_you_mean, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.config import BackendConfig, Config, ModelConfig
    from governor.errors import JsonValue

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Largest answer that is read; the metrics of a server with thousands of models stay below it."""

MAX_REQUESTS = 8
"""Requests in flight at once, over all backends."""

SUCCESS_METRIC = "nv_inference_request_success"
"""The process-lifetime counter that still counts calls which a reload hid (E7)."""

DEFAULT_SERVER_NAME = "triton"
"""Name of a Triton server that was started without `--id`."""


@dataclass(frozen=True)
class CheckReport:
    """All that was found, in the order of the configuration."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return not any(finding.level == "error" for finding in self.findings)

    def lines(self) -> list[str]:
        """The findings for a terminal, one line each, and a line that counts them."""
        levels = [finding.level for finding in self.findings]
        return [
            *(finding.line() for finding in self.findings),
            (
                f"{counted(levels.count('error'), 'error')}, {counted(levels.count('warning'), 'warning')}, "
                f"{levels.count('ok')} ok"
            ),
        ]


async def check(
    config: Config, *, timeout_s: float = 5.0, transport: httpx.AsyncBaseTransport | None = None
) -> CheckReport:
    """Ask every backend whether it can do what the configuration wants of it.

    Args:
        config: a valid configuration.
        timeout_s: longest time in seconds for one request, its answer included.
        transport: in place of the network.

    Returns:
        The report. What cannot be reached or understood is a finding, never an exception.
    """
    found: list[list[Finding]] = [[] for _ in config.backends]
    limiter = trio.CapacityLimiter(MAX_REQUESTS)
    async with httpx.AsyncClient(
        transport=transport,
        headers={"accept-encoding": "identity"},
        trust_env=False,
        timeout=timeout_s,
        follow_redirects=False,
    ) as client:
        ask = _Asker(client, limiter, timeout_s)
        async with trio.open_nursery() as nursery:
            for backend, findings in zip(config.backends, found, strict=True):
                models = [model for model in config.models if model.backend == backend.name]
                nursery.start_soon(_check_backend, ask, backend, models, findings)
    files = examine_audit_file(config.server.audit_file)
    return CheckReport((*files, *(finding for findings in found for finding in findings)))


@dataclass(frozen=True)
class _Answer:
    """What came back: an HTTP status and a body, or (status 0) the reason why nothing usable did."""

    status: int
    body: bytes = b""
    reason: str = ""

    def json(self) -> JsonValue:
        """The decoded body, or None when it is no JSON."""
        try:
            decoded: JsonValue = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return decoded

    def table(self) -> Mapping[str, object]:
        """The decoded body when it is an object, else an empty one."""
        decoded = self.json()
        return decoded if isinstance(decoded, dict) else {}

    def said(self) -> str:
        """Why this is no good answer, in words."""
        if not self.status:
            return self.reason
        error = self.table().get("error")
        return f"it answered {self.status}" + (f" ({show(error)})" if isinstance(error, str) else "")


@dataclass(frozen=True)
class _Asker:
    """The one place that talks HTTP here."""

    client: httpx.AsyncClient
    limiter: trio.CapacityLimiter
    timeout_s: float

    async def __call__(self, url: str, *, method: str = "GET") -> _Answer:
        """One request, bounded in time and size."""
        async with self.limiter:
            try:
                with trio.fail_after(self.timeout_s):
                    return await self._send(method, url)
            except trio.TooSlowError:
                return _Answer(0, reason=f"no complete answer within {self.timeout_s:g} s")
            except httpx.ConnectError as error:
                return _Answer(0, reason=f"no connection ({_because(error)})")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return _Answer(0, reason=f"no valid HTTP answer ({_because(error)})")

    async def _send(self, method: str, url: str) -> _Answer:
        content = b"{}" if method == "POST" else None
        async with self.client.stream(method, url, content=content) as response:
            body = bytearray()
            async for chunk in response.aiter_raw():  # as it came: nothing small can unpack to something large
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return _Answer(0, reason=f"an answer of more than {MAX_BODY_BYTES} bytes")
            return _Answer(response.status_code, bytes(body))


def _because(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__  # an error of TLS has its words further down
    return show(str(cause) if cause is not None else type(error).__name__)[1:-1]


@dataclass
class _Backend:
    """One backend under examination."""

    config: BackendConfig
    findings: list[Finding] = field(default_factory=list)

    def say(self, level: Level, sentence: str, advice: str = "") -> None:
        """Add a finding about this backend."""
        self.findings.append(Finding(level, f'backend "{self.config.name}"', sentence, advice))


async def _check_backend(
    ask: _Asker, config: BackendConfig, models: list[ModelConfig], findings: list[Finding]
) -> None:
    """Examine one backend and its models; findings come in a fixed order."""
    backend = _Backend(config, findings)
    server = await ask(f"{config.url}/v2")
    if not _is_v2(backend, server):
        if models:
            names = ", ".join(show(model.name) for model in models)
            backend.say("error", f"its models were not checked: {names}", "check again once it answers")
        return
    index = await ask(f"{config.url}/v2/repository/index", method="POST")
    trace = await ask(f"{config.url}/v2/trace/setting")
    metrics = await ask(config.metrics_url) if config.metrics_url else None
    _check_statistics(backend, server)
    _check_boot_identity(backend, server, trace)
    series = _check_metrics(backend, metrics)
    answers: list[list[Finding]] = [[] for _ in models]
    async with trio.open_nursery() as nursery:
        for model, model_findings in zip(models, answers, strict=True):
            nursery.start_soon(_check_model, ask, backend, model, index, series, model_findings)
    for model_findings in answers:
        findings.extend(model_findings)


def _is_v2(backend: _Backend, answer: _Answer) -> bool:
    """Whether a KServe v2 server answers at the URL."""
    url = backend.config.url
    if not answer.status:
        advice = f'start Triton there, or correct the url of backend "{backend.config.name}"'
        if httpx.URL(url).scheme == "https":
            advice += "; Triton itself speaks no TLS, so it is http:// unless something in front of it does"
        backend.say("error", f"{url} cannot be used: {answer.reason}", advice)
        return False
    about = answer.table()
    name, version = about.get("name"), about.get("version")
    if answer.status != 200 or not isinstance(name, str) or not isinstance(version, str):
        backend.say(
            "error",
            f"{url} answers, but not as a KServe v2 server: GET /v2 should give a name and a version, and "
            f"{answer.said()}",
            "the url must be that of Triton's HTTP port (8000 by default), not of gRPC, metrics or a proxy",
        )
        return False
    backend.say("ok", f"{url} is {show(name)}, version {show(version)}")
    return True


def _check_statistics(backend: _Backend, server: _Answer) -> None:
    extensions = server.table().get("extensions")
    if isinstance(extensions, list) and "statistics" in extensions:
        backend.say("ok", "it offers the statistics that prove the end of broken calls")
        return
    backend.say(
        "error",
        "it offers no statistics extension, so the end of a broken call cannot be proven and its slot stays taken",
        "use a Triton that was built with statistics (TRITON_ENABLE_STATS=ON, as all official images are)",
    )


def _check_boot_identity(backend: _Backend, server: _Answer, trace: _Answer) -> None:
    """E8: whether this backend offers what the configuration takes for a boot identity."""
    wanted, on_fall = backend.config.evidence.boot_identity, backend.config.evidence.on_fall
    by_trace = trace.status == 200 and "log_frequency" in trace.table()
    by_id = server.table().get("name") != DEFAULT_SERVER_NAME
    fallback = f'a falling counter is then taken as on_fall = "{on_fall}" says'
    if wanted == "none":
        backend.say("ok", f"boot identity is switched off; {fallback}")
    elif by_trace and wanted in {"auto", "trace"}:
        backend.say("ok", "its trace settings can tell one process from the next")
        _check_tracing_is_off(backend, trace)
    elif by_id and wanted in {"auto", "id"}:
        backend.say("ok", "its --id can tell one process from the next, if it differs at every start")
    elif wanted == "trace":
        backend.say(
            "error",
            f'boot_identity = "trace", but its trace settings cannot be read: {trace.said()}',
            "open the trace API of this Triton, or choose another boot_identity",
        )
    elif wanted == "id":
        backend.say(
            "error",
            f'boot_identity = "id", but it was started without --id: its name is {show(DEFAULT_SERVER_NAME)}',
            "start it with a new value each time: --id=$(uuidgen)",
        )
    else:
        backend.say(
            "warning",
            f"nothing tells one process from the next, so a restart and a reload look alike; {fallback}",
            "open its trace API, or start it with --id=$(uuidgen)",
        )


def _check_tracing_is_off(backend: _Backend, trace: _Answer) -> None:
    level = trace.table().get("trace_level")
    if level not in (["OFF"], []):
        backend.say(
            "warning",
            "tracing is on, and the mark of the boot identity changes how often its trace files are cut",
            'switch tracing off, or use boot_identity = "id"',
        )


def _check_metrics(backend: _Backend, answer: _Answer | None) -> list[str] | None:
    """E7: whether the process-lifetime counters can be read; their series, or None."""
    url = backend.config.metrics_url
    if answer is None:
        backend.say(
            "warning",
            "no metrics_url: the slot of a call that breaks and is then hidden by a reload of its model stays taken "
            "until a restart or an operator frees it",
            "set metrics_url (port 8002 by default)",
        )
        return None
    lines = answer.body.decode(errors="replace").splitlines()
    series = [line for line in lines if line.startswith(SUCCESS_METRIC + "{")]
    if answer.status == 200 and series:
        backend.say("ok", f"{url} has {SUCCESS_METRIC}")
        return series
    why = answer.said() if answer.status != 200 else f"{SUCCESS_METRIC} is not there, or no model is loaded"
    backend.say(
        "error",
        f"{url} cannot be used: {why}",
        "correct metrics_url, and start Triton with metrics allowed (--allow-metrics=true, its default)",
    )
    return None


async def _check_model(
    ask: _Asker,
    backend: _Backend,
    model: ModelConfig,
    index: _Answer,
    series: list[str] | None,
    findings: list[Finding],
) -> None:
    """Examine one model of a backend that answers; `series` are the backend's metrics, if it has any."""

    def say(level: Level, sentence: str, advice: str) -> None:
        findings.append(Finding(level, f'model "{model.name}"', sentence, advice))

    base = f"{backend.config.url}/v2/models/{quote(model.triton_model, safe='')}"
    if model.triton_version is not None:
        base += f"/versions/{model.triton_version}"
    name = show(model.triton_model) + (f" version {model.triton_version}" if model.triton_version else "")
    ready = await ask(f"{base}/ready")
    configured = await ask(f"{base}/config")
    facts = read_facts(configured.json()) if configured.status == 200 else None
    if ready.status != 200:
        say("error", *_not_ready(backend.config, model, index, name, ready))
    elif facts is None:
        say(
            "warning",
            f"{name} is ready, but its configuration cannot be read: {configured.said()}",
            "open the model configuration API; its kind, tensors and instances could not be checked",
        )
    if facts is not None:
        findings.extend(examine_model(model, facts, ready=ready.status == 200))
    if ready.status == 200:
        statistics = await ask(f"{base}/stats")
        if statistics.status != 200 or not statistics.table().get("model_stats"):
            say(
                "error",
                f"the statistics of {name} cannot be read, so the end of its broken calls cannot be proven: "
                f"{statistics.said()}",
                "open the statistics API of this Triton",
            )
        if series is not None and not any(f'model="{model.triton_model}"' in line for line in series):
            say(
                "warning",
                f"{backend.config.metrics_url} does not count {name}",
                "see that it is the metrics URL of this server",
            )


def _not_ready(
    backend: BackendConfig, model: ModelConfig, index: _Answer, name: str, ready: _Answer
) -> tuple[str, str]:
    """Why a model cannot be used, as far as the repository index tells, and what to do."""
    entries = index.json()
    where = f'backend "{backend.name}"'
    if index.status != 200 or not isinstance(entries, list):
        return f"{name} is not ready on {where}: {ready.said()}", "load it, or correct triton_model"
    rows = [entry for entry in entries if isinstance(entry, dict)]
    known = sorted({each for row in rows if isinstance(each := row.get("name"), str)})
    mine = [row for row in rows if row.get("name") == model.triton_model]
    if not mine:
        close = did_you_mean(model.triton_model, known)
        hint = f"did you mean {show(close)}?" if close else f"it has: {', '.join(map(show, known[:20])) or 'none'}"
        return f"the repository of {where} has no model {show(model.triton_model)}; {hint}", "correct triton_model"
    loaded = [str(row.get("version")) for row in mine if row.get("state") == "READY"]
    if loaded:
        versions = ", ".join(loaded)
        return (
            f"{name} is not ready on {where}; loaded are: {versions}",
            "correct triton_version, or leave it out to follow Triton's version policy",
        )
    reasons = [reason for row in mine if isinstance(reason := row.get("reason"), str) and reason]
    why = f": {show(reasons[0])}" if reasons else ""
    return (
        f"{name} is in the repository of {where} but not loaded{why}",
        f"load it: POST {backend.url}/v2/repository/models/{model.triton_model}/load, or --load-model at start",
    )
