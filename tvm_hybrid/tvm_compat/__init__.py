"""What the face needs of TVM 0.27 beyond its public interface; for passes see relay_passes.

One function, class or constant for each need: the runtime's functions, the files that it loads, the
ONNX importer, the tracker of RPC servers, MetaSchedule's databases, names in schedules. Who moves
to another TVM looks here; `tests/tvm_hybrid/test_tvm_compat.py` says what has changed.
"""
