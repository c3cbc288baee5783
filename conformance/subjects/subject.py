"""A subject: a model state under test, with all that a runner would drive it by.

The state is touched only through the ``ModelState`` interface. Whether a step was
really replayed is told by the recorder it was given, never by the state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch

from graphparity.conformance.attention_groups import GroupOfPath
from graphparity.conformance.decode_batches import StepLimits
from graphparity.conformance.memory import Memory
from graphparity.fastpath.graph_key import Dispatch, GraphKey
from graphparity.fastpath.recorders.protocol import (
    NodeParameters,
    RecordedGraph,
    Recorder,
    ReplayTimes,
    SideStream,
)
from graphparity.reference.interface import ModelState
from graphparity.reference.model_state import ReferenceModelState

T = TypeVar("T")

REQUIRED_METHODS = (
    "add_request",
    "remove_request",
    "apply_staged_writes",
    "initialize_kv_cache",
    "capture_inner_cudagraphs",
    "prepare_inputs",
    "prepare_dummy_inputs",
    "prepare_attn",
)


class MeteredGraph:
    """A recorded graph that tells its recorder of every replay."""

    def __init__(self, graph: RecordedGraph, recorder: "MeteredRecorder") -> None:
        self.graph = graph
        self._recorder = recorder

    @property
    def num_nodes(self) -> int:
        """Device operations in the graph."""
        return self.graph.num_nodes

    def replay(self) -> None:
        """Replay, noted by the recorder."""
        self._recorder.num_replays += 1
        self._recorder.last_replayed = self
        self.graph.replay()

    def node_parameters(self) -> Sequence[NodeParameters]:
        """The parameters of every node."""
        return self.graph.node_parameters()

    def pool_spans(self) -> Sequence[tuple[int, int]]:
        """The address ranges that the capture allocated."""
        return self.graph.pool_spans()

    def release(self) -> None:
        """Release the graph."""
        self._recorder.forget(self)
        self.graph.release()


class MeteredRecorder:
    """A recorder that counts what it captured and how often that was replayed."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.name = recorder.name
        self.num_captures = 0
        self.num_replays = 0
        self.last_replayed: MeteredGraph | None = None
        self.graphs: list[MeteredGraph] = []
        """Those captured and not released."""
        self._built_without_nodes: dict[MeteredGraph, Any] = {}

    def warm_up(self, build: Callable[[], object]) -> None:
        """Warm up ``build``."""
        self._recorder.warm_up(build)

    def synchronize(self) -> None:
        """Wait for the warm-ups."""
        self._recorder.synchronize()

    def capture(self, build: Callable[[], T]) -> tuple[MeteredGraph, T]:
        """Capture ``build``, counted."""
        graph, built = self._recorder.capture(build)
        self.num_captures += 1
        metered = MeteredGraph(graph, self)
        self.graphs.append(metered)
        if not graph.num_nodes:
            self._built_without_nodes[metered] = built
        return metered, built

    def side_stream(self, index: int) -> SideStream:
        """The side stream of that number."""
        return self._recorder.side_stream(index)

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """The times of a graph's replays, which are not counted."""
        assert isinstance(graph, MeteredGraph), "captured by another recorder"
        return self._recorder.replay_times(graph.graph)

    def forget(self, released: MeteredGraph) -> None:
        """Note that a graph was released."""
        self.graphs = [graph for graph in self.graphs if graph is not released]
        self._built_without_nodes.pop(released, None)

    def served_without_launch(self, attn_metadata: Any) -> bool:
        """Whether ``attn_metadata`` holds the very objects captured with a graph that
        has no nodes: such a step needs no launch, and there is none to count.
        """
        return any(
            built and all(attn_metadata.get(name) is built[name] for name in built)
            for built in self._built_without_nodes.values()
        )


@dataclass(frozen=True)
class ReferenceSide:
    """Our reference model state, set up for the subject's configuration."""

    state: ReferenceModelState
    attn_groups: Any
    kv_cache_config: Any
    modes: Any
    """The reference's own ``CUDAGraphMode``."""


@dataclass(frozen=True)
class DeadNode:
    """A recorded node without effect in keys that have no padding."""

    name: str
    source: str
    """End of the path of the file that records it."""
    reason: str

    def is_of(self, description: str) -> bool:
        """Whether a node's description is this node's."""
        return f" {self.name} " in description and f"{self.source}:" in description


