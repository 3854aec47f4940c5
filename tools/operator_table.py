"""Writes the tables of docs/operators.md: `python -m tools.operator_table`.

The tables have each ONNX operator's opsets, the sizes it takes, and the forms that are refused.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import onnx

from tvm_hybrid.frontend.onnx import ops
from tvm_hybrid.frontend.onnx.graph.parameters import SIZED_BY_DATA
from tvm_hybrid.frontend.onnx.operators import OPERATORS
from tvm_hybrid.frontend.onnx.rewrites import nodes, sequences  # noqa: F401  registers rewrites
from tvm_hybrid.frontend.onnx.rewrites.table import REWRITES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
MARK = "<!-- Written by `python -m tools.operator_table` from here on. Do not edit. -->\n"
BY_OTHERS = "forms that the operators of its ONNX function refuse"
DOMAINS = ("", "ai.onnx.ml", "com.microsoft", "ai.onnx.preview", "ai.onnx.preview.training")
HOW = """
## How operators run

| code | operators |
|---|---|
| own templates | convolutions, matrix products, attention, softmax, norms, quantised operators |
| fused into them | bias, residual, quantising, casts, and chains of elementwise operators |
| generic schedule | all others that TVM can lower, such as pooling and reductions |

Templates take convolutions in one to three dimensions, grouped, depthwise and transposed, and
products with constant weights or of two activations, in f32, int8 and bf16. Weights of products may
have 2, 4 and 8 bits. Attention, a chain of products, and a depthwise convolution with its pointwise
convolution may become one kernel. The generic schedule fuses, vectorises and runs in parallel.
`tvm-hybrid explain` shows the decision for each node of a model."""
_REFUSALS = {"ValueError", "UnsupportedOperatorError", "ShapeError"}


def tables() -> str:
    """The tables after the mark on the page, as Markdown."""
    parts = [MARK, *_summary(), HOW]
    for domain in DOMAINS:
        versions = _versions(domain)
        rows = [_row(domain, name, versions) for name in sorted(_known(domain, versions))]
        parts.append(f"\n## {domain or 'ai.onnx'}\n")
        parts.append("| operator | opsets | sizes | refused |\n|---|---|---|---|")
        parts += rows
        missing = sorted({*versions} - _known(domain, versions))
        if missing:
            parts.append(f"\nNot supported: {', '.join(missing)}.")
    return "\n".join(parts) + "\n"


def _summary() -> list[str]:
    """A table with the number of supported operators of each domain."""
    lines = ["\n| domain | supported operators | not supported |\n|---|---|---|"]
    for domain in DOMAINS:
        versions, name = _versions(domain), domain or "ai.onnx"
        known = _known(domain, versions)
        # The package onnx defines no operators of com.microsoft.
        missing = (len({*versions} - known) or "none") if versions else "all others"
        lines.append(f"| [{name}](#{name.replace('.', '')}) | {len(known)} | {missing} |")
    return lines


def refusals(convert: Callable[..., Any]) -> list[str]:
    """The texts of errors that a converter, or a function of its folder that it calls, raises.

    "..." stands for parts that depend on the model.
    """
    found: dict[str, None] = {}
    seen: set[Callable[..., Any]] = set()
    waiting = [convert]
    while waiting:
        function = waiting.pop()
        if isinstance(function, functools.partial):
            held = (*function.keywords.values(), function.func, *function.args)
            waiting += filter(callable, held)
            continue
        if function in seen or not getattr(function, "__module__", "").startswith(ops.__name__):
            continue
        seen.add(function)
        if function.__name__ != "<lambda>":
            found.update(dict.fromkeys(_texts(inspect.getsource(function))))
        waiting += _named_in(function)
    return [*found]


def _texts(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        raised = node.exc if isinstance(node, ast.Raise) else None
        if not isinstance(raised, ast.Call) or ast.unparse(raised.func) not in _REFUSALS:
            continue
        text = raised.args[0]
        parts = text.values if isinstance(text, ast.JoinedStr) else [text]
        whole = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts
        )
        if re.search(r"\w+ \w+", whole):
            yield whole.removesuffix("; ...")


def _named_in(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The functions named in a function, or in functions inside of it, or held by its closure."""
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    held = inspect.getclosurevars(function).nonlocals
    values = [*map(function.__globals__.get, sorted(names)), *held.values()]
    return (each for each in values if isinstance(each, FunctionType | functools.partial))


def _versions(domain: str) -> dict[str, list[int]]:
    """Operator -> the opsets in which ONNX defines or redefines it."""
    found: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain:
            found.setdefault(schema.name, []).append(schema.since_version)
    return found


def _known(domain: str, versions: dict[str, list[int]]) -> set[str]:
    own = {name for key, name in (*OPERATORS, *REWRITES, ("", "Constant")) if key == domain}
    return own | {name for name in versions if not domain and _by_others(name)}


def _by_others(name: str) -> bool:
    """Whether ONNX defines an operator on tensors as a function of other operators."""
    if not onnx.defs.has(name):
        return False
    schema = onnx.defs.get_schema(name)
    tensors = all("seq(" not in text for each in schema.inputs for text in each.types)
    return tensors and (schema.has_function or schema.has_context_dependent_function)


def _row(domain: str, name: str, versions: dict[str, list[int]]) -> str:
    known = OPERATORS.get((domain, name))
    sizes = "static, dynamic"
    if known is not None and known.static:
        sizes = "static"
    if name in SIZED_BY_DATA:
        sizes += "; the result's depend on data"
    texts = [] if known is None else refusals(known.convert)
    if not domain and known is None and _by_others(name) and (domain, name) not in REWRITES:
        texts = [BY_OTHERS]
    opsets = ", ".join(map(str, sorted(versions.get(name, [1]))))
    return f"| {name} | {opsets} | {sizes} | {'; '.join(texts).replace('|', '/')} |"


if __name__ == "__main__":
    before = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(before + tables())
