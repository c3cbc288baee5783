"""No upload of replay starts that the device buffer is known to hold.

Under sliding-window bounded replay a model state uploads each batch's replay
starts, although those of a decode step are all zero. The upload is skipped while
the buffer's leading rows are known to hold zeros, and comes back after any step
that uploaded a non-zero.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class KnownZeroReplayStarts:
    """Mixed in before a state that has ``_upload_replay_start`` (vLLM
    ``models/deepseek_v41/nvidia/model_state.py``).

    Invariant: the first ``_num_zero_replay_starts`` rows of ``_replay_start``
    hold zeros on the device. Besides uploads, only captures write the buffer,
    and they write zeros.
    """

    _num_zero_replay_starts = 0
    _replay_start: torch.Tensor  # [max_num_reqs], int32, device

    def _upload_replay_start(
        self, values: npt.NDArray[np.int32], num_reqs: int
    ) -> torch.Tensor:
        """The batch's replay starts on the device.

        Args:
            values: [num_reqs] replay starts in tokens, on the host.
            num_reqs: the batch's requests.
        """
        has_replay = bool(values.any())
        if has_replay or num_reqs > self._num_zero_replay_starts:
            base: Any = super()
            base._upload_replay_start(values, num_reqs)
            self._num_zero_replay_starts = 0 if has_replay else num_reqs
        return self._replay_start[:num_reqs]
