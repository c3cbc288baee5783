"""Groups whose metadata vLLM derives from that of a group before them.

``build_attn_metadata`` (``v1/worker/gpu/attn_utils.py``) builds the first recurrent
group of a spec and a builder class, and gives the later ones its metadata with state
indices of their own (``update_block_table``). That is no build that a group has alone.
"""

from typing import Any


def groups_built_with(attn_groups: list[list[Any]], index: int) -> tuple[int, ...]:
    """The KV-cache groups that a build of group ``index`` takes, in order: itself, and
    the first one of its kind, if vLLM derives its metadata from that one's.

    From ``build_attn_metadata`` in vLLM's ``v1/worker/gpu/attn_utils.py``.
    """
    own = {*map(_reuse_key, attn_groups[index])} - {None}
    before = range(index)
    first = [it for it in before if own & {*map(_reuse_key, attn_groups[it])}]
    return (*first[:1], index)


def _reuse_key(group: Any) -> tuple[Any, type[Any]] | None:
    """What groups of derived metadata have in common; None if it is never derived."""
    from vllm.v1.kv_cache_interface import MambaSpec  # noqa: PLC0415

    builder = group.get_metadata_builder()
    if not (
        getattr(builder, "supports_update_block_table", False)
        and isinstance(group.kv_cache_spec, MambaSpec)
    ):
        return None
    return group.kv_cache_spec, type(builder)
