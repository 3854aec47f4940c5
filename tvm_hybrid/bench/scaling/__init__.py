"""Predicts times that this machine cannot measure: on more threads, and on AMX tiles.

In: a lowered model and the description of a CPU. Out: predicted times, and tables that say so.
"""
