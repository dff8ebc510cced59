"""What is measured: the governor, and what a user would put in its place, each in front of the same backend."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import peers
from bench.http1 import request
from bench.processes import Server

HOST = "127.0.0.1"
INFER = "/v2/models/noop/infer"
TENSOR = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [64], "data": [0.5] * 64}]})
_CHAT = json.dumps({"model": "noop", "messages": [{"role": "user", "content": "word " * 60}]})
_TEXT = json.dumps({"text": "word " * 60})
_LITELLM_KEY = "sk-bench-0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how a target is to run.

    Attributes:
        folder: for its configuration and log.
        port: its own.
        spare_port: another free one, for what insists on a second.
        backend_port: the backend's.
        slots: requests that may be at the backend at once.
        waiting: requests that may wait for one of them.
        wait_ms: how long they may.
        timeout_ms: how long a request may take at the backend; None: as long as it likes.
        cpu: the only CPU it may use.
    """

    folder: Path
    port: int
    spare_port: int
    backend_port: int
    slots: int = 64
    waiting: int = 1024
    wait_ms: int = 30_000
    timeout_ms: int | None = None
    cpu: int | None = None


@dataclass(frozen=True)
class Running:
    """A target that answers.

    Attributes:
        server: its process; None for the backend itself.
        path: where its inferences are posted.
        body: a request that it understands.
    """

    name: str
    port: int
    server: Server | None
    path: str = INFER
    body: str = TENSOR
    headers: tuple[tuple[str, str], ...] = ()

    def wire(self) -> bytes:
        """The request, as it goes over the wire."""
        return request("POST", f"{HOST}:{self.port}", self.path, self.body.encode(), self.headers)


Start = Callable[[Place], Running]


def governor(place: Place) -> Running:
    """`governor serve`, as a user runs it."""
    config = f"""
[server]
port = {place.port}
max_connections = 4096
max_in_flight = 4096
[limits]
max_waiting_per_identity = {place.waiting}
max_credit_wait_ms = {place.wait_ms}
max_sessions = 200_000
max_pending_prompts_per_session = "unlimited"
max_body_bytes = 104_857_600
[[backends]]
name = "local"
url = "http://{HOST}:{place.backend_port}"
[[models]]
name = "noop"
backend = "local"
slots = {place.slots}
kind = "infer"
"""
    if place.timeout_ms is not None:
        config += f"timeout_ms = {place.timeout_ms}\n"
    config += f"""
[[models]]
name = "text"
backend = "local"
slots = {place.slots}
kind = "generate"
"""
    file = place.folder / "governor.toml"
    file.write_text(config)
    command = [sys.executable, "-m", "api.cli", "serve", str(file)]
    server = Server("governor", command, folder=place.folder, cpu=place.cpu)
    server.wait_for(place.port, "/readyz")
    return Running("governor", place.port, server)


def stock(place: Place) -> Running:
    """A Quart-Trio handler and a shared httpx pool under stock hypercorn: no limit, no queue, no evidence."""
    hypercorn = Path(sys.executable).with_name("hypercorn")
    command = [str(hypercorn), "-k", "trio", "-b", f"{HOST}:{place.port}", "bench.stock:app"]
    environment = {"BENCH_BACKEND": f"http://{HOST}:{place.backend_port}"}
    server = Server("stock", command, folder=place.folder, cpu=place.cpu, environment=environment)
    server.wait_for(place.port, "/healthz")
    return Running("stock", place.port, server)


def relay(place: Place) -> Running:
    """A process that passes bytes from one socket to the other and reads none: what one more copy costs."""
    command = [sys.executable, "-m", "bench.relay", "--port", str(place.port), "--to", str(place.backend_port)]
    server = Server("relay", command, folder=place.folder, cpu=place.cpu)
    server.wait_for(place.port, "/v2/health/ready")
    return Running("relay", place.port, server)


def haproxy(place: Place) -> Running:
    """HAProxy, one thread, `maxconn` requests at the backend and `maxqueue` waiting."""
    timeout_ms = place.timeout_ms or 60_000
    file = place.folder / "haproxy.cfg"
    file.write_text(f"""
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout queue {place.wait_ms}ms
  timeout server {timeout_ms}ms
  http-reuse always
  option http-no-delay
frontend front
  bind {HOST}:{place.port}
  default_backend back
backend back
  server triton {HOST}:{place.backend_port} maxconn {place.slots} maxqueue {place.waiting}
""")
    command = [_program("haproxy"), "-f", str(file), "-db"]
    server = Server("haproxy", command, folder=place.folder, cpu=place.cpu, environment=peers.environment())
    server.wait_for(place.port, "/v2/health/ready")
    return Running("haproxy", place.port, server)


