"""Everything that a run needs: tensors and feeds, threads and their places, streams.

In: arrays of callers, and settings of threads. Out: checked tensors, the thread pool with its
CPUs, and queues of asynchronous runs. Imports no other subpackage of tvm_hybrid.
"""
