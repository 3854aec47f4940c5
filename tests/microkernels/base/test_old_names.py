"""Old names of arguments, properties and functions."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass, replace

import pytest

from microkernels.base.old_names import old_arguments, old_property, with_new_names


@old_arguments(before="after")
def twice(x: int, *, after: bool = False) -> tuple[int, bool]:
    return 2 * x, after


@old_arguments(before="after")
@dataclass(frozen=True)
class Options:
    x: int
    after: bool = False

    before = old_property("before", "after")


def test_new_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert twice(3, after=True) == (6, True)
        options = Options(1, after=True)
        assert options.after and replace(options, x=2).after
        assert pickle.loads(pickle.dumps(options)) == options
        assert with_new_names({"x": 1}, {"before": "after"}) == {"x": 1}


def test_an_old_argument_has_the_new_meaning_and_warns_at_the_call() -> None:
    with pytest.warns(DeprecationWarning, match="^before is now after$") as caught:
        assert twice(3, before=True) == (6, True)  # type: ignore[call-arg]
    assert [each.filename for each in caught] == [__file__]
    with pytest.warns(DeprecationWarning, match="^before is now after$") as caught:
        options = Options(1, before=True)  # type: ignore[call-arg]
    assert options == Options(1, after=True)
    assert [each.filename for each in caught] == [__file__]


def test_an_old_field_is_read_and_replaced() -> None:
    options = Options(1)
    with pytest.warns(DeprecationWarning, match="^before is now after$") as caught:
        assert options.before is False
        assert replace(options, before=True) == Options(1, after=True)  # type: ignore[call-arg]
    assert [each.filename for each in caught] == [__file__] * 2
