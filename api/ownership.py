"""One owner per identity: start-up takes an exclusive lock for each (D8, E10).

The locks are `flock`s on files in a folder of the user's, so the kernel gives them back when the process ends, however
it ends. They hold between processes of one user on one machine; beyond that only the counters can tell (E10).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from governor.errors import GovernorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from governor.config import Config

_FOLDER = "governor"
_LOOPBACK_NAMES = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}


class IdentityOwnedError(GovernorError):
    """Another governor process has an identity of this configuration."""

    code = "identity_owned"
    status = 409

    def __init__(self, url: str, model: str, owner: str) -> None:
        super().__init__(
            f'Model "{model}" on {url} is governed already, by {owner}. Two governors would each hand out all of its'
            " slots and each mistake the other's calls for its own, so that nothing either says about a free slot"
            " would be true. Stop the other one (several hypercorn workers are several governors: use one), or give"
            " this one other models."
        )


class OwnershipError(GovernorError):
    """The locks cannot be taken for another reason than a second owner."""

    code = "ownership_unavailable"
    status = 503


class OwnedIdentities:
    """The locks that this process holds."""

    def __init__(self) -> None:
        self._held: dict[Path, ExitStack] = {}

    def take(self, identities: Iterable[tuple[str, str]]) -> None:
        """Takes the locks of further identities, or of none.

        Args:
            identities: URL of the server and Triton's name of the model; those that are held already are passed over.

        Raises:
            IdentityOwnedError: another process holds one; none is taken then.
            OwnershipError: the folder of the locks cannot be used.
        """
        taken: dict[Path, ExitStack] = {}
        with ExitStack() as undo:
            try:
                folder = _folder()
                for url, model in sorted(set(identities)):
                    path = folder / _file_name(url, model)
                    if path in self._held or path in taken:
                        continue
                    taken[path] = ExitStack()
                    undo.push(taken[path])
                    taken[path].enter_context(_locked(path, url, model))
            except OSError as error:
                raise OwnershipError(
                    f"The lock that keeps a second governor away cannot be taken: {error}. Set XDG_RUNTIME_DIR to a"
                    " folder that only this user can write"
                ) from error
            undo.pop_all()
        self._held |= taken

    def give_back(self, url: str, model: str) -> None:
        """This process governs the identity no more."""
        held = self._held.pop(_folder() / _file_name(url, model), None)
        if held is not None:
            held.close()

    def close(self) -> None:
        """Gives everything back."""
        for held in self._held.values():
            held.close()
        self._held.clear()


@contextmanager
def owned_identities(config: Config) -> Iterator[OwnedIdentities]:
    """Holds the lock of every identity of a configuration.

    Raises:
        IdentityOwnedError: another process holds one; none is held then.
        OwnershipError: the folder of the locks cannot be used.
    """
    owned = OwnedIdentities()
    try:
        owned.take((config.backend(model.backend).url, model.triton_model) for model in config.models)
        yield owned
    finally:
        owned.close()


@contextmanager
def _locked(path: Path, url: str, model: str) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise IdentityOwnedError(url, model, f"process {owner}" if owner else "another process") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        # The file stays when the lock goes: removing it would let two processes lock two files of one name.
        yield
    finally:
        os.close(descriptor)


def _file_name(url: str, model: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    server = f"{parts.scheme}://{_LOOPBACK_NAMES.get(host, host)}:{parts.port or ''}{parts.path.rstrip('/')}"
    return hashlib.sha256(f"{server}\n{model}".encode()).hexdigest()[:32] + ".lock"


def _folder() -> Path:
    """The user's own folder for locks, made if it is missing.

    Raises:
        OSError: it is not the user's own, so that somebody else could hold or remove the locks.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        folder = Path(runtime) / _FOLDER
    else:
        folder = Path(tempfile.gettempdir()) / f"{_FOLDER}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user")
    return folder
