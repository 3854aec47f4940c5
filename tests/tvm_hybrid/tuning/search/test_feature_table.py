"""Features are finite, have equal columns for every workload, and react to what they describe."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tvm_hybrid.tuning.regions import MACHINE, matmul, space_of
from tir_schedules.core.loop_nest import Loop, LoopNest
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.records.record_store import ConfigSpace
from tvm_hybrid.tuning.search.feature_table import (
    Features,
    FeatureTable,
    NestArrays,
    config_features,
    loop_features,
    relation_features,
    shared_features,
    side_by_side,
    signed_log2,
)

SIZE = (64, 96, 128)


def column(features: Features, name: str) -> np.ndarray:
    return features.values[:, features.names.index(name)]


def softmax() -> tuple[Region, ConfigSpace]:
    x = Tensor((64, 200), "float32")
    region = Region(op="softmax", inputs=(x,), output=x, attrs={"axis": 1})
    return region, ConfigSpace.of(region, template_for("softmax"), MACHINE)


def test_equal_configurations_of_equal_workloads_have_equal_features() -> None:
    space = space_of(*SIZE)
    one = FeatureTable.of(matmul(*SIZE), MACHINE, space)
    other = FeatureTable.of(matmul(*SIZE), MACHINE, ConfigSpace(space.configs[0], space.configs))
    assert one.all.names == other.all.names
    assert np.array_equal(one.all.values, other.all.values)
    assert np.isfinite(one.all.values).all()


def test_features_tell_all_configurations_apart() -> None:
    values = FeatureTable.of(matmul(*SIZE), MACHINE, space_of(*SIZE)).all.values
    assert len(np.unique(values, axis=0)) == len(values)


def test_shared_columns_are_the_same_for_every_kind_of_region() -> None:
    region, space = softmax()
    product = FeatureTable.of(matmul(*SIZE), MACHINE, space_of(*SIZE))
    rows = FeatureTable.of(region, MACHINE, space)
    assert product.shared.names == rows.shared.names
    assert rows.cycles is None
    assert np.isfinite(rows.all.values).all()


def test_shared_features_of_some_configurations_are_those_of_the_whole_space() -> None:
    space = space_of(*SIZE)
    table = FeatureTable.of(matmul(*SIZE), MACHINE, space)
    chosen = [3, 17, 5]
    some, cycles = shared_features(
        matmul(*SIZE), MACHINE, space.configs[0], [space.configs[i] for i in chosen]
    )
    assert np.array_equal(some.values, table.shared.values[chosen])
    assert table.cycles is not None and cycles is not None
    assert np.array_equal(cycles, table.cycles[chosen])


def test_differences_to_the_default_are_zero_for_the_default() -> None:
    shared = FeatureTable.of(matmul(*SIZE), MACHINE, space_of(*SIZE)).shared
    for name in shared.names:
        if name.endswith("/ default"):
            assert column(shared, name)[0] == 0.0


def test_words_become_columns_of_their_own_and_numbers_logarithms() -> None:
    space = space_of(*SIZE)
    features = config_features(space)
    kernels = [name for name in features.names if name.startswith("kernel=")]
    assert len(kernels) == len(space.values[space.knobs.index("kernel")])
    for row, config in zip(features.values, space.configs, strict=True):
        fields = config.to_dict()
        of = dict(zip(features.names, row, strict=True))
        assert of[f"kernel={fields['kernel']}"] == 1.0
        assert sum(of[name] for name in kernels) == 1.0
        assert of["rows"] == pytest.approx(np.log2(fields["rows"] + 1))


def nest(block: float, tiles: float = 4.0) -> list[LoopNest]:
    """A block of rows that is used 8 times, row by row."""
    return [
        LoopNest(
            (
                Loop("panel", 8, "serial", (block, 8 * 1024.0, 0.0)),
                Loop("row", tiles, "serial", (block, 1024.0, 0.0)),
                Loop("k", 16, "reduction", (64.0, 1024.0, 64.0)),
                Loop("i", 4, "unrolled", (16.0, 64.0, 64.0)),
                Loop("j", 1, "unrolled", (4.0, 64.0, 64.0)),
                Loop("lane", 16, "vector", (4.0, 64.0, 64.0)),
            ),
            operations=1e6,
        )
    ]


def test_a_block_that_leaves_a_cache_is_fetched_again() -> None:
    l1 = MACHINE.l1_bytes
    arrays = NestArrays.of([nest(l1 / 2), nest(2.0 * l1)])
    features = relation_features(arrays, None, MACHINE)
    # In L1 the block is loaded once; a larger one is loaded for each of the 8 panels.
    small, large = 2 ** column(features, "A into L1") * 1e6
    assert small == pytest.approx(l1 / 2)
    assert large == pytest.approx(8 * 4 * 64)
    in_l2 = 2 ** column(features, "A into L2") * 1e6
    assert in_l2 == pytest.approx([l1 / 2, 2 * l1])


def test_reuse_counts_how_often_each_byte_is_used() -> None:
    arrays = NestArrays.of([nest(1024.0), nest(1024.0, tiles=8.0)])
    features = loop_features(arrays)
    assert "0.row: length" in features.names  # varies, other loops' lengths do not
    assert "0.k: length" not in features.names
    reuse = 2 ** column(features, "0.row: reuse 1") - 1
    # Lanes read 64 bytes at once, tiles * 16 * 4 times, of the existing 1024.
    assert reuse == pytest.approx([4 * 64 * 64 / 1024, 8 * 64 * 64 / 1024])


def test_threads_have_caches_of_their_own() -> None:
    (one,) = nest(1024.0)
    parallel = LoopNest((Loop("thread", 4, "parallel", (4096.0, 0.0, 0.0)), *one.loops), 4e6)
    arrays = NestArrays.of([[parallel]])
    assert arrays.threads.tolist() == [[4.0]]
    features = relation_features(arrays, None, MACHINE)
    assert 2 ** column(features, "A into 16 MB") * 4e6 == pytest.approx(4 * 1024.0)


def test_an_estimate_of_half_the_cycles_shows() -> None:
    arrays = NestArrays.of([nest(1024.0), nest(1024.0)])
    features = relation_features(arrays, np.array([4000.0, 2000.0]), MACHINE)
    assert column(features, "operations a cycle / default").tolist() == [0.0, 1.0]


def test_columns_side_by_side_and_without_those_that_are_alike() -> None:
    left = Features(("a", "b"), np.array([[1, 2], [1, 3]], np.float32))
    both = side_by_side([left, Features(("c",), np.array([[5], [6]], np.float32))])
    assert both.varying().names == ("b", "c")
    assert both.varying().values.tolist() == [[2, 5], [3, 6]]
    assert signed_log2(np.array([-7.0, 0.0, 7.0])).tolist() == [-3.0, 0.0, 3.0]


def test_a_template_that_is_described_nowhere_has_its_knobs_as_features() -> None:
    region, space = softmax()
    table = FeatureTable.of(region, MACHINE, space)
    assert set(table.all.names) == set(config_features(space).names)
