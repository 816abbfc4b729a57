"""Compiles `tidemill.hot` with Cython; everything else about the package is in pyproject.toml.

The extensions are an optimisation: without Cython, or with a C compiler that is missing or
fails, the build goes on and the same `.py` files run uncompiled (`tidemill doctor` says so).
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup

HOT = Path("src/tidemill/hot")
# Annotations stay documentation (the C types are in the .pxd files), and an index that escapes
# the checks raises instead of reading foreign memory.
DIRECTIVES = {
    "annotation_typing": False,
    "boundscheck": True,
    "wraparound": False,
    "cdivision": False,
    "language_level": 3,
}


def _extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    sources = sorted(path.with_suffix(".py") for path in HOT.glob("*.pxd"))
    extensions = [
        Extension(
            f"tidemill.hot.{source.stem}",
            [str(source)],
            depends=[str(source.with_suffix(".pxd"))],
            extra_compile_args=["-O3"],
        )
        for source in sources
    ]
    compiled: list[Extension] = cythonize(
        extensions,
        build_dir="build/cython",
        compiler_directives=DIRECTIVES,
        include_path=["src"],
        quiet=True,
    )
    for extension in compiled:
        # Here and not above: cythonize makes new objects and drops the flag.
        extension.optional = True
    return compiled


setup(ext_modules=_extensions())
