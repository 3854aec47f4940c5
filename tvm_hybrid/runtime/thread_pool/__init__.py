"""The process's thread pool: workers that its sessions share, and that sleep between runs.

In: a `PoolSetting` for the calling thread. Out: parallel loops that this thread starts run on the
pool. `pool.c` with its headers is the source, `pool.ll` its LLVM code, and `native` loads that into
the process.
"""
