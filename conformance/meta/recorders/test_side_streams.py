"""Branches on side streams: replayed in another order, and refused where not joined."""

from collections.abc import Callable

import pytest
import torch

from graphparity.fastpath.recorders import CaptureError, EmulatedRecorder
from graphparity.fastpath.recorders.stream_order import StreamOrder

Work = Callable[["Buffers"], object]
"""What a branch does."""

NUM_CAPTURES = 6
"""Captures whose replays take turns in their order."""


class Buffers:
    """Device memory of two branches, and their recorder."""

    def __init__(self) -> None:
        self.x = torch.arange(1, 5)
        self.scratch = torch.zeros(4, dtype=torch.int64)
        self.first = torch.zeros(4, dtype=torch.int64)
        self.second = torch.zeros(4, dtype=torch.int64)
        self.recorder = EmulatedRecorder(torch.device("cpu:0"), [*vars(self).values()])
        self.side = self.recorder.side_stream(0)

    def forked(self, on_capture_stream: Work, on_side_stream: Work) -> None:
        """Both pieces of work, concurrent."""
        self.side.fork()
        on_capture_stream(self)
        with self.side.use():
            on_side_stream(self)
        self.side.join()

    def dependent(self) -> None:
        """A branch that reads what the other one writes."""
        self.forked(doubled, of_first)

    def replayed(self, build: Callable[[], None]) -> list[tuple[list[int], list[int]]]:
        """What replays of captures leave in ``first`` and ``second``."""
        self.recorder.warm_up(build)
        results = []
        for _ in range(NUM_CAPTURES):
            graph, _ = self.recorder.capture(build)
            for buffer in (self.scratch, self.first, self.second):
                buffer.fill_(-7)
            graph.replay()
            results.append((self.first.tolist(), self.second.tolist()))
        return results


def doubled(it: Buffers) -> None:
    """Writes ``first``."""
    torch.mul(it.x, 2, out=it.first)


def tripled(it: Buffers) -> None:
    """Writes ``second``."""
    torch.mul(it.x, 3, out=it.second)


def of_first(it: Buffers) -> None:
    """Writes ``second`` from what the other branch writes."""
    torch.add(it.first, 1, out=it.second)


def through_scratch(factor: int, name: str) -> Work:
    """Writes a buffer by way of one that another branch may write as well."""

    def work(it: Buffers) -> None:
        torch.mul(it.x, factor, out=it.scratch)
        getattr(it, name).copy_(it.scratch)

    return work


def test_independent_branches_have_one_result() -> None:
    """In every order."""
    it = Buffers()
    expected = ([2, 4, 6, 8], [3, 6, 9, 12])
    assert it.replayed(lambda: it.forked(doubled, tripled)) == [expected] * NUM_CAPTURES


def test_work_after_the_join_follows_both_branches() -> None:
    """So does work before the fork precede them."""
    it = Buffers()

    def build() -> None:
        it.scratch.copy_(it.x)
        it.forked(doubled, lambda it: torch.add(it.scratch, 1, out=it.second))
        torch.add(it.first, it.second, out=it.second)

    assert it.replayed(build) == [([2, 4, 6, 8], [4, 7, 10, 13])] * NUM_CAPTURES


def test_a_branch_that_reads_another_s_result_is_shown() -> None:
    """The branch recorded last runs first."""
    it = Buffers()
    results = it.replayed(lambda: it.forked(doubled, of_first))
    assert ([2, 4, 6, 8], [-6, -6, -6, -6]) in results


def test_a_buffer_that_two_branches_write_is_shown() -> None:
    """Whole branches in any order hide it; interleaved ones do not."""
    it = Buffers()
    branches = through_scratch(2, "first"), through_scratch(3, "second")
    results = it.replayed(lambda: it.forked(*branches))
    sound = ([2, 4, 6, 8], [3, 6, 9, 12])
    assert results[0] == sound
    assert any(result != sound for result in results)


