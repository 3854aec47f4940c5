"""The exported library: one file with machine code, weights and a manifest.

In: a compiled module and its constants. Out: a shared library that the TVM runtime alone can run,
and that refuses a CPU it was not built for; and the readers of such a file.
"""
