"""The interception: two torch modes that show a capture every torch call.

The dispatch mode sees each ATen operation. The function mode sees what a CPU
tensor answers without dispatch (`numpy()`, `tolist()`, `.to(same device)`,
`.device`) and what the caller wrote before torch changed it (the device of a
factory, pinned allocations).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphparity.fastpath.recorders.capture_session import CaptureSession
from graphparity.fastpath.recorders.device_memory import Placement
from graphparity.fastpath.recorders.nodes import Operand
from graphparity.fastpath.recorders.operation_recording import run_operation
from graphparity.fastpath.recorders.refusals import (
    PAGEABLE,
    READ,
    STORAGE,
    copy_refusal,
)

Function = Callable[..., Any]
Handler = Callable[[Function, Sequence[Operand], dict[str, Operand]], Any]

_READS: dict[Function, str] = {
    getattr(torch.Tensor, name): f"Tensor.{name}"
    for name in (
        *("item", "tolist", "cpu", "numpy", "equal", "allclose", "is_nonzero"),
        *("__array__", "__bool__", "__int__", "__float__", "__complex__", "__index__"),
        *("__dlpack__", "__repr__", "__format__", "__contains__", "__reduce_ex__"),
    )
} | {
    torch.equal: "torch.equal",
    torch.allclose: "torch.allclose",
    torch.is_nonzero: "torch.is_nonzero",
}


class OperationMode(TorchDispatchMode):
    """Hands every ATen operation of the capturing thread to the session."""

    def __init__(self, session: CaptureSession) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._session = session

    def __torch_dispatch__(
        self,
        func: Operand,
        types: Iterable[type],
        args: Sequence[Operand] = (),
        kwargs: dict[str, Operand] | None = None,
    ) -> Operand:
        """Run, record or refuse `func`."""
        if self._session.is_executing:
            return func(*args, **(kwargs or {}))
        return run_operation(self._session, func, args, kwargs or {})


class FunctionMode(TorchFunctionMode):
    """Answers and refuses what never reaches dispatch on a CPU tensor."""

    def __init__(self, session: CaptureSession) -> None:
        super().__init__()
        self._session = session
        tensor = torch.Tensor
        self._handlers: dict[Function, Handler] = {
            **dict.fromkeys(_READS, self._read),
            tensor.device.__get__: self._get_device,
            tensor.data.__set__: self._set_storage,  # type: ignore[attr-defined]  # slot
            tensor.to: self._to,
            tensor.pin_memory: self._pin,
            tensor.is_pinned: self._is_pinned,
            tensor.new_tensor: self._new_tensor,
            torch.tensor: self._from_values,
            torch.as_tensor: self._from_values,
            torch.asarray: self._from_values,
        }

    def __torch_function__(
        self,
        func: Operand,
        types: Iterable[type],
        args: Sequence[Operand] = (),
        kwargs: dict[str, Operand] | None = None,
    ) -> Operand:
        """Answer, refuse or pass on `func`."""
        kwargs = kwargs or {}
        if self._session.is_executing:
            return func(*args, **kwargs)
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(func, args, kwargs)
        if kwargs.get("pin_memory"):
            return self._pin(func, args, {**kwargs, "pin_memory": False})
        return self._pass_on(func, args, kwargs)

    def _pass_on(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> Operand:
        session = self._session
        outer = session.inherits_device
        session.inherits_device = kwargs.get("device") is None and session.holds(
            [args, kwargs]
        )
        try:
            return func(*args, **kwargs)
        finally:
            session.inherits_device = outer

    def _read(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> Operand:
        if self._session.holds([args, kwargs]):
            self._session.refuse(_READS[func], READ)
        return func(*args, **kwargs)

    def _get_device(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> Operand:
        return (
            self._session.device if self._session.holds(args) else func(*args, **kwargs)
        )

    def _set_storage(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> Operand:
        if self._session.holds(args):
            self._session.refuse("Tensor.data = ...", STORAGE)
        return func(*args, **kwargs)

    def _to(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> Operand:
        session, source = self._session, self._session.placement(args[0])
        target = self._target_of_to(*args[1:], **kwargs)
        if target is None:
            return self._pass_on(func, args, kwargs)
        device, dtype, non_blocking, copy, rest = target
        is_target = device == session.device
        if source is Placement.DEVICE and not is_target:
            session.refuse("Tensor.to", READ)
        if (
            source is Placement.DEVICE
        ):  # without the device: the same memory where nothing changes
            return self._pass_on(
                func, (args[0], dtype or args[0].dtype, non_blocking, copy), rest
            )
        if not is_target:
            return func(*args, **kwargs)
        refusal = copy_refusal(Placement.DEVICE, source, non_blocking=non_blocking)
        if refusal is not None:
            session.refuse("Tensor.to", refusal)
        return func(args[0], device, dtype, non_blocking, copy, **rest)

    def _target_of_to(
        self, first: Operand = None, *more: Operand, **kwargs: Operand
    ) -> tuple[torch.device, torch.dtype | None, bool, bool, dict[str, Operand]] | None:
        """Bind the three signatures of `Tensor.to`; None where it changes no device."""
        first = (
            kwargs.pop("other", kwargs.pop("device", None)) if first is None else first
        )
        if first is None or isinstance(first, torch.dtype):
            return None
        if isinstance(first, torch.Tensor):
            is_device = self._session.placement(first) is Placement.DEVICE
            device = self._session.device if is_device else first.device
            more = (first.dtype, *more)
        else:
            device = torch.device(first)
        named = (
            dict(zip(("dtype", "non_blocking", "copy"), more, strict=False)) | kwargs
        )
        dtype, non_blocking = named.pop("dtype", None), named.pop("non_blocking", False)
        return device, dtype, non_blocking, named.pop("copy", False), named

    def _pin(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> Operand:
        # Pinned allocations need a GPU: an ordinary one stands for it here.
        is_method = func == torch.Tensor.pin_memory
        pinned = (
            args[0].clone()
            if is_method
            else self.__torch_function__(func, (), args, kwargs)
        )
        self._session.add_pinned_temporary(pinned)
        return pinned

    def _is_pinned(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> bool:
        return self._session.placement(args[0]) in (
            Placement.PINNED,
            Placement.PINNED_TEMPORARY,
        )

    def _new_tensor(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> Operand:
        device = kwargs.get("device")
        inherits = device is None and self._session.holds(args[:1])
        if inherits or (
            device is not None and torch.device(device) == self._session.device
        ):
            self._session.refuse("Tensor.new_tensor", PAGEABLE)
        return func(*args, **kwargs)

    def _from_values(
        self, func: Function, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> Operand:
        """`torch.tensor`, `as_tensor` and `asarray` of a tensor, an array or a list."""
        if kwargs.get("pin_memory"):
            return self._pin(func, args, {**kwargs, "pin_memory": False})
        values = args[0] if args else next(iter(kwargs.values()))
        device = kwargs.get("device")
        target = torch.get_default_device() if device is None else torch.device(device)
        is_target = target == self._session.device
        if self._session.holds([values]):
            if not isinstance(values, torch.Tensor) or (
                device is not None and not is_target
            ):
                self._session.refuse(f"torch.{func.__name__}", READ)
            # Without the device: the same memory where nothing changes.
            return self._pass_on(func, args, {**kwargs, "device": None})
        if is_target:
            self._session.refuse(f"torch.{func.__name__}", PAGEABLE)
        return func(*args, **kwargs)
