"""The experiments behind the figures of the paper and of the docs, one file per claim: users of `kernelmesh`.

`catalog` has all of them, `base` runs one, `events` defines what observers receive and how a run can end, and `cli` adds
the commands `list`, `show`, `run` and `sweep`.
"""
