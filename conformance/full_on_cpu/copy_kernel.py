"""A Triton kernel, interpreted: imported once this process is prepared for vLLM."""

# ruff: noqa: ANN001, ANN202, N803  # Triton kernels: no host types, constexprs in capitals
from typing import Any

import triton
import triton.language as tl


def _copy_kernel(from_ptr, to_ptr, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    columns = tl.arange(0, BLOCK)
    element = tl.program_id(0) * width + columns
    mask = columns < width
    tl.store(to_ptr + element, tl.load(from_ptr + element, mask=mask), mask=mask)


copy_kernel: Any = triton.jit(_copy_kernel)
"""Copies as many rows of ``width`` elements as it has programs."""
