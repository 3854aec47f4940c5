"""Code that commands share: their options, their model argument, tables and progress.

In: arguments of the command line. Out: `CompileOptions`, feeds, and output on the terminal.
"""
