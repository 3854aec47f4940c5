"""Measures configurations and kernels in processes that may crash or hang.

In: a region and configurations, or a lowered module. Out: times, or an error. Candidates are
checked against the exact result first. `Measurer` is the interface: `LocalMeasurer` measures on
this machine, `Replay` answers from a file, and the package `rpc` measures on other machines.
"""
