"""Enumerations of ONNX Runtime's options; names and numbers are its own."""

from __future__ import annotations

from enum import IntEnum


class GraphOptimizationLevel(IntEnum):
    """How much ONNX Runtime rewrites a model; taken and not used: `fusion` is our option.

    Attributes
    ----------
    ORT_DISABLE_ALL, ORT_ENABLE_BASIC, ORT_ENABLE_EXTENDED, ORT_ENABLE_LAYOUT, ORT_ENABLE_ALL
        As there.
    """

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether ONNX Runtime runs operators at the same time; taken and not used.

    Attributes
    ----------
    ORT_SEQUENTIAL, ORT_PARALLEL
        Kernels run one after another here, each on all threads.
    """

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order ONNX Runtime runs operators; taken and not used.

    Attributes
    ----------
    DEFAULT, PRIORITY_BASED, MEMORY_EFFICIENT
        The order is chosen when a model is compiled here.
    """

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2
