"""What handlers hand back, made storable.

Owns text, results and exceptions on their way into the database. Nothing here raises, whatever a handler produced:
an outcome that cannot be recorded would take the worker down or leave the job running for ever.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import math
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import PurePath
from types import CodeType, TracebackType
from typing import NamedTuple
from uuid import UUID

from jobs.policies.times import format_time

MESSAGE_BYTES = 16 * 1024
MAX_DEPTH = 32
CUT_MARK = "… [cut]"

_NAME_BYTES = 255
_MAX_NODES = 50_000
_MAX_GROUP = 100_000
_UNSTORABLE = re.compile(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]")
_OWN_PACKAGES = frozenset({"jobs", "workers"})
_LIBRARIES = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class ErrorText(NamedTuple):
    """An exception as it is stored.

    Attributes:
        type: Class name, at most 255 bytes.
        message: At most 16 KiB.
        where: Innermost frame of the application as "module:function:line"; of a library when the application has
            none; "" when there is no traceback.
    """

    type: str
    message: str
    where: str


def clean_text(value: object, limit_bytes: int) -> str:
    """`str(value)` as PostgreSQL can hold it, at most `limit_bytes` of UTF-8. Never raises.

    NUL, other control characters except newline and tab, and lone surrogates become U+FFFD; Windows line ends become
    newlines. A longer text is cut between characters and ends with `CUT_MARK` (where that fits). When `str()` raises,
    the text says so and names the class.
    """
    # Cut roughly first: a message of gigabytes must not be copied three times. Twice the limit, for \r\n shrinks to \n.
    text = _clean(_text_of(value)[: 2 * max(limit_bytes, 0) + 2])
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    mark = CUT_MARK if limit_bytes >= len(CUT_MARK.encode()) else ""
    room = max(limit_bytes - len(mark.encode()), 0)
    return encoded[:room].decode(errors="ignore") + mark


def clean_json(value: object, limit_bytes: int) -> object:
    """`value` as JSON that jsonb accepts, at most `limit_bytes` as compact UTF-8. Never raises.

    NaN, infinities, integers beyond 64 bits, Decimal, UUID, paths and times become text; bytes become text or
    "base64:…"; tuples and sets become lists; mappings and dataclasses become objects with text keys; enums their value;
    timedelta seconds; anything else its class name. Cycles and levels below the 32nd are replaced by a remark.

    A larger value becomes `{"truncated": true, "bytes": n, "head": "…"}`: its size (a lower bound after 50,000 values)
    and the start of its JSON. That form takes at least about 50 bytes, however small the limit.
    """
    conversion = _Conversion()
    plain = conversion.plain(value, 1)
    text = _compact(plain)
    size = len(text.encode())
    if size <= limit_bytes and not conversion.cut:
        return plain
    room = limit_bytes
    while True:
        # Quotes and backslashes take two bytes inside a JSON text, so the room is found by trying.
        remark = {"truncated": True, "bytes": size, "head": clean_text(text, room)}
        over = len(_compact(remark).encode()) - limit_bytes
        if over <= 0 or room <= 0:
            return remark
        room -= (over + 1) // 2


def describe_exception(exc: BaseException) -> ErrorText:
    """Class name, message and place of an exception. Never raises, whatever `__str__` or `__class__` do.

    A group says how many exceptions it holds, and of which classes.
    """
    message = _text_of(exc)
    if issubclass(type(exc), BaseExceptionGroup):
        message = f"{_inside(exc)}: {message}"
    return ErrorText(_class_name(exc), clean_text(message, MESSAGE_BYTES), _where(exc))


def fingerprint(handler: str, error_type: str, message: str, where: str) -> str:
    """16 hex digits under which dead letters with one cause are grouped.

    In the message, quoted text and every word with a digit in it (numbers, ids, times, hexadecimal) are blanked. The
    line number of `where` is left out: a release that moves a line must not split a group.

    >>> ann = fingerprint("mail.send", "SMTPError", "450 mailbox 'ann@example.org' busy", "shop.mail:send:12")
    >>> ann == fingerprint("mail.send", "SMTPError", "451 mailbox 'bob@example.org' busy", "shop.mail:send:15")
    True
    """
    frame = re.sub(r":[0-9]+\Z", "", where)
    parts = [clean_text(part, MESSAGE_BYTES) for part in (handler, error_type, message, frame)]
    parts[2] = _blanked(parts[2])
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


class _Conversion:
    """One conversion to plain JSON: what is remembered while going through the value."""

    def __init__(self) -> None:
        self.nodes = 0
        self.cut = False  # more than _MAX_NODES values; parts that share parts unfold without end
        self.path: set[int] = set()  # ids of the values that the present one is inside of

    def plain(self, value: object, depth: int) -> object:
        """`value`, inside `depth` - 1 containers, as plain JSON."""
        self.nodes += 1
        if value is None or value is True or value is False:
            return value
        if id(value) in self.path:
            return "[contains itself]"
        self.path.add(id(value))
        try:
            return self._plain(value, depth)
        except BaseException:  # noqa: BLE001  # attributes and iteration run code of the handler's object
            return _class_name(value)
        finally:
            self.path.discard(id(value))

    def _plain(self, value: object, depth: int) -> object:
        # Methods of the base class, not of the value: a subclass may override them, and `__class__` may lie.
        match value:
            case enum.Enum():
                return self.plain(value.value, depth)
            case str():
                return _clean(str.__str__(value))
            case int():
                return _plain_integer(int.__int__(value))
            case float():
                return _plain_float(float.__float__(value))
            case datetime():
                return _clean(format_time(value) if value.tzinfo else datetime.isoformat(value))
            case date():
                return date.isoformat(value)
            case time():
                return _clean(time.isoformat(value))
            case timedelta():
                return timedelta.total_seconds(value)
            case Decimal() | UUID() | PurePath() | complex():
                return _clean(_text_of(value))
            case bytes() | bytearray() | memoryview():
                return _plain_bytes(bytes(value))
        if depth > MAX_DEPTH:
            return f"[deeper than {MAX_DEPTH} levels]"
        match value:
            case dict():
                return self._object(dict.items(value), depth)
            case list():
                return self._array(list.__iter__(value), depth)
            case tuple():
                return self._array(tuple.__iter__(value), depth)
            case set() | frozenset():
                # Sorted, for the order of a set differs between processes.
                return sorted(self._array(iter(value), depth), key=_compact)
            case Mapping():
                return self._object(value.items(), depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = (field.name for field in dataclasses.fields(value))
            return self._object(((name, getattr(value, name)) for name in names), depth)
        return _class_name(value)

    def _array(self, items: Iterable[object], depth: int) -> list[object]:
        result = []
        for item in items:
            if self.nodes >= _MAX_NODES:
                self.cut = True
                break
            result.append(self.plain(item, depth + 1))
        return result

    def _object(self, pairs: Iterable[tuple[object, object]], depth: int) -> dict[str, object]:
        result: dict[str, object] = {}
        for key, member in pairs:
            if self.nodes >= _MAX_NODES:
                self.cut = True
                break
            plain_key = self.plain(key, depth + 1)
            name = plain_key if isinstance(plain_key, str) else _compact(plain_key)
            while name in result:  # 1 and "1" are two keys in Python
                name += f" #{len(result) + 1}"
            result[name] = self.plain(member, depth + 1)
        return result


def _compact(plain: object) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _clean(text: str) -> str:
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def _text_of(value: object) -> str:
    try:
        return str.__str__(str(value))  # the outer call turns a subclass of str into str itself
    except BaseException:  # noqa: BLE001  # __str__ is a handler's code and may raise anything, SystemExit included
        return f"[{_class_name(value)}: text not readable]"


def _class_name(value: object) -> str:
    # Past a metaclass that overrides __name__ and a __class__ that lies.
    name: str = type.__dict__["__name__"].__get__(type(value))
    return clean_text(name, _NAME_BYTES)


def _plain_integer(number: int) -> int | str:
    if -(2**63) <= number < 2**63:
        return number
    # Python refuses to write integers of more than 4,300 digits in decimal; hexadecimal has no limit.
    return str(number) if number.bit_length() < 14_000 else hex(number)


def _plain_float(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _plain_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if _UNSTORABLE.search(text):
        return "base64:" + base64.b64encode(value).decode()
    return text


def _inside(group: BaseException) -> str:
    kinds: Counter[str] = Counter()
    waiting = [group]
    # A loop and a bound: groups nest thousands deep and may hold one another's parts many times.
    while waiting and kinds.total() < _MAX_GROUP:
        exc = waiting.pop()
        if issubclass(type(exc), BaseExceptionGroup):
            waiting.extend(BaseExceptionGroup.__dict__["exceptions"].__get__(exc))
        else:
            kinds[_class_name(exc)] += 1
    named = [f"{count} {name}" for name, count in kinds.most_common(3)]
    if len(kinds) > len(named) or waiting:
        named.append("more")
    return f"{kinds.total()} exceptions inside ({', '.join(named)})"


def _where(exc: BaseException) -> str:
    best, place = -1, ""
    step: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(exc)
    while step is not None:
        code, module = step.tb_frame.f_code, _text_of(step.tb_frame.f_globals.get("__name__", "?"))
        nearness = _nearness(code, module)
        if nearness >= best:  # of equals the innermost, which comes last
            best, place = nearness, f"{module}:{code.co_qualname}:{step.tb_lineno}"
        step = step.tb_next
    return clean_text(place, 2 * _NAME_BYTES)


def _nearness(code: CodeType, module: str) -> int:
    """2 for the application, 1 for a library, 0 for the engine that called the handler."""
    if module.partition(".")[0] in _OWN_PACKAGES:
        return 0
    return 1 if code.co_filename.startswith((*_LIBRARIES, "<frozen ")) else 2


def _blanked(message: str) -> str:
    quoted = r"""(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|`[^`\n]*`|“[^”\n]*”"""
    text = re.sub(quoted, "#", message)
    # Word by word and not by one pattern that looks for a digit inside a word: that takes quadratic time.
    text = re.sub(r"[\w-]+", lambda word: "#" if _is_value(word.group()) else word.group(), text)
    return re.sub(r"#(?:[.,:;/+-]*\s?#)+", "#", text)


def _is_value(word: str) -> bool:
    return any(c.isdigit() for c in word) or re.fullmatch(r"[a-fA-F-]{8,}", word) is not None
