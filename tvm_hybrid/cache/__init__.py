"""The folder of compiled programs and kernels, for sessions that start again.

In: a model's bytes and its compile options, as a key. Out: a program that was compiled before, or
the machine code of kernels that it shares with other programs. The folder has a size limit; the
least recently used files are removed first.
"""
