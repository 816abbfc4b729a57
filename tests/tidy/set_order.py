"""R5: nothing may depend on the order of a set or of a directory listing.

A set of strings has another order in every process, a set of objects another one at every address;
a simulation that iterates one cannot be repeated. What is statically visible is found here: set
literals and calls, names and `self` attributes that are bound or annotated as sets.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.source import Finding, Module

ORDER_FREE = frozenset({"sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all"})
UNORDERED_CALLS = frozenset({"set", "frozenset"})
UNORDERED_FUNCTIONS = frozenset({"listdir", "scandir", "iterdir", "glob", "rglob", "all_tasks"})
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
SET_TYPES = frozenset({"set", "frozenset", "AbstractSet", "MutableSet"})
ADVICE = "(R5): the order differs between runs; wrap it in sorted(), or keep a dict or a list"


def unordered_iteration(module: Module) -> Iterator[Finding]:
    sets = _set_names(module.tree)
    harmless = _inside_order_free_calls(module.tree)
    for node in ast.walk(module.tree):
        for iterated in _iterated(node, harmless):
            if _is_unordered(iterated, sets):
                yield module.finding(iterated, f"iterates `{ast.unparse(iterated)[:60]}` {ADVICE}")


def _iterated(node: ast.AST, harmless: set[ast.AST]) -> Iterator[ast.expr]:
    match node:
        case ast.For() | ast.AsyncFor():
            yield node.iter
        case ast.ListComp() | ast.DictComp() | ast.GeneratorExp() if node not in harmless:
            yield from (generator.iter for generator in node.generators)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter" | "enumerate" | "map" | "zip")):
            if node not in harmless:
                yield from node.args
        case ast.Call(func=ast.Attribute(attr="join" | "extend"), args=[argument]):
            yield argument
        case ast.Starred() if node not in harmless:
            yield node.value


def _inside_order_free_calls(tree: ast.Module) -> set[ast.AST]:
    """Arguments of `sorted(...)` and its like, and elements of set displays: any order will do."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ORDER_FREE:
                found.update(node.args)
        elif isinstance(node, ast.Set):
            found.update(node.elts)
    return found


def _is_unordered(node: ast.expr, sets: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Name(id=name):
            return name in sets
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"self.{name}" in sets
        case ast.Call(func=ast.Name(id=name)):
            return name in UNORDERED_CALLS | UNORDERED_FUNCTIONS
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            return name in UNORDERED_FUNCTIONS or (
                name in SET_METHODS and _is_unordered(value, sets)
            )
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return _is_unordered(node.left, sets) or _is_unordered(node.right, sets)
    return False


def _set_names(tree: ast.Module) -> set[str]:
    """Names bound to sets, and to nothing else: a name with two meanings is left alone."""
    sets: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        for target, is_set in _bindings(node):
            name = _name_of(target)
            if name is not None:
                (sets if is_set else others).add(name)
        if isinstance(node, ast.ClassDef):
            sets.update(_set_fields(node))
    return sets - others


def _set_fields(node: ast.ClassDef) -> Iterator[str]:
    """Fields of a dataclass, as its methods call them."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and _is_set_type(statement.annotation):
            yield f"self.{_name_of(statement.target)}"


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr | ast.arg, bool]]:
    match node:
        case ast.AnnAssign(target=target, annotation=annotation):
            yield target, _is_set_type(annotation)
        case ast.Assign(targets=targets, value=value):
            yield from ((target, _is_unordered(value, set())) for target in targets)
        case ast.arg(annotation=annotation):
            yield node, annotation is not None and _is_set_type(annotation)
        case ast.For(target=target) | ast.comprehension(target=target):
            yield target, False


def _is_set_type(annotation: ast.expr) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(base, ast.Name) and base.id in SET_TYPES


def _name_of(target: ast.expr | ast.arg) -> str | None:
    match target:
        case ast.arg(arg=name) | ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"self.{name}"
    return None
