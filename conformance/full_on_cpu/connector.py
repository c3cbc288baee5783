"""A key-value connector that moves nothing, and keeps the metadata it is given.

vLLM imports it by this module's name. At every FULL step it notes the host bound that
it reads and the one that the scheduler's output implies; and, of the metadata that it
has kept since the step before, whether it still says what it said.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

from graphparity.conformance.full_on_cpu.notes import NOTES


class KeepingConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Keeps the metadata of the last FULL step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: tuple[Any, int] | None = None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Read and keep; there is nothing to load."""
        if not NOTES.is_serving or "attn_metadata" not in kwargs:
            return
        metadata = next(iter(kwargs["attn_metadata"].values()))
        was_kept = self._kept is None or self._kept[0].max_seq_len == self._kept[1]
        self._kept = metadata, metadata.max_seq_len
        NOTES.connector_reads.append(
            [metadata.max_seq_len, _longest(kwargs["scheduler_output"]), was_kept]
        )

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded."""

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is saved."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    def get_num_new_matched_tokens(self, *args: Any) -> tuple[int, bool]:
        """No token is at hand elsewhere."""
        return 0, False

    def update_state_after_alloc(self, *args: Any) -> None:
        """Nothing is loaded into the blocks."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Says nothing."""
        return KVConnectorMetadata()


def _longest(scheduler_output: Any) -> int:
    """Tokens of the longest sequence of a decode step."""
    cached, new = (
        scheduler_output.scheduled_cached_reqs,
        scheduler_output.scheduled_new_reqs,
    )
    computed: dict[str, int] = dict(
        zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    )
    computed |= {request.req_id: request.num_computed_tokens for request in new}
    scheduled: dict[str, int] = scheduler_output.num_scheduled_tokens
    return max(tokens + scheduled[req_id] for req_id, tokens in computed.items())
