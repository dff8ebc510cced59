"""What the governor can be told, as frozen types: one class per section of the configuration file.

The docstring under each field is its meaning for operators; `docs/configuration.md` is held against it.
Durations are whole milliseconds, sizes are bytes. A class checks its own values; what must hold between values
is checked when a `Config` is put together (`crosscheck`).
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # pydantic reads the annotations
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from governor.config.crosscheck import Draft, View, cross_check
from governor.config.values import (
    BackendName,
    BackendReference,
    BackendUrl,
    Bytes,
    Count,
    CountOrUnlimited,
    Expect,
    FieldName,
    FilePath,
    HeaderNames,
    Host,
    MetricsUrl,
    Milliseconds,
    MillisecondsOrUnlimited,
    Origins,
    ParameterValue,
    Port,
    PublicName,
    Slots,
    Token,
    TritonName,
    TritonVersion,
)
from governor.errors import ConfigError, JsonValue, UnknownModelError

MASK = "********"
"""Stands for a secret that is set, wherever a configuration is printed."""

CallKind = Literal["infer", "generate", "generate_stream"]


class Section(BaseModel):
    """Base of all sections: frozen, no conversion between types, no unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )


class ServerConfig(Section):
    """Where the governor listens, and how long its own HTTP connections may take."""

    host: Host = "127.0.0.1"
    """Address to listen on. Any address that is not loopback needs `tokens.api`."""
    port: Port = 4170
    """TCP port to listen on; 0 takes any free one and prints it."""
    max_connections: Count = 256
    """Open client connections; further ones wait in the operating system's queue."""
    keep_alive_timeout_ms: Milliseconds = 5_000
    """An idle client connection is closed after this time."""
    graceful_timeout_ms: Milliseconds = 5_000
    """Time that accepted work gets to settle after SIGTERM before the governor exits."""
    send_timeout_ms: Milliseconds = 10_000
    """A client that takes no byte for this long is disconnected."""
    max_in_flight: Count = 512
    """Client requests being answered at once; further ones are refused with 503."""
    audit_file: FilePath | None = None
    """File to which each act of an operator is appended as a line of JSON. While it cannot be written, none is done."""
    max_large_body_bytes: Bytes = 268_435_456
    """Bytes of inference bodies over 64 KiB held at once; further ones are read when there is room."""
    allow_origins: Origins = ()
    """Origins of web pages that may use the governor from a browser, besides its own."""


class LimitsConfig(Section):
    """How much callers may ask for (S1, S6, A5, A6)."""

    max_pending_prompts_per_session: CountOrUnlimited = 5
    """Accepted and not yet settled prompts per session, the running one included."""
    prompt_deadline_ms: MillisecondsOrUnlimited = None
    """Longest time from a prompt's acceptance to its end for the caller; also bounds `deadlineMs`."""
    read_receipt_timeout_ms: Milliseconds = 1_000
    """While somebody listens to a session, a prompt's turn starts once its caller has read the 202, or after this
    time."""
    max_sessions: Count = 800
    """Live sessions in all."""
    max_body_bytes: Bytes = 10_485_760
    """Size of one request body; larger ones get 413."""
    max_prompt_bytes: Bytes = 1_048_576
    """Size of one prompt's text in UTF-8: exactly this much is accepted, one byte more gets 413."""
    max_answer_bytes: Bytes = 16_777_216
    """Size of one answer of a backend, or of all of one turn's streamed text."""
    event_ring_size: Count = 8_000
    """Events kept per session for clients that reconnect (Last-Event-ID)."""
    event_ring_bytes: Bytes = 16_777_216
    """Bytes of events kept per session for the same purpose; the older ones go first."""
    max_subscribers_per_session: Count = 64
    """Open event streams per session."""
    subscriber_queue_frames: Count = 256
    """Events waiting for one slow subscriber before it is disconnected."""
    subscriber_queue_bytes: Bytes = 2_097_152
    """Bytes waiting for one slow subscriber before it is disconnected."""
    heartbeat_interval_ms: Milliseconds = 15_000
    """Pause after which an idle event stream gets a heartbeat."""
    session_idle_timeout_ms: Milliseconds = 1_800_000
    """A session without prompts and subscribers is closed after this time."""
    session_detached_timeout_ms: Milliseconds = 60_000
    """The same for a session from which every client has detached."""
    prompts_per_minute: CountOrUnlimited = None
    """Prompts that one caller may hand in per minute; further ones get 429."""
    mutations_per_minute: CountOrUnlimited = None
    """The same for other requests that change something."""
    reads_per_minute: CountOrUnlimited = None
    """The same for requests that only look; probes, event streams, heartbeats and `/v2` are never limited."""
    max_waiting_per_identity: Count = 1_024
    """Calls that may wait for a slot credit of one identity; further ones get 503."""
    max_credit_wait_ms: Milliseconds = 30_000
    """Longest wait of a `/v2` call for a slot credit; after it the call gets 503."""
    max_acp_connections: Count = 64
    """Open connections of ACP clients; further ones get 503."""
    acp_first_stream_timeout_ms: Milliseconds = 60_000
    """An ACP connection that opens no stream ends after this time."""
    acp_reconnect_timeout_ms: Milliseconds = 10_000
    """An ACP connection that has lost its last stream ends after this time, unless it asks for something."""
    max_unread_acp_responses: Count = 256
    """Requests of one ACP connection whose responses were not read yet; further ones get 503."""
    max_unread_acp_bytes: Bytes = 2_097_152
    """Bytes of these responses; with more, further requests get 503."""


