"""The fixtures of the tuner's tests: records are of its toy template."""

from tests.tvm_hybrid.tuning.conftest import machine, memory_folder, record, store, toy

__all__ = ["machine", "memory_folder", "record", "store", "toy"]
