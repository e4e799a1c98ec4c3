"""The API server's clock, as far as it can be told from outside: by the Date header of its answers.

One rule: this machine's own clock is never asked, only its monotonic one, so that a wrong or stepping clock here
changes nothing. A Date is cut to whole seconds and some time on its way; the latest offset that any answer has shown is
the closest. Where the server's clock steps back, the count begins anew.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from dispatch_core.errors import SchedulerUnavailable

CLOCK_SECONDS = 2.0
"""The largest error: one second that a Date is cut by, and one between the API servers of a cluster."""
DRIFT_SECONDS = 600.0
"""After so long an offset is taken anew, since two clocks do not run alike."""


class HostClock:
    """Host time, from monotonic seconds."""

    def __init__(self) -> None:
        self._offset: float | None = None
        """Host seconds since 1970, less monotonic ones."""
        self._since = 0.0

    @property
    def is_set(self) -> bool:
        return self._offset is not None

    def heard(self, date: str, sent: float, received: float) -> None:
        """Take one answer's Date header; a malformed one is no news."""
        try:
            told = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError):
            return
        offset = told - received
        stepped = self._offset is not None and told + 1.0 + CLOCK_SECONDS - sent < self._offset
        if self._offset is None or stepped or received - self._since > DRIFT_SECONDS:
            kept = None if stepped or self._offset is None else self._offset - CLOCK_SECONDS / 2
            self._offset = offset if kept is None else max(offset, kept)
            self._since = received
        self._offset = max(self._offset, offset)

    def at(self, monotonic: float) -> datetime:
        """Host time at a monotonic one. Raises SchedulerUnavailable before the first answer."""
        if self._offset is None:
            raise SchedulerUnavailable("no answer of the API server has told its time yet")
        return datetime.fromtimestamp(0, UTC) + timedelta(seconds=monotonic + self._offset)
