"""Durations and sizes as people write and read them: `2h`, `1d 12h`, `PT90S`, `16GiB`.

One rule: what could mean two things is refused, with the spelling that means one. A duration without a unit is seconds;
a size without one is refused. `K`, `M`, `G`, `T` are powers of 1024, as Slurm has them, and so are `KiB`, `MiB`, ...;
`KB`, `MB`, ... are powers of 1000. Raises BadInput, and knows neither files nor records.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

from dispatch_core.errors import BadInput

LONGEST_SECONDS = 3650 * 86400.0
"""Longer than any job, and short enough that every sum with a date is one."""

LARGEST_BYTES = 2**53
"""Above it, a size would not survive every JSON reader."""

UNIT_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}

_UNITS = {
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    "ms": 0.001,
}

_PART = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]+)", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)(i?B)?", re.ASCII | re.IGNORECASE)

SPELLINGS = "write it like 90s, 10m, 2h, 1d 12h or PT2H"
MOMENTS = "write it like 2026-01-31, 2026-01-31T18:00:00Z or 30d (so long ago)"
SIZES = "write it like 512M, 16GiB or 2T"


def read_seconds(value: str | int | float | timedelta) -> float:
    """Seconds in a duration: `2h`, `1d 12h`, ISO 8601 (`PT90S`), a timedelta, or a number of seconds.

    >>> read_seconds("1d 12h")
    129600.0
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{_short(value)} is no duration; {SPELLINGS}")
    elif isinstance(value, str):
        seconds = _written_seconds(value.strip())
    else:
        # An int may be too large for a float.
        seconds = float(max(-LONGEST_SECONDS - 1, min(value, LONGEST_SECONDS + 1))) if value == value else math.nan
    if math.isnan(seconds):
        raise BadInput(f"{_short(value)} is no duration; {SPELLINGS}")
    if seconds < 0:
        raise BadInput(f"{_short(value)} is negative; {SPELLINGS}")
    if seconds > LONGEST_SECONDS:
        raise BadInput(f"{_short(value)} is longer than {LONGEST_SECONDS / 86400:g} days; write a shorter one")
    return seconds


def _written_seconds(text: str) -> float:
    if re.match(r"[-+]?P", text, re.IGNORECASE):
        return _iso_seconds(text)
    sign, text = (-1.0, text[1:].strip()) if text.startswith("-") else (1.0, text)
    if _NUMBER.fullmatch(text):
        return sign * float(text)
    rest, seconds, seen = text.lower(), 0.0, set[float]()
    while rest:
        part = _PART.match(rest)
        unit = _UNITS.get(part[2]) if part else None
        if part is None or unit is None or unit in seen:
            raise BadInput(f"{_short(text)} is no duration; {SPELLINGS}")
        seconds += float(part[1]) * unit
        seen.add(unit)
        rest = rest[part.end() :].lstrip(" ,")
    if not seen:
        raise BadInput(f"an empty text is no duration; {SPELLINGS}")
    return sign * seconds


def _iso_seconds(text: str) -> float:
    import pendulum  # slow to import, and few write ISO 8601

    if text.startswith("-"):
        return -_iso_seconds(text[1:])
    try:
        found = pendulum.parse(text.removeprefix("+").upper())
    except (ValueError, OverflowError):
        raise BadInput(f"{_short(text)} is no duration; {SPELLINGS}") from None
    if not isinstance(found, pendulum.Duration):
        raise BadInput(f"{_short(text)} is no duration; {SPELLINGS}")
    if found.years or found.months:
        raise BadInput(f"{_short(text)} counts months or years, which are not equally long; write days, like P30D")
    return float(found.total_seconds())


def read_moment(value: str, now: datetime) -> datetime:
    """A past moment as people write it: an ISO 8601 date or time, or how long ago it was (`30d`, `2h ago`).

    What names no zone is meant in `now`'s.

    >>> read_moment("30d", datetime(2026, 1, 31, tzinfo=UTC)).isoformat()
    '2026-01-01T00:00:00+00:00'
    """
    text = value.strip()
    if re.match(r"\d{4}-?\d{2}-?\d{2}(?:$|[T ])", text, re.ASCII):
        at = _iso_moment(text, now)
    else:
        try:
            at = now - timedelta(seconds=read_seconds(re.sub(r"\s+ago$", "", text)))
        except BadInput:
            raise BadInput(f"{_short(value)} is no moment; {MOMENTS}") from None
    if at > now:
        raise BadInput(f"{_short(value)} is still to come; {MOMENTS}")
    return at


def _iso_moment(text: str, now: datetime) -> datetime:
    import pendulum

    try:
        found = pendulum.parse(text, tz=now.tzinfo)
        if isinstance(found, pendulum.DateTime):
            return datetime.fromisoformat(found.isoformat())
    except (ValueError, OverflowError):
        pass
    raise BadInput(f"{_short(text)} is no moment; {MOMENTS}")


def read_bytes(value: str) -> int:
    """Bytes in a size: `512M` and `512MiB` (powers of 1024), `512MB` (powers of 1000).

    >>> read_bytes("16GiB")
    17179869184
    """
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not (found[2] or found[3]):
        unit = " without a unit" if isinstance(value, int | float) or (found and not isinstance(value, bool)) else ""
        raise BadInput(f"{_short(value)} is no size{unit}; {SIZES}")
    if found[3] and found[3].lower() == "ib" and not found[2]:
        raise BadInput(f"{_short(value)} is no size; {SIZES}")
    step = 1000 if found[3] and found[3].lower() == "b" and found[2] else 1024
    size = float(found[1]) * step ** (" KMGT".index(found[2].upper()) if found[2] else 0)
    if size > LARGEST_BYTES:
        raise BadInput(f"{_short(value)} is larger than any memory; {SIZES}")
    return int(size)


def say_seconds(seconds: float) -> str:
    """A duration in its two largest units.

    >>> say_seconds(129600)
    '1d 12h'
    """
    left, said = round(seconds), list[str]()
    if left < 1:
        return "0s" if seconds <= 0 else f"{seconds:.1g}s"
    for name, unit in UNIT_SECONDS.items():
        count, left = divmod(left, int(unit)) if name != "w" else (0, left)
        if count and len(said) < 2:
            said.append(f"{count}{name}")
        elif said:
            break
    return " ".join(said)


def say_ago(at: datetime, now: datetime) -> str:
    """How long ago a time was; a clock that differs may put it ahead."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{say_seconds(seconds)} ago" if seconds > 0 else f"in {say_seconds(-seconds)}"


def say_bytes(size: int) -> str:
    """A size in the largest unit that leaves it whole, or nearly."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.4g}{unit}"
    return f"{size}B"


def _short(value: object) -> str:
    """What was written, shortened; a number of thousands of digits cannot even be printed."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a number of this length"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
