"""What the commands share: their options, the model they are given, tables and progress.

In: words of the command line. Out: `CompileOptions`, feeds, and what the terminal shows.
"""
