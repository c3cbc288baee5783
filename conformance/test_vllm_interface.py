"""Our interface is the installed vLLM's: drift fails here and names the field.

Collected only for subjects of vLLM, whose process has it set up.
"""

import dataclasses
import importlib
import inspect
from typing import Any

import pytest

from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import REQUIRED_METHODS
from graphparity.reference.attention import AttentionGroup, CommonAttentionMetadata
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBatch, InputBuffers
from graphparity.reference.interface import ModelState

pytestmark = pytest.mark.emulated_recorder_only

WORKER = "vllm.v1.worker.gpu"
DATACLASSES = {
    InputBatch: (f"{WORKER}.input_batch", "InputBatch"),
    CommonAttentionMetadata: ("vllm.v1.attention.backend", "CommonAttentionMetadata"),
    AttentionGroup: ("vllm.v1.worker.utils", "AttentionGroup"),
}
"""Our dataclass -> module and name of vLLM's."""
BLOCK_TABLE_METHODS = (
    "__init__",
    "append_block_ids",
    "apply_staged_writes",
    "gather_block_tables",
    "compute_slot_mappings",
    "get_dummy_block_tables",
    "get_dummy_slot_mappings",
)


def parameters(function: Any) -> list[tuple[str, Any]]:
    """Name and default of every parameter, in order."""
    signature = inspect.signature(function)
    return [(p.name, p.default) for p in signature.parameters.values()]


def fields(cls: Any) -> list[tuple[str, Any]]:
    """Name and default of every field, in order."""
    return [(f.name, f.default) for f in dataclasses.fields(cls)]


@pytest.fixture(autouse=True)
def vllm_is_set_up(shortest_subject: str) -> None:
    """The installed vLLM is imported only where a subject has set up its platform."""
    load_subject(shortest_subject)


@pytest.mark.parametrize("method", REQUIRED_METHODS)
def test_model_state_methods(method: str) -> None:
    """Names, order and defaults of every parameter."""
    vllm_state = _vllm(f"{WORKER}.model_states.interface", "ModelState")
    assert parameters(getattr(ModelState, method)) == parameters(
        getattr(vllm_state, method)
    )


def test_model_state_attributes() -> None:
    """The length bound is a property, the sampled-token count the same number."""
    vllm_state = _vllm(f"{WORKER}.model_states.interface", "ModelState")
    assert isinstance(vllm_state.max_model_len, property)
    assert (
        ModelState.num_new_sampled_tokens_per_step
        == vllm_state.num_new_sampled_tokens_per_step
    )


@pytest.mark.parametrize("ours", DATACLASSES, ids=lambda cls: cls.__name__)
def test_dataclass_fields(ours: Any) -> None:
    """Names, order and defaults of every field."""
    assert fields(ours) == fields(_vllm(*DATACLASSES[ours]))


def test_input_buffers(shortest_subject: str) -> None:
    """The same buffers, of the same shapes and types."""
    theirs = vars(load_subject(shortest_subject).input_buffers)
    sizes = (theirs["max_num_reqs"], theirs["max_num_tokens"], theirs["device"])
    ours = vars(InputBuffers(*sizes))
    assert ours.keys() == theirs.keys()
    for name, buffer in ours.items():
        if hasattr(buffer, "shape"):
            actual = (buffer.shape, buffer.dtype)
            assert actual == (theirs[name].shape, theirs[name].dtype), name


@pytest.mark.parametrize("method", BLOCK_TABLE_METHODS)
def test_block_table_methods(method: str) -> None:
    """Names, order and defaults of every parameter."""
    vllm_tables = _vllm(f"{WORKER}.block_table", "BlockTables")
    assert parameters(getattr(BlockTables, method)) == parameters(
        getattr(vllm_tables, method)
    )


def test_make_dummy() -> None:
    """Names, order and defaults of its parameters."""
    vllm_batch = _vllm(f"{WORKER}.input_batch", "InputBatch")
    assert parameters(InputBatch.make_dummy) == parameters(vllm_batch.make_dummy)


def _vllm(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
