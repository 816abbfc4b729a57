"""The few loops that must touch every record, compiled where there is a C compiler (D14).

Each module is an ordinary `.py` with a `.pxd` beside it that gives Cython the C types. Where the
extension could not be built the same `.py` runs as it is, slower. `hot` imports nothing of ours.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

__all__ = ["MODULES", "compiled_modules"]

MODULES = (
    "arrow_cells",
    "byte_copy",
    "column_encode",
    "key_offsets",
    "murmur2",
    "record_columns",
    "record_encode",
    "record_sift",
    "record_walk",
    "row_partitions",
    "varint",
)


def compiled_modules() -> dict[str, bool]:
    """For each hot module, whether an import of it gets compiled code."""
    return {name: _is_extension(f"{__name__}.{name}") for name in MODULES}


def _is_extension(name: str) -> bool:
    spec = find_spec(name)
    origin = spec.origin if spec is not None else None
    return origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES))
