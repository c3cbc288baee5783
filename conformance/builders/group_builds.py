"""`GroupBuild`s of real vLLM builders, each through vLLM's own model state.

`DefaultModelState.prepare_attn` is recorded whole. Of `MambaHybridModelState`
only the `build_attn_metadata` call is: the gather of accepted-token counts
before it reads a tensor that is new every step. Imports vLLM: only after
`platform.install()`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from vllm.config import set_current_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker.gpu.model_states import mamba_hybrid
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from graphparity.conformance.builders.attention_layers import LAYER_NAME
from graphparity.conformance.builders.cases import BuilderCase
from graphparity.conformance.builders.deployment import GroupDeployment, deploy_group
from graphparity.conformance.builders.settings import setting_of
from graphparity.conformance.vllm_on_cpu.deepseek_v41 import DeploymentConfig
from graphparity.conformance.vllm_on_cpu.memory import builder_memory, rotating_memory
from graphparity.fastpath.group_build import GroupBuild, source_of
from graphparity.fastpath.runtime_batch import StepRows
from graphparity.fastpath.step_inputs import write_step_inputs

_BUILDER_PATH = f"builders.{LAYER_NAME}."


def make_group_build(
    case: BuilderCase, device: torch.device, max_num_seqs: int
) -> GroupBuild:
    """The build of `case` in a deployment of its own, warmed up."""
    setting = setting_of(case.name, case.flavour, case.query_len)
    config = DeploymentConfig(
        case.flavour,
        case.query_len,
        device=device,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=8 * max_num_seqs,
    )
    deployment = deploy_group(config, setting)
    is_hybrid = isinstance(setting.spec, MambaSpec)
    build_cls = HybridGroupBuild if is_hybrid else DefaultGroupBuild
    build = build_cls(deployment, case.constants)
    _warm_up(build, case.query_len)
    return build


def _warm_up(build: GroupBuild, query_len: int) -> None:
    """Build once, as the runner does before it captures: some builders allocate in
    their first build. Then zero what is left uninitialised for kernels of the forward
    pass: it may be no number, which equals nothing.
    """
    rows = StepRows([query_len], [query_len + 1], [0], 1, query_len, seed=0)
    build.stage(rows)()
    for tensor in build.outputs.values():
        if tensor.is_floating_point():
            tensor.zero_()


class DefaultGroupBuild:
    """One group of a `DefaultModelState`.

    Args:
        deployment: the group, its builder and the runner's buffers.
        constants: names of builder members that builds read and never write; they
            are inputs, since poisoning them would break every build.
    """

    state_cls: type[Any] = DefaultModelState

    def __init__(
        self, deployment: GroupDeployment, constants: Mapping[str, str]
    ) -> None:
        self._deployment = deployment
        self._constants = frozenset(_BUILDER_PATH + name for name in constants)
        with set_current_vllm_config(deployment.vllm_config):
            self._state = self.state_cls(
                deployment.vllm_config, torch.nn.Module(), None, deployment.device
            )

    @property
    def name(self) -> str:
        """The builder's qualified class name."""
        builder_cls = type(self._deployment.builder)
        return f"{builder_cls.__module__}.{builder_cls.__qualname__}"

    @property
    def location(self) -> str:
        """``file:line`` of the builder's `build`."""
        return source_of(type(self._deployment.builder).build)

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """The runner's buffers, then the builder's constants."""
        buffers, tables = self._deployment.input_buffers, self._deployment.block_tables
        read = {
            f"input_buffers.{name}": tensor
            for name, tensor in vars(buffers).items()
            if isinstance(tensor, torch.Tensor) and not name.endswith("_cpu")
        }
        read["block_tables.input_block_tables[0]"] = tables.input_block_tables[0]
        read["block_tables.slot_mappings"] = tables.slot_mappings
        owned = self._owned()
        return read | {path: owned[path] for path in sorted(self._constants)}

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """What the builder owns, found by walking it."""
        return {
            path: tensor
            for path, tensor in self._owned().items()
            if path not in self._constants
        }

    @property
    def rotating_inputs(self) -> Mapping[str, torch.Tensor]:
        """The runner's pools of upload buffers."""
        return rotating_memory(self._as_deployment())

    def stage(self, rows: StepRows) -> Callable[[], object]:
        """Write the step's inputs; returns the state's `prepare_attn` in FULL mode."""
        prepare_attn = self._prepare_attn(rows)

        def build() -> object:
            return prepare_attn()[LAYER_NAME]

        return build

    def _prepare_attn(self, rows: StepRows) -> Callable[[], dict[str, Any]]:
        step = write_step_inputs(self._deployment.runner, rows)
        return partial(
            self._state.prepare_attn,
            step.input_batch,
            CUDAGraphMode.FULL,
            step.block_tables,
            step.slot_mappings,
            self._deployment.attn_groups,
            self._deployment.kv_cache_config,
        )

    def _owned(self) -> dict[str, torch.Tensor]:
        return builder_memory(self._as_deployment())

    def _as_deployment(self) -> Any:
        """For `vllm_on_cpu.memory`, which reads these members only."""
        return self._deployment


class HybridGroupBuild(DefaultGroupBuild):
    """One group of a `MambaHybridModelState`, from its `build_attn_metadata` call."""

    state_cls = mamba_hybrid.MambaHybridModelState

    def __init__(
        self, deployment: GroupDeployment, constants: Mapping[str, str]
    ) -> None:
        super().__init__(deployment, constants)
        # [max_num_seqs] the state gathers into a new tensor every step; the
        # recording seam gathers into this one instead.
        self._num_accepted_tokens = torch.ones(
            deployment.input_buffers.max_num_reqs,
            dtype=torch.int32,
            device=deployment.device,
        )

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """Those of every group, and each request's accepted tokens."""
        return {
            **super().inputs,
            "num_accepted_tokens": self._num_accepted_tokens,
        }

    def _prepare_attn(self, rows: StepRows) -> Callable[[], dict[str, Any]]:
        """The state's own call, taken with its arguments instead of made."""
        self._draw_accepted_tokens(rows)
        with mock.patch.object(mamba_hybrid, "build_attn_metadata") as call:
            super()._prepare_attn(rows)()
        arguments: dict[str, Any] = dict(call.call_args.kwargs)
        specific = arguments["model_specific_attn_metadata"]
        arguments["model_specific_attn_metadata"] = self._persistent(specific)
        return partial(mamba_hybrid.build_attn_metadata, **arguments)

    def _draw_accepted_tokens(self, rows: StepRows) -> None:
        """Tokens each request accepted in its last step, 1 to the query length."""
        accepted = self._state.num_accepted_tokens_gpu
        generator = torch.Generator().manual_seed(rows.seed)
        high = max(rows.query_lens) + 1
        accepted.copy_(torch.randint(1, high, accepted.shape, generator=generator))

    def _persistent(self, specific: Any) -> Any:
        """`specific` with its counts in the persistent buffer."""
        gathered = specific.num_accepted_tokens
        if gathered is None:
            return specific
        persistent = self._num_accepted_tokens[: len(gathered)]
        persistent.copy_(gathered)
        return replace(specific, num_accepted_tokens=persistent)
