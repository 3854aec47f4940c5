"""Old names of public modules."""

import sys
from importlib import import_module

import pytest

from tvm_hybrid._moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_warns_and_gives_the_module(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        module = import_module(old)
    new = import_module(MOVED[old])
    names = [name for name in vars(new) if not name.startswith("_")]
    assert names
    assert all(getattr(module, name) is getattr(new, name) for name in names)
    assert sorted(module.__all__) == sorted(names)


def test_a_name_that_nobody_had_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("tvm_hybrid.no_such_module")
