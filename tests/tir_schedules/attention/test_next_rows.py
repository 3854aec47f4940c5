"""While one attention is computed, the operands of the next are prefetched if they are large."""

from __future__ import annotations

import msgspec
import pytest

from tests.tir_schedules.attention.test_dynamic_attention import KEYS, attention, check
from tests.tir_schedules.dynamic_regions import DynamicKernel
from tests.tir_schedules.run_region import ISAS, highest_native, machine_for
from tir_schedules.core.template import template_for

BEST = highest_native(ISAS)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("row_shares", [1, 3])
def test_fetching_changes_nothing(group: int, row_shares: int) -> None:
    region = attention(4, 16, 16, KEYS, None, group)
    machine = machine_for(BEST)
    config = template_for("attention").default_config(region, machine)
    config = msgspec.structs.replace(config, prefetch_elements=0, row_shares=row_shares)
    kernel = DynamicKernel(region, BEST, config=config)
    for batch, length, keys in ((1, 2, 5), (2, 7, 3), (3, 9, 40), (2, 5, 5), (1, 1, 9)):
        check(region, kernel, batch, length, keys)


def test_much_is_fetched_and_little_is_not() -> None:
    """The code compares with `prefetch_elements`, by default the size of L2."""
    region, machine = attention(4, 16, 16, KEYS), machine_for(BEST)
    template = template_for("attention")
    config = template.default_config(region, machine)
    assert config.prefetch and 4 * config.prefetch_elements == machine.l2_bytes

    def code(config: object) -> str:
        return str(template.build(region, config, machine.isa).body)

    call = '"tvm_hybrid_prefetch"'
    assert str(config.prefetch_elements) in code(config) and call in code(config)
    assert call not in code(msgspec.structs.replace(config, prefetch=False))
