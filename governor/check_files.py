"""What `governor check` finds of the files that a configuration names. Makes and changes none."""

from __future__ import annotations

import os
from pathlib import Path

from governor.check_model import Finding
from governor.config.problems import show


def examine_audit_file(name: str | None) -> list[Finding]:
    """Whether `server.audit_file` can be written (A7); nothing without one.

    What cannot is a warning: the governor may run as another user than the check.
    """
    if name is None:
        return []
    subject, why = "server.audit_file", _why_not(Path(name))
    if why is None:
        return [Finding("ok", subject, f"{show(name)} can be written")]
    sentence = f"{show(name)} cannot be written by this user: {why}; while that is so, no act of an operator is done"
    return [Finding("warning", subject, sentence, "make it writable for the user that the governor runs as")]


def _why_not(path: Path) -> str | None:
    try:
        return _what_stands_against(path)
    except OSError as error:  # it may not even look
        return error.strerror or str(error)


def _what_stands_against(path: Path) -> str | None:
    if path.is_symlink():
        return "it is a link, and links are not followed"
    if path.is_dir():
        return "it is a folder"
    if path.exists():
        return None if os.access(path, os.W_OK) else "it may not"
    if not path.parent.is_dir():
        return f"there is no folder {show(str(path.parent))}"
    return None if os.access(path.parent, os.W_OK | os.X_OK) else f"it may make no file in {show(str(path.parent))}"
