"""The exported library: one file with machine code, weights and a manifest.

In: a compiled module and its constants. Out: a shared library that runs with the TVM runtime alone,
and that refuses a CPU it was not built for; and the functions that read such a file.
"""
