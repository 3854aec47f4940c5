"""Requests to a session that run side by side, each on its share of the threads.

`slots` bounds how many run at once, `requests` is one that waits, `stream_threads` are the threads
that serve them, `async_runs` is what a session offers of it.
"""
