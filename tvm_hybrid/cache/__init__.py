"""The folder of compiled programs and kernels, for sessions that start again.

In: a model's bytes and its compile options, as a key. Out: a program that was compiled before, or
the machine code of kernels that it shares with one. The folder has a bound, and files that nobody
used for longest go first.
"""
