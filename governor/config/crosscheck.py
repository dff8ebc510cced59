"""Rules between the values of a configuration, checked on whatever is usable of it.

Each rule reads through a `View`, which answers None for a value that is missing or wrong by itself. So these rules
also run on a file with other mistakes, and one start of the governor names them all.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from governor.config.problems import KeyPath, Problem, did_you_mean, dotted, show


@dataclass(frozen=True)
class View:
    """The usable values of one table."""

    values: Mapping[str, object] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        """The text under `key`, or None when there is no usable text."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        """The integer under `key`, or None when there is none (no limit counts as none)."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def texts(self, key: str) -> list[str]:
        """The texts in the list under `key`."""
        value = self.values.get(key)
        return [str(inner) for inner in value] if isinstance(value, list | tuple) else []

    def keys(self, key: str) -> list[str]:
        """The keys of the table under `key`."""
        value = self.values.get(key)
        return [str(inner) for inner in value] if isinstance(value, Mapping) else []


@dataclass(frozen=True)
class Draft:
    """A configuration as far as it is usable.

    Attributes:
        backends: None when the array itself is unusable; then nothing is said about it again.
        models: likewise.
        misnamed: names of backends that were given but are not allowed; a model that refers to one has no
            mistake of its own.
        api_token_given: a token was given for callers, be it usable or not.
    """

    server: View
    limits: View
    tokens: View
    backends: Sequence[View] | None
    models: Sequence[View] | None
    misnamed: frozenset[str] = frozenset()
    api_token_given: bool = False


def cross_check(draft: Draft) -> list[Problem]:
    """Every broken rule between values, in the order of the sections."""
    return [
        *_listening(draft),
        *_sizes(draft.limits),
        *_secrets(draft.tokens),
        *_backends(draft.backends),
        *_itself(draft),
        *_models(draft),
    ]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(draft: Draft) -> Iterator[Problem]:
    if draft.api_token_given or draft.tokens.text("api"):
        return
    if "*" in draft.server.texts("allow_origins"):
        yield Problem(
            ("server", "allow_origins"),
            'with "*" and without tokens.api every web page that somebody here looks at could use the backends; set'
            " tokens.api, or name the origins",
        )
    host = draft.server.text("host")
    if host is None or is_loopback(host):
        return
    yield Problem(
        ("server", "host"),
        f"{show(host)} can be reached from other machines, and without tokens.api everybody there could use the "
        'backends; set tokens.api to a secret of at least 16 characters, or listen on "127.0.0.1"',
    )


def _sizes(limits: View) -> Iterator[Problem]:
    prompt, body = limits.number("max_prompt_bytes"), limits.number("max_body_bytes")
    if prompt is not None and body is not None and prompt > body:
        yield Problem(
            ("limits", "max_prompt_bytes"),
            f"received {prompt}, but a request body ends at limits.max_body_bytes = {body}, so no such prompt could "
            "arrive; lower this one or raise that one",
        )


def _secrets(tokens: View) -> Iterator[Problem]:
    api, admin = tokens.text("api"), tokens.text("admin")
    if api is not None and api == admin:
        yield Problem(
            ("tokens", "admin"),
            "it is the same as tokens.api, which would make every caller an operator; use two different secrets",
        )


def _backends(backends: Sequence[View] | None) -> Iterator[Problem]:
    if backends is None:
        return
    if not backends:
        yield Problem(("backends",), 'none given; expected at least one, such as [[backends]] name = "triton"')
    yield from _repeated("backends", backends, "name", "name of a backend")
    servers: dict[str, KeyPath] = {}
    for index, backend in enumerate(backends):
        url = backend.text("url")
        if url is None:
            continue
        path: KeyPath = ("backends", index, "url")
        earlier = servers.setdefault(server_key(url), path)
        if earlier != path:
            yield Problem(
                path,
                f"{show(url)} is the same server as {dotted(earlier)}; two backends would govern it twice and each "
                "would count the other's calls as foreign; keep one and let the models of both name it",
            )
    yield from _repeated("backends", backends, "metrics_url", "metrics of one process", advice=_METRICS_ADVICE)


