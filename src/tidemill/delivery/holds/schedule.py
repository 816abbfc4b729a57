"""Cron lines: when a schedule ticks next. Pure.

    [CRON_TZ=Europe/Berlin] [second] minute hour day-of-month month day-of-week

The fields are those of Debian's cron, read by cronsim; names (MON, JAN), `L`, `LW` and `1#2` are
its additions. A sixth field in front counts seconds, so ticks are a second apart at least. Without
a zone the line is in UTC.

Around a change of the clocks a line with fixed minutes and hours ticks once: a time that is left
out comes right after the gap, one that there is twice counts the first time. A line that begins its
minutes or hours with `*`, or has seconds, follows the time that passes. cronsim thinks in local
times: in the repeated hour it names ticks that have passed, and is asked on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tidemill.core.errors import TidemillError
from tidemill.core.limits import SCHEDULE_CHARS_MAX, SCHEDULE_ZONES_MAX

__all__ = ["ScheduleError", "next_tick_ms"]

_ZONE_PREFIX = "CRON_TZ="
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class ScheduleError(TidemillError):
    """A line that is not a schedule, or never ticks."""


def next_tick_ms(line: str, *, after_ms: int) -> int:
    """The first tick later than `after_ms`, in epoch milliseconds; ScheduleError if none comes.

    A search ends after 50 years without a tick and takes a few milliseconds at most.
    """
    if len(line) > SCHEDULE_CHARS_MAX:
        raise ScheduleError(f"a schedule has {SCHEDULE_CHARS_MAX} characters at most")
    fields, zone = _split(line)
    try:
        after = _EPOCH + after_ms * _MILLISECOND
        for tick in CronSim(fields, after.astimezone(zone)):
            if tick.astimezone(UTC) > after:
                return (tick.astimezone(UTC) - _EPOCH) // _MILLISECOND
    except CronSimError as error:
        raise ScheduleError(f"{line!a}: {str(error).lower()}") from None
    except (OverflowError, ValueError):
        pass  # the calendar ends with the year 9999
    raise ScheduleError(f"{line!a} never ticks")


def _split(line: str) -> tuple[str, tzinfo]:
    """The fields, and their zone."""
    if not line.startswith(_ZONE_PREFIX):
        return line, UTC
    name, _, fields = line.removeprefix(_ZONE_PREFIX).partition(" ")
    return fields, _zone(name)


@lru_cache(maxsize=SCHEDULE_ZONES_MAX)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # it is looked up as the name of a file
        raise ScheduleError(f"no time zone {name!a}") from None
