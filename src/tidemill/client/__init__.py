"""An asyncio client for `cli`, `spark`, followers and tests. Imports `core` and `wire`."""
