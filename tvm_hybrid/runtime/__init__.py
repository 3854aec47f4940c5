"""What a run needs: tensors and feeds, threads and where they run, streams.

In: arrays of callers, and settings of threads. Out: checked tensors, the thread pool with its
CPUs, and queues of asynchronous runs. No other room of this package is imported.
"""
