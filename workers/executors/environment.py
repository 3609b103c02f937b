"""Which environment variables the processes of handlers see: what programs need to run, and no secret of the scheduler."""

from __future__ import annotations

from collections.abc import Collection, Mapping

KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE"),
        *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("DJANGO_SETTINGS_MODULE", "LOG_FORMAT", "LOG_LEVEL"),
    }
)
KEPT_PREFIXES = ("LC_", "PYTHON", "DUEKEEPER_")
# Settings cannot be loaded without these. They are there while that happens, and gone before a handler runs.
FOR_SETTINGS = ("DATABASE_URL", "DUEKEEPER_LISTEN_URL")
SECRET_WORDS = ("SECRET", "TOKEN", "PASSWORD", "KEY")


def split(
    environ: Mapping[str, str], passed: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The environment of handlers, and what is needed besides until the settings are loaded.

    Args:
        environ: Of the worker.
        passed: Names that an operator wants handlers to have, whatever they hold.
    """
    visible: dict[str, str] = {}
    private: dict[str, str] = {}
    for name, value in environ.items():
        if name in passed or _is_kept(name):
            visible[name] = value
        elif name.removesuffix("_FILE") in FOR_SETTINGS:
            private[name] = value
    return visible, private


def _is_kept(name: str) -> bool:
    if name.removesuffix("_FILE") in FOR_SETTINGS:
        return False
    if name in KEPT:
        return True
    own = name.startswith("DUEKEEPER_") and any(word in name for word in SECRET_WORDS)
    return name.startswith(KEPT_PREFIXES) and not own