class EvidenceConfig(Section):
    """How the end of broken calls is proven. Set for all backends and refined for each (E4 to E11)."""

    poll_interval_ms: Milliseconds = 250
    """Pause between two readings while a claim waits for evidence."""
    poll_timeout_ms: Milliseconds = 1_000
    """Longest time for one reading; a slower one counts as failed and is repeated."""
    settle_ms: Milliseconds = 1_000
    """Two equal readings this far apart make a new baseline. Triton counts up to 360 ms late: stay above."""
    boot_identity: Literal["auto", "trace", "id", "none"] = "auto"
    """What tells one Triton process from the next: `trace` is a mark in its trace settings, `id` a unique
    `--id` at start, `auto` uses what works, `none` uses nothing."""
    on_fall: Literal["restart", "seen", "hold"] = "seen"
    """What a falling counter ends where no boot identity is to be had: `restart` all broken claims, `seen`
    those that a reading saw after their delivery, `hold` none."""
    max_unprovable_age_ms: MillisecondsOrUnlimited = None
    """Age, from the granting of its credit on, at which a claim that nothing can prove is released all the same,
    counted as unproven."""


class TokensConfig(Section):
    """Secrets that callers must send as `Authorization: Bearer ...`."""

    api: Token | None = Field(default=None, repr=False)
    """Token of ordinary callers; without it every caller on this machine is served."""
    admin: Token | None = Field(default=None, repr=False)
    """Token of operators; without it the admin routes and model control are closed."""
    metrics_public: bool = False
    """Serve `/metrics` without a token even when `tokens.api` is set."""


class BackendConfig(Section):
    """One Triton server."""

    name: BackendName
    """Name in models, logs and metrics."""
    url: BackendUrl
    """Base URL of Triton's HTTP port."""
    metrics_url: MetricsUrl | None = None
    """URL of Triton's metrics; with it, calls that a reload hid can still be proven ended."""
    health_interval_ms: Milliseconds = 1_000
    """Pause between two health checks."""
    when_unavailable: Literal["fail", "wait"] = "fail"
    """What prompts do while the backend is down: `fail` at once, or `wait` for it."""
    unavailable_wait_ms: Milliseconds = 30_000
    """Longest wait with `when_unavailable = "wait"`."""
    forward_headers: HeaderNames = ()
    """Further header fields of `/v2` requests that Triton gets, for its header forwarding and its restricted APIs."""
    evidence: EvidenceConfig = Field(default_factory=EvidenceConfig)
    """What differs from `[evidence]` for this backend."""


