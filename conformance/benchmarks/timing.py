"""Host times of short calls, measured one by one."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

SYNCHRONIZE_EVERY = 20
"""Calls between two waits for the GPU, so that its queue never fills."""


@dataclass(frozen=True)
class HostTime:
    """Microseconds of host time of one call."""

    median: float
    p99: float


def host_time(call: Callable[[], object], *, num_calls: int = 400) -> HostTime:
    """The host time of ``call``, which may leave work on the GPU behind."""
    for _ in range(SYNCHRONIZE_EVERY):
        call()
    wait_for_gpu()
    nanoseconds = []
    for index in range(num_calls):
        begin = time.perf_counter_ns()
        call()
        nanoseconds.append(time.perf_counter_ns() - begin)
        if index % SYNCHRONIZE_EVERY == 0:
            wait_for_gpu()
    return summary_of(nanoseconds)


def summary_of(nanoseconds: Sequence[int]) -> HostTime:
    """Median and 99th percentile of at least one call."""
    ordered = sorted(nanoseconds)
    return HostTime(
        round(statistics.median(ordered) / 1e3, 2),
        round(ordered[int(len(ordered) * 0.99)] / 1e3, 2),
    )


def interval_of(
    values: npt.ArrayLike, statistic: Callable[..., npt.NDArray[np.float64]]
) -> tuple[float, float]:
    """The 95 % interval of a statistic of ``values`` (``np.mean``), by resampling."""
    values = np.asarray(values)
    drawn = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.quantile(statistic(drawn, axis=1), [0.025, 0.975])
    return round(float(low), 2), round(float(high), 2)


def launch_floor() -> HostTime:
    """The host time of launching a graph of one small kernel, again and again."""
    return host_time(small_graph().replay, num_calls=2000)


def small_graph() -> torch.cuda.CUDAGraph:
    """A CUDA graph of one small kernel, which writes memory of the graph's own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(64, dtype=torch.int32, device="cuda")
    return graph


def wait_for_gpu() -> None:
    """Wait until the GPU, if there is one, has nothing left to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
