"""What differs between Triton releases in what they count and answer, as measured on each."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_VERSION = "2.51.0"


@dataclass(frozen=True)
class Rules:
    """How one Triton release counts.

    Attributes:
        version: the release, as `GET /v2` tells it.
        error_response_fails: a model's error response counts as a failure rather than as a success.
        queue_timeout_counts: a request that timed out in the queue counts as a failure.
        ensemble_failures: failures counted on an ensemble for one failed request.
        every_error_is_400: every error of an `infer` has HTTP status 400.
    """

    version: str
    error_response_fails: bool
    queue_timeout_counts: bool
    ensemble_failures: int
    every_error_is_400: bool


def rules_of(version: str = DEFAULT_VERSION) -> Rules:
    """The rules of a release such as "2.51.0".

    Raises:
        ValueError: it is no version of the form 2.MINOR or 2.MINOR.PATCH.
    """
    parts = version.split(".")
    if len(parts) not in {2, 3} or not all(part.isdigit() for part in parts) or parts[0] != "2":
        raise ValueError(f'"{version}" is no Triton version: give one like "{DEFAULT_VERSION}"')
    minor = int(parts[1])
    return Rules(
        version=version,
        error_response_fails=minor <= 44,
        queue_timeout_counts=minor >= 48,
        ensemble_failures=1 if 41 <= minor <= 47 else 2,
        every_error_is_400=minor <= 41,
    )
