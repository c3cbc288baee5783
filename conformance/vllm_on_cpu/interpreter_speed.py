"""The Triton interpreter without work that has no effect on results.

Metadata kernels are tiny, so interpreting one is nearly all overhead: patching
the Triton language before every launch and nested call, an overflow check whose
assertion is switched off, and the same few types and shapes built again for
every value. `speed_up_interpreter()` removes that. Test processes only: it
changes `triton` for the life of the process.
"""

import math
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any


@cache
def speed_up_interpreter() -> None:
    """Speed up `triton.runtime.interpreter` of this process; idempotent."""
    from triton import language
    from triton.runtime import interpreter

    _keep_language_patched(interpreter, language)
    _drop_overflow_check(interpreter)
    interpreter._get_np_dtype = _by_scalar_name(interpreter._get_np_dtype)
    _share_shapes(language)


def _keep_language_patched(interpreter: Any, language: Any) -> None:
    """Patch the language once, in every module a kernel can see it through.

    The interpreter restores it after a launch so that kernels can still be
    compiled; a process without a GPU compiles none.
    """
    every_module = SimpleNamespace(__globals__={"tl": language, "core": language.core})
    interpreter._patch_lang(every_module)
    nothing_to_restore = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda _fn: nothing_to_restore


def _drop_overflow_check(interpreter: Any) -> None:
    """Skip a check of every integer operation whose outcome is ignored.

    It repeats the operation in 64 bits for `device_assert`, which returns at once
    without `options.debug` (`triton/language/semantic.py`).
    """
    if not interpreter.interpreter_builder.options.debug:
        options = interpreter.InterpreterOptions(sanitize_overflow=False)
        interpreter.interpreter_builder.options = options


def _by_scalar_name(get_np_dtype: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Cache a look-up that depends on the scalar type only.

    The original builds its table at every call; block types are not hashable.
    """
    found: dict[str, Any] = {}

    def cached(tt_dtype: Any) -> Any:
        name = tt_dtype.scalar.name
        if name not in found:
            found[name] = get_np_dtype(tt_dtype)
        return found[name]

    return cached


def _share_shapes(language: Any) -> None:
    """Let tensors of one shape share its constants, which no kernel can change."""
    constexpr, shape_tuple = language.constexpr, language.core.tuple

    @cache
    def constants(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return constexpr(math.prod(shape)), shape_tuple([constexpr(s) for s in shape])

    def initialize(self: Any, handle: Any, type: Any) -> None:
        """As `triton.language.tensor.__init__`, with shared constants."""
        self.handle = handle
        self.type = type
        self.dtype = type.scalar
        # A block type's shape is Triton's tuple, which is slow to hash and compare.
        shape = tuple(type.shape.values) if type.is_block() else ()
        self.numel, self.shape = constants(shape)

    language.tensor.__init__ = initialize