def _itself(draft: Draft) -> Iterator[Problem]:
    """A governor that is its own backend waits for itself to become ready."""
    host, port = draft.server.text("host"), draft.server.number("port")
    if host is None or not port:
        return
    own = server_key(f"http://{_in_url(host)}:{port}")
    for index, backend in enumerate(draft.backends or []):
        url = backend.text("url") or ""
        parts = urlsplit(url)
        everywhere = host.strip("[]") in _ALL and parts.port == port and is_loopback(parts.hostname or "")
        if everywhere or server_key(url) == own:
            yield Problem(
                ("backends", index, "url"),
                f"{show(url)} is where this governor itself listens (server.port = {port}); give"
                " the address of Triton's HTTP port, which is 8000 unless Triton was told otherwise",
            )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


_ALL = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared with, not bound to
_METRICS_ADVICE = "metrics prove ends for the process they come from; give each backend its own, or leave it out"


def server_key(url: str) -> str:
    """The URL with the usual other spelling of this machine folded; only for comparison."""
    parts = urlsplit(url)
    return url.replace("localhost", "127.0.0.1", 1) if parts.hostname == "localhost" else url


def _repeated(
    section: str, tables: Sequence[View], key: str, what: str, advice: str = "each must be given once"
) -> Iterator[Problem]:
    first: dict[str, KeyPath] = {}
    for index, table in enumerate(tables):
        value = table.text(key)
        if value is None:
            continue
        path: KeyPath = (section, index, key)
        earlier = first.setdefault(value, path)
        if earlier != path:
            yield Problem(path, f"{show(value)} is already the {what} in {dotted(earlier)}; {advice}")


def _models(draft: Draft) -> Iterator[Problem]:
    if draft.models is None:
        return
    if not draft.models:
        yield Problem(("models",), 'none given; expected at least one, such as [[models]] name = "chat"')
    yield from _repeated("models", draft.models, "name", "name of a model")
    for index, model in enumerate(draft.models):
        yield from _backend_exists(draft, index, model)
        yield from _model_alone(index, model)
    yield from _identities(draft.models)


def _backend_exists(draft: Draft, index: int, model: View) -> Iterator[Problem]:
    wanted = model.text("backend")
    if wanted is None or draft.backends is None or wanted in draft.misnamed:
        return
    names = (backend.text("name") for backend in draft.backends)
    known = list(dict.fromkeys(name for name in names if name is not None))
    if wanted in known:
        return
    close = did_you_mean(wanted, known)
    hint = f"did you mean {show(close)}?" if close else f"the backends are: {', '.join(map(show, known)) or 'none'}"
    yield Problem(("models", index, "backend"), f"no backend is named {show(wanted)}; {hint}")


def _model_alone(index: int, model: View) -> Iterator[Problem]:
    kind, timeout, limit = model.text("kind"), model.number("timeout_ms"), model.number("call_limit_ms")
    if timeout is not None and limit is not None and timeout > limit:
        yield Problem(
            ("models", index, "timeout_ms"),
            f"received {timeout}, but the governor gives the call up after call_limit_ms = {limit}; a caller cannot "
            "wait longer than that",
        )
    if kind is not None and kind != "generate_stream" and model.text("on_abandon") == "disconnect":
        yield Problem(
            ("models", index, "on_abandon"),
            f'"disconnect" frees nothing with kind = "{kind}": Triton runs such a call to its end whoever leaves; '
            'use "finish", or kind = "generate_stream"',
        )
    parameters = model.keys("parameters")
    text_input = model.text("text_input")
    for taken, holds in ((text_input, "the prompt's text"), ("id", "the request's id")):
        if taken is not None and taken in parameters:
            yield Problem(
                ("models", index, "parameters", taken),
                f"this name is taken: the governor sends {holds} under it; rename or remove the parameter",
            )


def _identities(models: Sequence[View]) -> Iterator[Problem]:
    """Two public names of one (backend, Triton model) are one identity: one pool of credits, one set of lanes."""
    first: dict[tuple[str, str], int] = {}
    for index, model in enumerate(models):
        backend, triton_model = model.text("backend"), model.text("triton_model")
        if backend is None or triton_model is None:
            continue
        earlier = first.setdefault((backend, triton_model), index)
        for key in ("slots", "lane_idle_ms"):
            mine, theirs = model.number(key), models[earlier].number(key)
            if mine is not None and theirs is not None and mine != theirs:
                yield Problem(
                    ("models", index, key),
                    f"received {mine}, but {dotted(('models', earlier, key))} is {theirs}, and both names are the "
                    f"model {show(triton_model)} on backend {show(backend)}, which is one identity with one set of "
                    "slots; give both the same value",
                )
