"""Sizes in words: `batch`, `past + sequence`, `2 * rows`, as models and manifests write them.

A text is a sum, difference, product or quotient (rounded down) of names and numbers. It means the
same for numbers and for TVM's variables.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tvm import tirx

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}
_SIGNS: tuple[tuple[type[Any], str], ...] = (
    (tirx.Add, "+"),
    (tirx.Sub, "-"),
    (tirx.Mul, "*"),
    (tirx.FloorDiv, "//"),
)
LONGEST = 200  # characters of a text that is taken for an expression


def evaluate(text: str, sizes: Mapping[str, Any]) -> Any:
    """The size that a text means where names mean `sizes`.

    Raises
    ------
    KeyError
        A name has no size.
    ZeroDivisionError
        It divides by 0.
    """
    if text in sizes:
        return sizes[text]
    tree = _tree(text)
    if tree is None:
        raise KeyError(text)
    return _value(tree, sizes)


def names_in(text: str) -> frozenset[str]:
    """The names in a text; the text itself if it is no expression."""
    tree = _tree(text)
    if tree is None:
        return frozenset({text})
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def is_relation(text: str) -> bool:
    """Whether a text is an expression, and not a mere name."""
    tree = _tree(text)
    return tree is not None and not isinstance(tree, ast.Name)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """An expression with other names, or numbers in words, in the place of its names."""
    tree = ast.parse(text.strip(), mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.unparse(tree)


@lru_cache(maxsize=1024)
def _tree(text: str) -> ast.expr | None:
    """The expression in a text, None if it is none."""
    if len(text) > LONGEST:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if _is_size(tree) else None


def _is_size(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATORS and _is_size(node.left) and _is_size(node.right)
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, ast.Name)


def _value(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, sizes), _value(node.right, sizes)
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant)
    return node.value


def text_of(size: Any) -> int | str | None:
    """A size in words, a number as it is; None if it is no simple expression of variables."""
    if isinstance(size, int | tirx.IntImm):
        return int(size)
    text = _text(size)
    return text[1:-1] if text is not None and text.startswith("(") else text


def _text(size: Any) -> str | None:
    if isinstance(size, tirx.IntImm):
        return str(int(size))
    if isinstance(size, tirx.Var):
        return str(size.name)
    for kind, sign in _SIGNS:
        if isinstance(size, kind):
            parts = _text(size.a), _text(size.b)
            return None if None in parts else f"({parts[0]} {sign} {parts[1]})"
    return None
