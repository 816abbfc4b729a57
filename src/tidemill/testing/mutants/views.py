"""Planted bugs of views."""

from __future__ import annotations

from tidemill.delivery.filter.parser import parse_selector
from tidemill.delivery.filter.program import Assembler
from tidemill.hot.header_match import Program
from tidemill.testing.mutants.planting import Function, mutant

__all__: list[str] = []


@mutant("no skip batch", "tidemill.delivery.view_walk:ViewWalk._skip")
def _no_skip_batch(_original: Function) -> Function:
    return lambda _walk: b""


@mutant("unknown matches", "tidemill.server.fetching.view_reader:compile_selector")
def _unknown_matches(_original: Function) -> Function:
    def compile_selector(text: str) -> Program:
        # Everything but false: the condition, or that it is unknown.
        tree = parse_selector(text)
        assembler = Assembler()
        assembler.condition(tree)
        assembler.condition(tree)
        assembler.put("IS_NULL", height=0)
        assembler.put("OR", height=-1)
        return assembler.program()

    return compile_selector


@mutant("jump over matches", "tidemill.delivery.matchless:MatchlessRanges.end_from")
def _jump_over_matches(_original: Function) -> Function:
    return lambda ranges, offset: max([offset, *ranges._ends])
