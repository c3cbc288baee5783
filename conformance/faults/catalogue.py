"""All planted faults, by name, kind by kind."""

from types import ModuleType

from graphparity.conformance.faults import (
    addresses,
    baked_scalars,
    capture_work,
    diverging_ranks,
    eligibility,
    layouts,
    lifecycles,
    plans,
    races,
    sentinels,
    side_streams,
    small_buffers,
    stale_tails,
    wiring,
)
from graphparity.conformance.faults.fault import Fault

MODULES = (
    stale_tails,
    sentinels,
    baked_scalars,
    addresses,
    plans,
    eligibility,
    layouts,
    races,
    capture_work,
    side_streams,
    lifecycles,
    diverging_ranks,
    small_buffers,
    wiring,
)
"""The modules of the faults, in the order of the kinds."""


def _faults_of(module: ModuleType) -> list[Fault]:
    return [it for it in vars(module).values() if isinstance(it, Fault)]


FAULTS = {fault.name: fault for module in MODULES for fault in _faults_of(module)}
"""Every planted fault, by name."""