def nginx(place: Place) -> Running:
    """nginx, one worker, `limit_conn`: at most so many requests, the others refused at once (it has no queue)."""
    folder = place.folder / "nginx"
    folder.mkdir(exist_ok=True)
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    timeout = f"proxy_read_timeout {place.timeout_ms}ms;" if place.timeout_ms else ""
    file = folder / "nginx.conf"
    file.write_text(f"""
daemon off;
user root;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_max_body_size 0;
  {temporary}
  limit_conn_zone $server_name zone=slots:1m;
  limit_conn_status 503;
  upstream triton {{ server {HOST}:{place.backend_port}; keepalive 64; keepalive_requests 1000000; }}
  server {{
    listen {HOST}:{place.port} backlog=4096;
    server_name bench;
    keepalive_requests 1000000;
    location / {{
      limit_conn slots {place.slots};
      proxy_pass http://triton;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      {timeout}
    }}
  }}
}}
""")
    command = [_program("nginx"), "-c", str(file), "-p", str(folder)]
    server = Server("nginx", command, folder=place.folder, cpu=place.cpu, environment=peers.environment())
    server.wait_for(place.port, "/v2/health/ready")
    return Running("nginx", place.port, server)


def smg(place: Place) -> Running:
    """The SGLang project's gateway; it has no v2 protocol, so it is sent its own `/generate`."""
    url = f"http://{HOST}:{place.backend_port}"
    command = [_program("smg"), "launch", "--host", HOST, "--port", str(place.port), "--worker-urls", url]
    command += ["--policy", "random", "--disable-retries", "--disable-circuit-breaker", "--log-level", "error"]
    command += ["--max-concurrent-requests", str(place.slots), "--queue-size", str(place.waiting)]
    command += ["--prometheus-host", HOST, "--prometheus-port", str(place.spare_port)]
    if place.timeout_ms is not None:
        command += ["--request-timeout-secs", str(max(1, place.timeout_ms // 1000))]
    server = Server("smg", command, folder=place.folder, cpu=place.cpu)
    server.wait_for(place.port, "/readiness")
    return Running("smg", place.port, server, path="/generate", body=_TEXT)


def litellm(place: Place) -> Running:
    """LiteLLM's proxy, one worker, authentication on as it insists; it is sent chat completions."""
    timeout = f"timeout: {place.timeout_ms / 1000}" if place.timeout_ms else ""
    file = place.folder / "litellm.yaml"
    file.write_text(f"""
model_list:
  - model_name: noop
    litellm_params:
      model: openai/noop
      api_base: http://{HOST}:{place.backend_port}/v1
      api_key: none
      max_parallel_requests: {place.slots}
      {timeout}
litellm_settings:
  num_retries: 0
router_settings:
  disable_cooldowns: true
general_settings:
  master_key: {_LITELLM_KEY}
""")
    command = [_program("litellm"), "--config", str(file), "--host", HOST, "--port", str(place.port)]
    environment = {"LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "NO_DOCS": "True"}
    server = Server("litellm", command, folder=place.folder, cpu=place.cpu, environment=environment)
    server.wait_for(place.port, "/health/liveliness", seconds=180)
    key = (("Authorization", f"Bearer {_LITELLM_KEY}"),)
    return Running("litellm", place.port, server, path="/v1/chat/completions", body=_CHAT, headers=key)


def ray(place: Place) -> Running:
    """Ray Serve, one replica with an async handler that calls the backend with httpx."""
    limits = {"BENCH_SLOTS": str(place.slots), "BENCH_WAITING": str(place.waiting), "BENCH_PORT": str(place.port)}
    environment = {**limits, "BENCH_BACKEND": f"http://{HOST}:{place.backend_port}", "RAY_DEDUP_LOGS": "0"}
    if place.timeout_ms is not None:
        environment["BENCH_TIMEOUT_S"] = str(place.timeout_ms / 1000)
    command = [_program("ray"), str(Path(__file__).with_name("ray_serve.py"))]
    server = Server("ray", command, folder=place.folder, cpu=place.cpu, environment=environment)
    server.wait_for(place.port, "/-/healthz", seconds=180)
    return Running("ray", place.port, server)


STARTS: dict[str, Start] = {
    "governor": governor,
    "stock": stock,
    "relay": relay,
    "haproxy": haproxy,
    "nginx": nginx,
    "smg": smg,
    "litellm": litellm,
    "ray": ray,
}
ALWAYS = ("governor", "stock")
"""Targets that need nothing but the project itself."""
OWN = (*ALWAYS, "relay")
"""The same, with what is only measured where it says something."""


def available(wanted: list[str] | None) -> list[str]:
    """The targets to measure: those asked for, or those that are installed and start quickly.

    Raises:
        RuntimeError: one that was asked for is not installed; says how.
    """
    if wanted is None:
        return [*ALWAYS, *(name for name in ("haproxy", "nginx", "smg") if peers.program(name) is not None)]
    for name in wanted:
        if name not in OWN:
            _program(name)
    return wanted


def _program(peer: str) -> str:
    path = peers.program(peer)
    if path is None:
        raise RuntimeError(f"{peer} is not installed; run: make bench-peers PEERS={peer}")
    return str(path)
