"""Which files of a machine cron reads, and in which form. Reads names and texts; runs nothing."""

from __future__ import annotations

import re
from pathlib import Path

from workers.importing.crontab import read_crontab
from workers.importing.entries import Context, Notice, Reading, Unreadable
from workers.importing.texts import read_text

MOST_FILES = 1_000
_READ_BY_CRON = re.compile(r"[A-Za-z0-9_-]+")


def read_crontabs(
    paths: list[str],
    *,
    context: Context,
    system: bool | None = None,
    honour_zone: bool = True,
) -> Reading:
    """All rules of files and folders.

    Args:
        paths: Files, folders such as /etc/cron.d, or `-` for standard input.
        context: Zone of the machine, and the time.
        system: Lines name a user; None: as the name of the file tells.
        honour_zone: As in `read_crontab`.
    """
    reading = Reading()
    for path in paths:
        for file in _files(path, reading):
            try:
                text = read_text(file)
            except Unreadable as fault:
                reading.notices.append(Notice(file, "unreadable", str(fault), wrong=True))
                continue
            named = _is_system(file) if system is None else system
            reading.add(
                read_crontab(
                    text,
                    place=file,
                    context=context,
                    system=named,
                    user="" if named else _owner(file),
                    honour_zone=honour_zone,
                )
            )
    return reading


def _files(path: str, reading: Reading) -> list[str]:
    """The file, or those of a folder that cron reads; for the others a notice."""
    folder = Path(path)
    if path == "-" or not folder.is_dir():
        return [path]
    try:
        names = sorted(one.name for one in folder.iterdir())
    except OSError as error:
        reading.notices.append(Notice(path, "unreadable", f"{error.strerror}", wrong=True))
        return []
    files = []
    for name in names[:MOST_FILES]:
        place = str(folder / name)
        if (folder / name).is_dir():
            text = "a folder within a folder is not read, as cron does"
        elif not _READ_BY_CRON.fullmatch(name):
            text = "not read: cron reads only names of letters, digits, - and _ (no dot, no ~)"
        else:
            files.append(place)
            continue
        if name != ".placeholder":  # Debian's own, empty but for a comment
            reading.notices.append(Notice(place, "file_name", text))
    if len(names) > MOST_FILES:
        text = f"has more than {MOST_FILES} files; the rest is not read"
        reading.notices.append(Notice(path, "too_many", text, wrong=True))
    return files


def _is_system(path: str) -> bool:
    """/etc/crontab and the files of a cron.d, wherever a copy of the machine lies."""
    file = Path(path)
    return file.parent.name == "cron.d" or file.parts[-2:] == ("etc", "crontab")


def _owner(path: str) -> str:
    """Files of /var/spool/cron/crontabs are named after their users."""
    file = Path(path)
    return file.name if file.parent.name == "crontabs" else ""
