"""The loops that are compiled by numba, by idea.

A function that Python calls has exactly one signature whose inputs are read-only arrays (writable ones are accepted too), so
nothing is compiled twice; it is compiled when it is first called, so importing costs nothing, and the machine code is cached
on disk. Helpers that only compiled code calls are compiled as part of their callers.
"""