class ModelConfig(Section):
    """One model as callers see it."""

    name: PublicName
    """Name that callers use."""
    backend: BackendReference
    """Name of the backend it runs on."""
    triton_model: TritonName = Field(default_factory=lambda earlier: earlier["name"])
    """Name on the Triton server. Public names with the same backend and Triton model are one identity: they share
    its slots."""
    triton_version: TritonVersion | None = None
    """Version to call; without it Triton's version policy decides."""
    slots: Slots
    """Calls in flight at once: the slot credits of the identity."""
    kind: CallKind
    """How a prompt is sent: as a tensor (`infer`), or by Triton's `generate` or `generate_stream`."""
    timeout_ms: MillisecondsOrUnlimited = 300_000
    """Longest time that a caller waits for one call; the call itself goes on and keeps its credit."""
    call_limit_ms: Milliseconds = 3_600_000
    """Time after which the governor gives its own connection up; from then on only evidence frees the credit."""
    text_input: FieldName = "text_input"
    """Input that gets the prompt's text."""
    text_output: FieldName = "text_output"
    """Output that holds the answer's text."""
    parameters: Annotated[Mapping[str, ParameterValue], Expect("a table of further fields")] = Field(
        default_factory=dict
    )
    """Sent with every prompt, such as `max_tokens`: fields of a `generate` body, request parameters of `infer`."""
    lane_idle_ms: Milliseconds = 2_000
    """An idle connection to the backend is closed after this time; open ones delay Triton's own shutdown."""
    on_abandon: Literal["finish", "disconnect"] = "finish"
    """What happens to a stream that nobody reads any more: `finish` reads it to its end; `disconnect` lets a
    model that honours it stop early, and leaves the credit to evidence."""


class Config(Section):
    """The whole configuration, valid in itself.

    Built by `load_config` and `parse_config`, or directly. Either way it holds every rule of this package.

    Raises:
        governor.errors.ConfigError: rules between values are broken.
        pydantic.ValidationError: a value is wrong by itself (only when built directly).
    """

    server: ServerConfig = Field(default_factory=ServerConfig)
    """Where to listen."""
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    """How much callers may ask for."""
    evidence: EvidenceConfig = Field(default_factory=EvidenceConfig)
    """How ends are proven, for all backends."""
    tokens: TokensConfig = Field(default_factory=TokensConfig)
    """Secrets."""
    backends: tuple[BackendConfig, ...]
    """The Triton servers."""
    models: tuple[ModelConfig, ...]
    """The models as callers see them."""

    @model_validator(mode="after")
    def _hold_cross_rules(self) -> Config:
        draft = Draft(
            server=View(dict(self.server)),
            limits=View(dict(self.limits)),
            tokens=View(dict(self.tokens)),
            backends=[View(dict(backend)) for backend in self.backends],
            models=[View(dict(model)) for model in self.models],
        )
        problems = [problem.sentence() for problem in cross_check(draft)]
        if problems:
            raise ConfigError(problems)
        return self

    def backend(self, name: str) -> BackendConfig:
        """The backend of this name.

        Raises:
            KeyError: there is none. A model's `backend` always exists.
        """
        for backend in self.backends:
            if backend.name == name:
                return backend
        raise KeyError(name)

    def model(self, name: str) -> ModelConfig:
        """The model of this public name.

        Raises:
            UnknownModelError: there is none; the error lists those that exist.
        """
        for model in self.models:
            if model.name == name:
                return model
        raise UnknownModelError(name, [model.name for model in self.models])

    def masked(self) -> dict[str, JsonValue]:
        """The configuration as plain JSON values for printing: each secret that is set reads `MASK`."""
        printable: dict[str, JsonValue] = self.model_dump(mode="json", exclude={"tokens"})
        tokens = self.tokens
        printable["tokens"] = {
            "api": tokens.api and MASK,
            "admin": tokens.admin and MASK,
            "metrics_public": tokens.metrics_public,
        }
        return printable
