"""What changes in a running broker when one of its dynamic keys is set: one function per key."""

from __future__ import annotations

from collections import UserDict


class Effects(UserDict):
    """The tests of some keys: each is called with a broker and a function that sets the key."""

    def of(self, key):
        def register(effect):
            assert key not in self
            self[key] = effect
            return effect

        return register
