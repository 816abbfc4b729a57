from __future__ import annotations

import pytest

from tests.unit.coordinators.runtime.runtime_host import Host


@pytest.fixture
def host(run):
    """Run a test body with a host on its own event loop: `host(body)`."""

    def start(body, **options):
        async def main():
            made = Host(**options)
            try:
                await body(made)
            finally:
                made.timers.stop()

        run(main())

    return start
