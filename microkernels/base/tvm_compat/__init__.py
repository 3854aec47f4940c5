"""TVM's private API: one function, class or constant for each need.

In: nothing of ours but errors. Out: the runtime's functions, the files that it loads, the ONNX
importer, the tracker of RPC servers, MetaSchedule's databases, names in schedules, and what passes
and kernels need. `tests/microkernels/base` shows what another version of TVM changes.
"""
