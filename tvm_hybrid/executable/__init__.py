"""A compiled model: it runs, explains itself, and is exported and loaded.

In: a compiled module and its manifest, or an exported library. Out: `Executable`. `machine_code` is
the only way to a program's functions, and chooses the second program on a smaller CPU.
"""
