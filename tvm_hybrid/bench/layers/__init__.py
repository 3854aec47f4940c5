"""Measures the convolutions of published networks one by one, beside the other runtimes.

In: a network's layers. Out: their times as tables, for the terminal and for the documentation.
"""