def test_a_graph_replays_in_one_order() -> None:
    """A difference can be repeated."""
    it = Buffers()
    it.recorder.warm_up(it.dependent)
    for _ in range(NUM_CAPTURES):
        graph, _ = it.recorder.capture(it.dependent)
        seen = []
        for _ in range(3):
            it.first.fill_(-7)
            graph.replay()
            seen.append(it.second.tolist())
        assert seen[1:] == seen[:-1]


def test_a_node_is_removed_from_its_place_in_the_order() -> None:
    """The others run as before."""
    it = Buffers()
    it.recorder.warm_up(it.dependent)
    graph, _ = it.recorder.capture(it.dependent)
    assert [node.name for node in graph.nodes] == ["aten.mul.out", "aten.add.out"]
    it.first.fill_(-7)
    graph.without(0).replay()
    assert it.first.tolist() == [-7] * 4
    it.second.fill_(0)
    graph.without(1).replay()
    assert (it.first.tolist(), it.second.tolist()) == ([2, 4, 6, 8], [0] * 4)


def never_joined(it: Buffers) -> None:
    """The build returns while a branch may run."""
    it.side.fork()
    with it.side.use():
        tripled(it)


def work_after_the_join(it: Buffers) -> None:
    """A second piece of the branch is not waited for."""
    it.forked(doubled, tripled)
    with it.side.use():
        tripled(it)


def never_forked(it: Buffers) -> None:
    """On a GPU the work would run at once."""
    with it.side.use():
        tripled(it)


def joined_but_not_forked(it: Buffers) -> None:
    """The capture would wait for a stream that it knows nothing of."""
    it.side.join()


REFUSED = {
    never_joined: "the capture stream does not wait for it",
    work_after_the_join: "the capture stream does not wait for it",
    never_forked: "is not part of the capture",
    joined_but_not_forked: "is not part of the capture",
}


@pytest.mark.parametrize("build", REFUSED)
def test_what_cuda_would_get_wrong_is_refused(build: Work) -> None:
    """With the reason; memory is as before."""
    it = Buffers()
    it.recorder.warm_up(lambda: build(it))
    it.second.fill_(0)
    with pytest.raises(CaptureError, match=REFUSED[build]):
        it.recorder.capture(lambda: build(it))
    assert it.second.tolist() == [0] * 4
    assert it.replayed(lambda: it.forked(doubled, tripled))[0][1] == [3, 6, 9, 12]


def test_a_side_stream_without_a_warm_up_is_refused() -> None:
    """Its libraries would make their state within the capture."""
    it = Buffers()
    it.recorder.warm_up(lambda: it.forked(doubled, tripled))
    it.side = it.recorder.side_stream(1)
    with pytest.raises(CaptureError, match="no warm-up used the side stream"):
        it.recorder.capture(lambda: it.forked(doubled, tripled))


def test_no_order_breaks_what_streams_promise() -> None:
    """A stream's nodes follow each other, forks and joins are kept, every node runs
    once; some seed interleaves.
    """
    order = StreamOrder()
    order.add_node()  # 0
    for stream in (0, 1):
        order.fork(stream)
        order.current = stream
        order.add_node()  # 1, 3
        order.add_node()  # 2, 4
        order.current = -1
    assert order.unjoined() == [0, 1]
    order.join(0)
    order.join(1)
    order.add_node()  # 5
    assert not order.unjoined()
    drawn = {tuple(order.drawn(seed)) for seed in range(8)}
    assert tuple(order.drawn(0)) == (0, 3, 4, 1, 2, 5)
    assert len(drawn) > 2
    for it in drawn:
        assert sorted(it) == list(range(6))
        assert it.index(1) < it.index(2)
        assert it.index(3) < it.index(4)
        assert (it[0], it[-1]) == (0, 5)


def test_replays_on_a_cpu_have_no_times() -> None:
    """Nothing can be decided by them."""
    it = Buffers()
    graph, _ = it.recorder.capture(lambda: doubled(it))
    assert it.recorder.replay_times(graph) is None
