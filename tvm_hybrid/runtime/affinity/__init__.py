"""On which CPUs worker threads run, and on which memory nodes weights lie.

In: what a user says (`threads="socket:0"`, `weights="interleave"`). Out: a `PoolSetting` for the
pool of threads, and a `Placement` of weights. `topology` reads what the machine has from Linux.
"""
