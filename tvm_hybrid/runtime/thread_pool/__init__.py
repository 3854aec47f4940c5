"""The process's own thread pool: workers that its sessions share, and that sleep between runs.

In: a `PoolSetting` for the calling thread. Out: parallel loops that it starts run on this pool.
`pool.c` with its headers is the pool, `pool.ll` the same as LLVM reads it, and `native` loads that
into the process.
"""
