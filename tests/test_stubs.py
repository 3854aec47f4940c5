"""The stubs name only modules, classes, attributes and parameters of the installed TVM."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

STUBS = Path(__file__).parents[1] / "stubs"
FILES = sorted(STUBS.rglob("*.pyi"))
NEEDS_TORCH = "tvm.relax.frontend.torch"
# See the stubs: most expressions have this base; IterVar has its operators from another class.
NOT_A_BASE = {("tvm.ir.expr", "Expr", "ExprOperand"), ("tvm.tirx.expr", "IterVar", "ExprOperand")}
ANY_NAME = {"__getattr__", "__init__", "__hash__"}


def _module_name(path: Path) -> str:
    parts = path.relative_to(STUBS).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(path: Path) -> ModuleType:
    name = _module_name(path)
    if name.startswith(NEEDS_TORCH):
        pytest.importorskip("torch")
    return importlib.import_module(name)


def _is_module(name: str) -> bool:
    """Whether a module exists, even if it is not imported yet."""
    return importlib.util.find_spec(name) is not None


def _names(statement: ast.stmt) -> Iterator[str]:
    """The names that a stub's statement declares."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=[ast.Name(id=name)]) if name != "__all__":
            yield name
        case ast.ImportFrom(names=aliases):
            yield from (alias.asname for alias in aliases if alias.asname == alias.name)


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    yield from (statement for statement in body if isinstance(statement, ast.FunctionDef))


def _has(owner: type, name: str) -> bool:
    """Whether a class, its new instances or all its subclasses have an attribute."""
    made = getattr(owner.__init__, "__code__", None)
    if hasattr(owner, name) or (made is not None and name in made.co_names):
        return True
    below = owner.__subclasses__()
    return bool(below) and all(_has(each, name) for each in below)


def _unknown_parameters(stub: ast.FunctionDef, found: object) -> set[str]:
    """Parameters of a stub that the function does not take by name."""
    try:
        signature = inspect.signature(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # made in C++
        return set()
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return set()
    given = {argument.arg for argument in (*stub.args.args, *stub.args.kwonlyargs)}
    return given - {"self"} - set(signature.parameters)


@pytest.mark.parametrize("path", FILES, ids=_module_name)
def test_a_module_has_what_its_stub_names(path: Path) -> None:
    module = _module(path)
    named = [name for statement in ast.parse(path.read_text()).body for name in _names(statement)]
    private = [name for name in named if name.startswith("_") and name[1].isupper()]  # TypeVars
    missing = [name for name in named if name not in private and not hasattr(module, name)]
    assert [name for name in missing if not _is_module(f"{module.__name__}.{name}")] == []


@pytest.mark.parametrize("path", FILES, ids=_module_name)
def test_classes_have_the_attributes_and_bases_of_their_stubs(path: Path) -> None:
    module = _module(path)
    for stub in ast.parse(path.read_text()).body:
        if not isinstance(stub, ast.ClassDef):
            continue
        found = getattr(module, stub.name)
        named = [name for statement in stub.body for name in _names(statement)]
        missing = [name for name in named if name not in ANY_NAME and not _has(found, name)]
        assert missing == [], f"{module.__name__}.{stub.name}"
        above = {each.__name__ for each in found.__mro__}
        for base in stub.bases:
            name = ast.unparse(base).split("[")[0].rsplit(".", 1)[-1]
            if (module.__name__, stub.name, name) not in NOT_A_BASE:
                assert name in above, f"{module.__name__}.{stub.name}"


@pytest.mark.parametrize("path", FILES, ids=_module_name)
def test_functions_have_the_parameters_of_their_stubs(path: Path) -> None:
    module = _module(path)
    unknown = {}
    for stub in ast.parse(path.read_text()).body:
        if isinstance(stub, ast.FunctionDef):
            unknown[stub.name] = _unknown_parameters(stub, getattr(module, stub.name))
        elif isinstance(stub, ast.ClassDef):
            owner = getattr(module, stub.name)
            for method in _functions(stub.body):
                if method.name == "__init__" and method.name not in vars(owner):
                    continue  # subclasses have it
                name = f"{stub.name}.{method.name}"
                unknown[name] = _unknown_parameters(method, getattr(owner, method.name, None))
    assert {name: names for name, names in unknown.items() if names} == {}
