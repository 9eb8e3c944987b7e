"""A small table of what was built, by arguments: the same object for the same arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """At most `limit` values; beyond that the oldest goes. Building happens outside the lock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[Hashable, T] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """The value for the key, built if it is new; of two threads that build, the first one's."""
        with self._lock:
            if key in self._values:
                return self._values[key]
        value = build()
        with self._lock:
            value = self._values.setdefault(key, value)
            if len(self._values) > self._limit:
                del self._values[next(iter(self._values))]
        return value


def freeze(kernel: str, values: Mapping[str, Any]) -> Hashable:
    """A key that tells apart all that gives another text: 1 from 1.0 and True, 0.0 from -0.0."""
    return tuple((name, _key(kernel, name, value)) for name, value in sorted(values.items()))


def _key(kernel: str, name: str, value: Any) -> Hashable:
    if isinstance(value, float):
        return type(value), value.hex()
    if isinstance(value, tuple):
        return type(value), tuple(_key(kernel, name, v) for v in value)
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{kernel}: the constant {name} must be hashable, got {type(value).__name__}; "
            "a tuple does where a list does not"
        ) from None
    return type(value), value
