"""Planted faults: real divergences between replay and eager, made again on purpose.

Public projects reported some seventy of them, in fourteen kinds. Each fault here is a
small patch of the builders, the state, the recorder or the lifecycle, under which one
of those reports would come true; the checks that CI runs must catch it, by the path and
the message that its description expects. The order of reading:

    fault         what a fault is, and its kinds
    patches       how one is planted: a patch while a context manager is active
    stale_tails, sentinels, ...   the faults, a module a kind
    catalogue     all of them
    hunt          runs the profile on a subject with a fault, until a check raises
    report        the table, and docs/faults.md
"""
