"""Mode ``verify`` under tensor parallelism: a difference on one rank ends all of them.

vLLM answers for rank 0 alone. A rank that stopped by itself would leave the others
waiting for it in the forward, and its error in its own log. So the ranks tell each
other after every step that any of them may verify, whether it recorded the step or not:
over the group of the host, for a step of this mode waits for the device anyway.
"""

import torch


class VerifyError(RuntimeError):
    """A replayed step differs from the eager build; the message lists every path."""


def raise_on_every_rank(error: VerifyError | None) -> None:
    """Return if no rank has an error; called by all ranks, after the same steps.

    Args:
        error: what this rank found.

    Raises:
        VerifyError: the error of this rank, else that of the first one that has any.
    """
    for rank, message in enumerate(messages := _told_by_ranks(error)):
        if message and error is None:
            raise VerifyError(f"rank {rank} of {len(messages)}: {message}")
    if error is not None:
        raise error


def _told_by_ranks(error: VerifyError | None) -> list[str]:
    """The message of every rank's error, "" where there is none."""
    own = "" if error is None else str(error)
    if not torch.distributed.is_initialized():
        return [own]
    from vllm.distributed import get_tp_group  # noqa: PLC0415

    group = get_tp_group()
    if group.world_size == 1:
        return [own]
    told = [""] * group.world_size
    torch.distributed.all_gather_object(told, own, group=group.cpu_group)
    return told
