"""What a decode step reads of the KV cache's configuration.

Place: ``prepare_attn`` takes a ``KVCacheConfig``; each attention group's builder
takes its spec. From vLLM's ``v1/kv_cache_interface.py``, whose names are kept;
memory sizes and head shapes, which no metadata build reads, are left out.
Invariant: specs are frozen; all sizes count tokens unless a name says states.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    """One KV cache group's format. ``block_size`` counts uncompressed tokens."""

    block_size: int
    tokens_per_state: int = 1
    """Tokens that share one stored state: the compression ratio."""

    @property
    def num_states(self) -> int:
        """States in one block."""
        return self.block_size // self.tokens_per_state

    @property
    def prefix_cacheable(self) -> bool:
        """Whether the group takes part in prefix caching."""
        return True

    @property
    def prefix_replay_tokens(self) -> int:
        """Tokens recomputed after a prefix hit; 0 without bounded replay."""
        return 0

    @property
    def uses_slot_mapping(self) -> bool:
        """Whether the runner computes a slot for every token of the group."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class CircularBufferSpec(KVCacheSpec):
    """The compressor's ring: one block a request; ``block_size`` is its capacity."""

    @property
    def prefix_cacheable(self) -> bool:
        """The ring holds an open group of tokens: never cached."""
        return False

    @property
    def uses_slot_mapping(self) -> bool:
        """The builder computes ring slots itself."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlidingWindowMLASpec(KVCacheSpec):
    """Sliding-window KV; with ``bounded_replay`` it is rebuilt, never cached."""

    sliding_window: int
    bounded_replay: bool = False
    extra_retained_tokens: int = 0

    @property
    def num_retained_tokens(self) -> int:
        """Tokens below a request's first scheduled position that stay readable."""
        return self.sliding_window - 1 + self.extra_retained_tokens

    @property
    def prefix_cacheable(self) -> bool:
        """Not cached where it is replayed."""
        return not self.bounded_replay

    @property
    def prefix_replay_tokens(self) -> int:
        """The window, where it is replayed."""
        return self.sliding_window if self.bounded_replay else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(KVCacheSpec):
    """Compressed latents: the sparse indexer's keys, or the sparse MLA's."""


@dataclasses.dataclass
class KVCacheGroupSpec:
    """Layers that share one block table."""

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec


@dataclasses.dataclass
class KVCacheConfig:
    """The model's KV cache; ``kv_cache_tensors`` is opaque to a metadata build."""

    num_blocks: int
    kv_cache_tensors: list[object]
    kv_cache_groups: list[KVCacheGroupSpec]
