"""How long replays of a CUDA graph take, on the host and on the GPU.

The GPU is kept busy while a burst of replays is queued, so that its time holds no wait
for the host. The host's is of launches one after the other, with warm caches: in an
engine a launch takes several times as long.
"""

import statistics
import time
from collections.abc import Callable

import torch

from graphparity.fastpath.recorders.protocol import ReplayTimes

NUM_BURSTS, BURST = 20, 20
"""Bursts, after one that warms up, and replays of each."""
SPIN_CYCLES = 2_000_000
"""Clock cycles that the GPU is kept busy: about 1 ms, in which the host launches a
burst."""


def replay_times(replay: Callable[[], None]) -> ReplayTimes:
    """The times of a CUDA graph's replay, on the current stream."""
    host_ns: list[int] = []
    device_us: list[float] = []
    for _ in range(1 + NUM_BURSTS):
        torch.cuda.synchronize()
        host_ns += _launch_times(replay)
        device_us.append(_burst_time(replay))
    return ReplayTimes(
        statistics.median(host_ns[BURST:]) / 1e3, statistics.median(device_us[1:])
    )


def _launch_times(replay: Callable[[], None]) -> list[int]:
    """Host nanoseconds of each launch of a burst."""
    nanoseconds = []
    for _ in range(BURST):
        begin = time.perf_counter_ns()
        replay()
        nanoseconds.append(time.perf_counter_ns() - begin)
    return nanoseconds


def _burst_time(replay: Callable[[], None]) -> float:
    """GPU microseconds of one replay of a burst."""
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(SPIN_CYCLES)
    begin.record()
    for _ in range(BURST):
        replay()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return 1e3 * milliseconds / BURST
