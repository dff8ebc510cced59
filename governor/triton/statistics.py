"""The statistics of one model, read strictly: a doubtful number is no number (E5, E9).

Evidence frees slot credits, so a statistics answer is either entirely what Triton promises or refused with a
reason. Nothing is repaired, defaulted or rounded.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from governor.core.counting import Counts
from governor.errors import BackendError
from governor.triton.jsons import parse_json

if TYPE_CHECKING:
    from governor.errors import JsonValue

MAX_STATISTICS_BYTES = 4 * 1024 * 1024
MAX_COUNT = 2**63
"""Triton counts in unsigned 64 bits; a counter past this is broken, not busy."""
_MAX_VERSION_DIGITS = 19


class Refusal(enum.Enum):
    """Why a body is no reading. The values are stable: they label metrics and logs."""

    TOO_LARGE = "too_large"
    NOT_JSON = "not_json"
    MALFORMED = "malformed"
    MODEL_MISSING = "model_missing"
    NOT_AN_INTEGER = "not_an_integer"
    NEGATIVE = "negative"
    HUGE = "huge"
    BAD_VERSION = "bad_version"
    DUPLICATE_VERSION = "duplicate_version"
    DUPLICATE_SERIES = "duplicate_series"
    BAD_METRICS = "bad_metrics"
    MODEL_UNAVAILABLE = "model_unavailable"
    HTTP_STATUS = "http_status"


class ReadingRefusedError(BackendError):
    """E9: what the backend said about its counters is no reading; the claims stay as they are.

    Attributes:
        refusal: why; its value is stable.
    """

    code = "reading_refused"

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(f"No reading ({refusal.value}): {detail}", reason=refusal.value)
        self.refusal = refusal

    @property
    def reason(self) -> str:
        """The refusal's stable name."""
        return self.refusal.value


@dataclass(frozen=True, slots=True)
class VersionCounts:
    """What one loaded version counted. All values only grow while the version stays loaded.

    Attributes:
        version: the version's name, digits.
        success: requests that ended well (S).
        fail: requests that ended in an error that Triton counts (F).
        success_ns: time of the successful requests, nanoseconds, added up.
        fail_ns: the same for the failed ones.
        inference_count: batch elements; says nothing about ends (E5).
        execution_count: executions; says nothing about ends either.
        last_inference_ms: when the last execution ended, Unix milliseconds; Triton never lets it go back.
    """

    version: str
    success: int
    fail: int
    success_ns: int
    fail_ns: int
    inference_count: int
    execution_count: int
    last_inference_ms: int


@dataclass(frozen=True)
class ModelCounts:
    """The counts of all loaded versions of one model, ordered by version."""

    model: str
    versions: tuple[VersionCounts, ...]

    @cached_property
    def success(self) -> int:
        """S, summed over versions."""
        return sum(each.success for each in self.versions)

    @cached_property
    def fail(self) -> int:
        """F, summed over versions."""
        return sum(each.fail for each in self.versions)

    @property
    def ends(self) -> int:
        """E5: the end counter, S + F."""
        return self.success + self.fail

    @property
    def counts(self) -> Counts:
        """S and F as the ledger takes them."""
        return Counts(success=self.success, fail=self.fail)

    @property
    def life(self) -> tuple[int, ...]:
        """Further sums that never fall while the same versions stay loaded: one that does tells a new life."""
        return (
            sum(each.success_ns for each in self.versions),
            sum(each.fail_ns for each in self.versions),
            sum(each.inference_count for each in self.versions),
            sum(each.execution_count for each in self.versions),
            max(each.last_inference_ms for each in self.versions),
        )


def parse_statistics(body: bytes, model: str) -> ModelCounts:
    """Read the answer of `GET /v2/models/{model}/stats`.

    Raises:
        ReadingRefusedError: anything but a complete, consistent set of counts of this model.
    """
    if len(body) > MAX_STATISTICS_BYTES:
        raise ReadingRefusedError(Refusal.TOO_LARGE, f"{len(body)} bytes, at most {MAX_STATISTICS_BYTES} are read")
    try:
        document = parse_json(body)
    except ValueError as error:
        raise ReadingRefusedError(Refusal.NOT_JSON, str(error)) from error
    entries = _member(document, "model_stats")
    if not isinstance(entries, list):
        raise ReadingRefusedError(Refusal.MALFORMED, '"model_stats" is not a list')
    versions: dict[str, VersionCounts] = {}
    for entry in entries:
        if _member(entry, "name") != model:
            continue
        counts = _version(entry)
        if counts.version in versions:
            raise ReadingRefusedError(Refusal.DUPLICATE_VERSION, f'version "{counts.version}" occurs twice')
        versions[counts.version] = counts
    if not versions:
        raise ReadingRefusedError(Refusal.MODEL_MISSING, f'the statistics do not name model "{model}"')
    return ModelCounts(model, tuple(versions[name] for name in sorted(versions)))


def _version(entry: JsonValue) -> VersionCounts:
    version = _member(entry, "version")
    if not (
        isinstance(version, str) and version.isascii() and version.isdigit() and len(version) <= _MAX_VERSION_DIGITS
    ):
        raise ReadingRefusedError(Refusal.BAD_VERSION, f"{str(version)[:80]!r} is no version of a model")
    outcomes = _member(entry, "inference_stats")
    success, fail = _member(outcomes, "success"), _member(outcomes, "fail")
    return VersionCounts(
        version=version,
        success=_count(success, "count"),
        fail=_count(fail, "count"),
        success_ns=_count(success, "ns"),
        fail_ns=_count(fail, "ns"),
        inference_count=_count(entry, "inference_count"),
        execution_count=_count(entry, "execution_count"),
        last_inference_ms=_count(entry, "last_inference"),
    )


def _member(value: JsonValue, key: str) -> JsonValue:
    if not isinstance(value, dict):
        raise ReadingRefusedError(Refusal.MALFORMED, f'an object with "{key}" was expected')
    if key not in value:
        raise ReadingRefusedError(Refusal.MALFORMED, f'"{key}" is missing')
    return value[key]


def _count(value: JsonValue, key: str) -> int:
    number = _member(value, key)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ReadingRefusedError(Refusal.NOT_AN_INTEGER, f'"{key}" is {str(number)[:80]!r}')
    if number < 0:
        raise ReadingRefusedError(Refusal.NEGATIVE, f'"{key}" is {number}')
    if number > MAX_COUNT:
        raise ReadingRefusedError(Refusal.HUGE, f'"{key}" is more than 2**63')
    return number
