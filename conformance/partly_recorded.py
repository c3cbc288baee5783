"""A subject whose state records only some of its KV-cache groups."""

from collections.abc import Collection, Mapping
from typing import Any

from graphparity.conformance.attention_groups import refused_groups
from graphparity.conformance.recorded_anew import recorded_anew
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey


def partly_recorded(
    subject: Subject, refused: Collection[int], keys: tuple[GraphKey, ...]
) -> Subject:
    """``subject`` with a newly recorded state that builds the groups ``refused``
    eagerly, besides those that are refused already; it shares memory with the
    subject's own as ``recorded_anew`` says.
    """
    refused = {*refused, *refused_groups(subject.state)}

    def judge(state: object, attn_groups: list[Any]) -> Mapping[int, bool]:
        return {index: index not in refused for index in range(len(attn_groups))}

    return recorded_anew(subject, keys, judge_groups=judge)
