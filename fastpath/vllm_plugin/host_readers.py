"""Which replayed steps' metadata is read by anything but a FULL graph.

A draft model's prefill runs under the target's metadata, unless its dispatch has a FULL
graph for the step: that one reads the buffers of its own capture, which was built by
the target's builders. So the draft's dispatch is asked, once it has captured.

A key-value connector receives the metadata of every FULL step, and may keep it.

From ``TargetDependentARSpeculator.propose`` in vLLM's
``v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py``, and from
``ActiveKVConnector.pre_forward`` in ``v1/worker/gpu/kv_connector.py``.
"""

from collections.abc import Iterable
from typing import Any

from graphparity.fastpath.graph_key import GraphKey


def keys_read_on_host(runner: Any, keys: Iterable[GraphKey]) -> tuple[GraphKey, ...]:
    """Of ``keys``, those whose steps have such readers: all with a connector, else
    those after which an eager draft prefill runs.

    Args:
        runner: vLLM's ``GPUModelRunner``, once it and its speculator have captured.
        keys: the recorded keys.
    """
    from vllm.config.compilation import CUDAGraphMode  # noqa: PLC0415
    from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR  # noqa: PLC0415
    from vllm.v1.worker.gpu.spec_decode.speculator import (  # noqa: PLC0415
        DraftModelSpeculator,
    )

    if runner.kv_connector is not NO_OP_KV_CONNECTOR:
        return tuple(keys)
    speculator = runner.speculator
    if not isinstance(speculator, DraftModelSpeculator):
        return ()
    dispatch = speculator.prefill_cudagraph_manager.dispatch
    return tuple(
        key
        for key in keys
        if dispatch(
            key.num_reqs, key.num_tokens_after_padding, key.query_len, 0
        ).cg_mode
        is not CUDAGraphMode.FULL
    )
