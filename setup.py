"""Compiles what every record and every request runs through; the rest is in pyproject.toml.

Two kinds of modules are compiled, both ordinary Python (ADR 0005):

- `tidemill.hot`, the loops over records, by Cython with the C types of their `.pxd` files, and the
  threads that sync without the interpreter's lock, which have a `.pyx` beside their `.py`;
- the request path that `tidemill.core.compiled` lists, by mypyc from its annotations.

Both are an optimisation: without these tools, or with a C compiler that is missing or fails, the
build goes on and the same `.py` files run as they are, slower (`tidemill doctor` says so).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from sysconfig import get_config_var

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
HOT = SOURCE / "tidemill/hot"
LISTS = SOURCE / "tidemill/core/compiled.py"
BUILDING = {"build", "build_ext", "bdist_wheel", "editable_wheel"}

# Annotations stay documentation (the C types are in the .pxd files), and an index that escapes
# the checks raises instead of reading foreign memory.
CYTHON_DIRECTIVES = {
    "annotation_typing": False,
    "boundscheck": True,
    "wraparound": False,
    "cdivision": False,
    "language_level": 3,
}
# No configuration file: `make lint` is strict on our desks, where the libraries that we import are
# installed. Where a user builds they need not be.
MYPY_OPTIONS = ["--config-file=", "--ignore-missing-imports", "--cache-dir=build/mypyc/cache"]
# What the request path does is calls, not loops: -O1 serves it as well as -O3, in half the time.
MYPYC_OPT_LEVEL = "1"


class BuildCompiled(build_ext):
    """Builds on two cores, and the request path whole or not at all.

    Its extensions are thin: the code of all of them is in one library. One that is there without
    the library could not be imported, where its `.py` can.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or 2

    def build_extensions(self) -> None:
        super().build_extensions()
        names = [ext.name for ext in self.extensions if not ext.name.startswith("tidemill.hot.")]
        built = [Path(self.get_ext_fullpath(name)) for name in names]
        if not all(path.exists() for path in built):
            for path in built:
                path.unlink(missing_ok=True)

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        built = {Path(self.get_ext_fullpath(ext.name)).resolve() for ext in self.extensions}
        for path in SOURCE.resolve().rglob(f"*{get_config_var('EXT_SUFFIX')}"):
            if path in built:
                # A source may be newer and still the same, after a checkout: no reason to compile
                # it again, but the dates must say that it was looked at.
                path.touch()
            else:
                path.unlink()  # its module is no longer compiled, and the library lacks its code


def _hot_loops() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    typed = [path.with_suffix(".py") for path in HOT.rglob("*.pxd")]
    sources = sorted([*typed, *HOT.rglob("*.pyx")])
    extensions = [
        Extension(
            ".".join(source.relative_to(SOURCE).with_suffix("").parts),
            [str(source)],
            depends=[str(path) for path in [source.with_suffix(".pxd")] if path.exists()],
            extra_compile_args=["-O3", "-pthread"],
            extra_link_args=["-pthread"],
        )
        for source in sources
    ]
    compiled: list[Extension] = cythonize(
        extensions,
        build_dir="build/cython",
        compiler_directives=CYTHON_DIRECTIVES,
        include_path=["src"],
        quiet=True,
    )
    return compiled


def _request_path() -> list[Extension]:
    # The tools of packaging also run this file to read names and versions; mypyc takes seconds.
    if not BUILDING.intersection(sys.argv) or not LISTS.exists():
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        return []
    names: tuple[str, ...] = runpy.run_path(str(LISTS))["REQUEST_PATH"]
    sources = [str(SOURCE / name.replace(".", "/")) + ".py" for name in names]
    extensions: list[Extension] = mypycify(
        [*MYPY_OPTIONS, *sources],
        opt_level=MYPYC_OPT_LEVEL,
        debug_level="0",
        target_dir="build/mypyc",
        group_name="tidemill",
    )
    for extension in extensions:
        # Looking for things to warn about in generated code takes twice as long as compiling it.
        extension.extra_compile_args.append("-Wno-all")
    return extensions


def _optional(extensions: list[Extension]) -> list[Extension]:
    for extension in extensions:
        # Set here because cythonize makes new objects and drops the flag.
        extension.optional = True
    return extensions


setup(
    ext_modules=_optional([*_request_path(), *_hot_loops()]),
    cmdclass={"build_ext": BuildCompiled},
)
