"""A configuration fitted to other sizes keeps its numbers, or their ratios to the largest value."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tir_schedules.core.config import Config
from tvm_hybrid.records.nearest_record import fit_config
from tvm_hybrid.records.record_store import ConfigSpace


class Blocks(Config, frozen=True, kw_only=True):
    """Block sizes like those of a product."""

    k: int
    rows: int = 4
    kernel: str = "a"
    staged: bool = False
    threads: tuple[int, ...] = (1,)


def space(*configs: Blocks) -> ConfigSpace:
    return ConfigSpace(configs[0], configs)


def of(ks: Sequence[int], rows: Sequence[int] = (2, 4, 6)) -> ConfigSpace:
    return space(*(Blocks(k=k, rows=count) for k in ks for count in rows))


@pytest.mark.parametrize(
    ("k", "there", "fitted"),
    [
        (64, (32, 64, 128), 64),  # both rules give this number
        (128, (64, 256), 256),  # the largest value in both spaces
        (128, (96, 200), 200),
        (64, (60, 100), 60),
        (32, (16, 64, 256), 64),  # a quarter
        (32, (256,), None),
        (32, (24, 1000), 24),
        (32, (22, 1000), None),
    ],
)
def test_numbers_and_shares(k: int, there: tuple[int, ...], fitted: int | None) -> None:
    found = fit_config(Blocks(k=k, rows=6), of((32, 64, 128)), of(there))
    assert found == (None if fitted is None else Blocks(k=fitted, rows=6))


def test_differences_add_up() -> None:
    # Each difference alone is allowed.
    here = of((8, 64), (8, 24))
    assert fit_config(Blocks(k=8, rows=8), here, of((6, 100), (8, 24))) == Blocks(k=6, rows=8)
    assert fit_config(Blocks(k=8, rows=8), here, of((8, 100), (6, 24))) == Blocks(k=8, rows=6)
    assert fit_config(Blocks(k=8, rows=8), here, of((6, 100), (6, 100))) is None


@pytest.mark.parametrize("changes", [{"kernel": "b"}, {"staged": True}])
def test_what_is_no_number_must_be_equal(changes: dict[str, object]) -> None:
    here = space(Blocks(k=8))
    other = Blocks(k=8).to_dict() | changes
    assert fit_config(Blocks(k=8), here, space(Blocks.from_dict(other))) is None
    both = space(Blocks.from_dict(other), Blocks(k=8))
    assert fit_config(Blocks(k=8), here, both) == Blocks(k=8)


def test_a_single_value_may_differ() -> None:
    """A number that all configurations of a space share is no knob but may depend on sizes."""
    assert fit_config(Blocks(k=128), of((128,)), of((512,))) == Blocks(k=512, rows=4)


def test_spaces_of_other_fields_have_nothing_to_lend() -> None:
    longer = Blocks(k=8, threads=(1, 1))
    assert fit_config(Blocks(k=8), space(Blocks(k=8)), space(longer)) is None
    assert fit_config(longer, space(longer), space(Blocks(k=8))) is None