@dataclass(frozen=True)
class IndifferentOperand:
    """An operand of a recorded node, another value of which changes no result."""

    node: str
    """The node's name, or "" for any."""
    source: str
    """End of the path of the file that records it, or "" for any."""
    operand: str
    reason: str

    def is_of(self, node: str, operand: str) -> bool:
        """Whether it is this operand of a node, named "NAME [FILE:LINE]"."""
        name, _, location = node.partition(" [")
        same_node = self.node in {"", name}
        same_file = not self.source or f"{self.source}:" in location
        return same_node and same_file and operand == self.operand


@dataclass(frozen=True, repr=False)
class Subject:
    """A model state under test, its eager twin, and what a step of both reads."""

    name: str
    state: ModelState
    """Under test: recorded, and served by replays."""
    eager_state: ModelState
    """Builds the same steps eagerly, into the same buffers."""
    reference: ReferenceSide | None
    """The eager build's oracle; None where our reference does not know the builders."""
    recorder: MeteredRecorder
    record: Callable[[], None]
    """Records every key of ``state`` anew, with ``recorder``."""
    limits: StepLimits
    graph_keys: tuple[GraphKey, ...]
    dispatch: Dispatch
    cudagraph_modes: Any
    """The runner's ``CUDAGraphMode``: FULL and NONE are used."""
    input_batch_cls: Any
    input_buffers: Any
    block_tables: Any
    req_states: Any
    attn_groups: Any
    kv_cache_config: Any
    memory: Memory
    """All device memory that a step reads or writes."""
    builder_outputs: frozenset[str]
    """Paths of the buffers that builds write; poisoned before every step."""
    also_written: frozenset[str] = frozenset()
    """Paths of what else a decode step is known to write: tables that a builder clamps
    in place, replay starts that the state uploads."""
    branch_maps: frozenset[str] = frozenset()
    """Paths of token-to-request maps that only a forked branch builds."""
    staging_buffers: frozenset[str] = frozenset()
    """Paths of buffers in which only the state under test puts a step's inputs, for its
    recordings to read; poisoned before every step."""
    accepted_tokens: torch.Tensor | None = None
    """[max_num_reqs] tokens that each request accepted in its last step, drawn anew for
    every step (device); None where the state keeps none."""
    take_left_behind: Callable[[], Mapping[str, Any]] = dict
    """What a step left on the host for the step's postprocessing, by name; taking it
    clears it."""
    stand_in_fields: frozenset[str] = frozenset()
    """Metadata fields whose values come from stand-ins: not compared."""
    dead_without_padding: tuple[DeadNode, ...] = ()
    """Nodes whose absence nothing can show in a key without padding."""
    indifferent_operands: tuple[IndifferentOperand, ...] = ()
    """Operands whose other values nothing can show."""
    largest_rung: int | None = None
    """Requests that the last FULL graph holds, where that is fewer than the scheduler
    runs: steps of more are eager. None if every step has a graph."""
    addresses: dict[GraphKey, dict[str, int]] = field(default_factory=dict)
    """Where the replayed metadata of each key lay the first time."""
    made_by: str = ""
    """The expression that makes it anew, for snippets; of a subject that is loaded by
    name, empty."""

    @cached_property
    def group_of_path(self) -> GroupOfPath:
        """The attention group of each metadata field and each buffer."""
        return GroupOfPath(self.attn_groups)

    def __repr__(self) -> str:
        return f"<Subject {self.name}>"

    @property
    def expression(self) -> str:
        """What makes it in the snippet of a failed comparison."""
        return self.made_by or f"load_subject({self.name!r})"


def eager_twin(state: Any, base: type[T]) -> T:
    """A ``base`` over the very buffers of ``state``, an instance of its subclass.

    It builds each step as ``base`` does, and shares all memory with ``state``.
    """
    twin = base.__new__(base)
    vars(twin).update(vars(state))
    return twin


def require_model_state(state: object) -> None:
    """Raise ``TypeError`` naming every interface method that ``state`` lacks."""
    missing = [name for name in REQUIRED_METHODS if not hasattr(state, name)]
    if missing:
        raise TypeError(
            f"subject {type(state).__qualname__} lacks {', '.join(missing)}: a subject "
            "implements graphparity.reference.interface.ModelState."
        )
