"""When a record is to be delivered, as people type it: a length of time, a time, a cron line."""

from __future__ import annotations

from datetime import datetime

import click

from tidemill.client.holding.delay_headers import Delay, DelayHeaders, DeliverAt, Schedule
from tidemill.core.config.durations import parse_duration_ms
from tidemill.core.errors import UserError

__all__ = ["parse_delay", "parse_length", "parse_time"]


def parse_length(text: str, option: str) -> str:
    """A length of time such as 1h30m, checked; UserError."""
    try:
        parse_duration_ms(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
    return text


def parse_time(text: str, option: str) -> datetime:
    """An ISO 8601 time, local if bare; UserError."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UserError(f"{option} {text}: expected a time such as 2026-11-15T21:30:00Z") from None


def parse_delay(
    delay: str | None, deliver_at: str | None, schedule: str | None, message_id: str | None
) -> DelayHeaders:
    """The headers of the options of `produce`; none if none is given. UserError."""
    given = [one for one in (delay, deliver_at, schedule) if one is not None]
    if len(given) > 1:
        raise click.UsageError("--delay, --deliver-at and --schedule exclude each other")
    if not given and message_id is not None:
        raise click.UsageError("--id needs --delay, --deliver-at or --schedule")
    try:
        if delay is not None:
            return Delay(parse_length(delay, "--delay"), id=message_id)
        if deliver_at is not None:
            return DeliverAt(parse_time(deliver_at, "--deliver-at"), id=message_id)
        if schedule is None:
            return DelayHeaders()
        if message_id is None:
            raise click.UsageError("--schedule needs --id, under which it can be cancelled")
        return Schedule(schedule, id=message_id)
    except ValueError as error:
        raise UserError(f"--id: {error}") from None
