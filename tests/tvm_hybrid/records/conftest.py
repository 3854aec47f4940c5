"""Fixtures of the tuner's tests: records belong to its toy template."""

from tests.tvm_hybrid.tuning.conftest import (
    factor_of_two,
    machine,
    memory_folder,
    record,
    store,
    toy,
)

__all__ = ["factor_of_two", "machine", "memory_folder", "record", "store", "toy"]
