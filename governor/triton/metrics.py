"""How many requests of a model ended in the life of the server's process, from its Prometheus metrics (E7).

`nv_inference_request_success` and `nv_inference_request_failure{reason=...}` go on counting across a reload, also
for work of the old instance, where the statistics start anew. Only these two families are looked at; the rest of
the text may be anything.
"""

from __future__ import annotations

import re

from governor.core.counting import Counts
from governor.triton.statistics import ReadingRefusedError, Refusal

MAX_METRICS_BYTES = 16 * 1024 * 1024
_SUCCESS = b"nv_inference_request_success"
_FAILURE = b"nv_inference_request_failure"
_EXACT = 2.0**53
"""Metrics are floats: above this, adding one request may change nothing."""

_PAIR = r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"'
_LABEL = re.compile(_PAIR)
_SERIES = re.compile(rf"[a-z_]+\{{(?P<labels>{_PAIR}(?:,{_PAIR})*,?)\}}[ \t]+(?P<value>\S{{1,64}})")
_ESCAPE = re.compile(r"\\(.)")


def parse_process_counts(body: bytes, model: str) -> Counts | None:
    """Read the answer of `GET /metrics`.

    Returns:
        S and F of the model in the life of the process, summed over versions and devices; None when the process
        has no such series, because the model is not loaded or the server exports no metrics per model.

    Raises:
        ReadingRefusedError: a series of the two families cannot be read exactly.
    """
    if len(body) > MAX_METRICS_BYTES:
        raise ReadingRefusedError(Refusal.TOO_LARGE, f"{len(body)} bytes, at most {MAX_METRICS_BYTES} are read")
    seen: set[tuple[bytes, frozenset[tuple[str, str]]]] = set()
    totals: dict[bytes, int] = {}
    for line in body.split(b"\n"):
        family = next((name for name in (_SUCCESS, _FAILURE) if line.startswith(name + b"{")), None)
        if family is None:
            continue
        labels, value = _series(line)
        if ("model", model) not in labels:
            continue
        if (family, labels) in seen:
            raise ReadingRefusedError(Refusal.DUPLICATE_SERIES, f"{family.decode()} has the same labels twice")
        seen.add((family, labels))
        totals[family] = totals.get(family, 0) + value
    if _SUCCESS not in totals:
        return None
    return Counts(success=totals[_SUCCESS], fail=totals.get(_FAILURE, 0))


def parse_process_ends(body: bytes, model: str) -> int | None:
    """S + F of `parse_process_counts`. Raises as it does."""
    counts = parse_process_counts(body, model)
    return None if counts is None else counts.success + counts.fail


def _series(line: bytes) -> tuple[frozenset[tuple[str, str]], int]:
    match = _SERIES.fullmatch(line.decode("utf-8", errors="replace").rstrip("\r"))
    pairs = _LABEL.findall(match["labels"]) if match is not None else []
    labels = frozenset((name, _ESCAPE.sub(_unescape, value)) for name, value in pairs)
    try:
        number = float(match["value"]) if match is not None else -1.0
    except ValueError:
        number = -1.0
    if len(labels) != len(pairs) or not 0 <= number <= _EXACT or number != int(number):
        raise ReadingRefusedError(Refusal.BAD_METRICS, f"{line[:120]!r} is no series with an exact count")
    return labels, int(number)


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
