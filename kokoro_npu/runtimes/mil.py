"""CoreML's MIL programs run op by op in torch, because CoreML itself predicts only on macOS.

An op computes in float32 from its stored inputs, and its result is stored in the type that the program declares for
it: in a half-precision program every op's output is rounded to fp16, as on a device that accumulates in float32 inside
an op. Semantics are those of coremltools' op set for the ops that the project's models convert to; any other op is an
error that names it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array


class Interpreter:
    """One function of a MIL program, ready to run.

    Over all runs it keeps ``overflows``, values that half precision made infinite, and ``sum_max``, the largest sum
    behind a mean, which hardware may keep in half precision while it adds: of magnitudes, so that no order of adding
    goes beyond it.

    Args:
        function: a ``coremltools`` MIL function of one output whose shapes are all static.

    Raises:
        KokoroNpuError: an op that the interpreter does not know.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.ops = [op for op in function.operations if op.op_type != "const"]
        self.overflows = 0
        self.sum_max = 0.0
        unknown = sorted({op.op_type for op in self.ops} - set(_OPS))
        if unknown:
            raise KokoroNpuError(f"the MIL op {unknown[0]} has no meaning in runtimes/mil.py")
        (self.output,) = function.outputs
        self._uses = Counter([self.output.name, *(var.name for op in self.ops for var in variables(op))])

    @torch.inference_mode()
    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """Arrays by input name to the output, as float32."""
        values = {
            name: self._stored(torch.from_numpy(np.ascontiguousarray(inputs[name])), var)
            for name, var in self.function.inputs.items()
        }
        uses = Counter(self._uses)
        for op in self.ops:
            arguments = {name: _value(given, values) for name, given in op.inputs.items() if given is not None}
            if op.op_type == "reduce_mean":
                total = arguments["x"].abs().sum(dim=arguments.get("axes"))
                self.sum_max = max(self.sum_max, float(total.max()))
            results = _OPS[op.op_type](**arguments)
            for var, result in zip(op.outputs, [results] if isinstance(results, Tensor) else results, strict=True):
                assert tuple(result.shape) == tuple(var.shape), (op.op_type, var.name, result.shape, var.shape)
                values[var.name] = self._stored(result, var)
            for var in variables(op):
                uses[var.name] -= 1
                if not uses[var.name]:
                    values.pop(var.name, None)  # a long bucket's activations take gigabytes
        return values[self.output.name].float().numpy()

    def _stored(self, value: Tensor, var: Any) -> Tensor:
        """``value`` as a variable of its declared type holds it, in float32 if it is a float."""
        kind = var.dtype.__name__
        if kind not in ("fp16", "fp32"):
            return value
        if kind == "fp16":
            value = value.half()
            self.overflows += int(torch.isinf(value).sum())
        return value.float()


def variables(op: Any) -> list[Any]:
    """The variables that an op reads, constants left out."""
    given = [value for value in op.inputs.values() if value is not None]
    flat = [var for value in given for var in (value if isinstance(value, (list, tuple)) else [value])]
    return [var for var in flat if var.val is None]


def _value(given: Any, values: Mapping[str, Tensor]) -> Any:
    """A variable's tensor, or a constant: an array of floats as a float32 tensor, anything else in Python's types."""
    if isinstance(given, (list, tuple)):
        return [_value(var, values) for var in given]
    if given.val is None:
        return values[given.name]
    constant = given.val
    if not isinstance(constant, (np.ndarray, np.generic)):
        return constant
    if constant.ndim and np.issubdtype(constant.dtype, np.floating):
        return torch.from_numpy(np.asarray(constant, dtype=np.float32))
    return constant.tolist()


def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", constant_val: float = 0.0) -> Tensor:
    assert mode == "constant", mode
    pairs = zip(pad[::2], pad[1::2], strict=True)  # before and after each of the last axes, in their order
    return F.pad(x, [n for pair in reversed([*pairs]) for n in pair], value=constant_val)


def _around(pad_type: str, pad: Sequence[int]) -> Sequence[int]:
    """What a convolution or a pool adds before and after each spatial axis, in their order."""
    assert pad_type in ("valid", "custom"), pad_type
    return pad if pad_type == "custom" else ()


def _max_pool(
    x: Tensor,
    kernel_sizes: list[int],
    strides: list[int],
    pad_type: str,
    pad: Sequence[int] = (),
    ceil_mode: bool = False,
) -> Tensor:
    pool = F.max_pool2d if x.ndim == 4 else F.max_pool1d
    padded = _pad(x, _around(pad_type, pad), constant_val=float("-inf"))
    return pool(padded, kernel_sizes, strides, ceil_mode=ceil_mode)


def _conv(
    x: Tensor,
    weight: Tensor,
    pad_type: str,
    strides: list[int],
    dilations: list[int],
    groups: int,
    pad: Sequence[int] = (),
    bias: Tensor | None = None,
    transposed: bool = False,
) -> Tensor:
    none = [0] * len(strides)
    padded = _pad(x, _around(pad_type, pad))
    return torch.convolution(padded, weight, bias, strides, none, dilations, transposed, none, groups)


def _conv_transpose(
    x: Tensor, pad_type: str, pad: Sequence[int] = (), output_shape: Sequence[int] | None = None, **others: Any
) -> Tensor:
    y = _conv(x, pad_type="valid", transposed=True, **others)
    around = _around(pad_type, pad)
    for axis, (before, after) in enumerate(zip(around[::2], around[1::2], strict=True), start=2):
        length = y.shape[axis] - before - after if output_shape is None else output_shape[axis]
        y = y.narrow(axis, before, length)
    return y


def _slice_by_index(
    x: Tensor,
    begin: list[int],
    end: list[int],
    stride: list[int] | None = None,
    begin_mask: list[bool] | None = None,
    end_mask: list[bool] | None = None,
    squeeze_mask: list[bool] | None = None,
) -> Tensor:
    none = [False] * x.ndim
    axes = zip(begin, end, stride or [1] * x.ndim, begin_mask or none, end_mask or none, strict=True)
    index = [slice(None if whole else first, None if rest else last, step) for first, last, step, whole, rest in axes]
    return x[tuple(first if one else cut for first, one, cut in zip(begin, squeeze_mask or none, index, strict=True))]


def _split(x: Tensor, axis: int, split_sizes: list[int] | None = None, num_splits: int = 1) -> Sequence[Tensor]:
    return x.split(split_sizes, axis) if split_sizes else x.chunk(num_splits, axis)


def _concat(values: list[Tensor], axis: int, interleave: bool = False) -> Tensor:
    assert not interleave
    return torch.cat(values, dim=axis)


def _expand_dims(x: Tensor, axes: list[int]) -> Tensor:
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x


_OPS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "sin": lambda x: torch.sin(x),
    "cos": lambda x: torch.cos(x),
    "exp": lambda x: torch.exp(x),
    "leaky_relu": lambda x, alpha: F.leaky_relu(x, alpha),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "instance_norm": lambda x, epsilon: F.instance_norm(x, eps=epsilon),
    "batch_norm": lambda x, mean, variance, epsilon, gamma=None, beta=None: F.batch_norm(
        x, mean, variance, gamma, beta, eps=epsilon
    ),
    "max_pool": _max_pool,
    "reduce_mean": lambda x, axes=None, keep_dims=False: x.mean(dim=axes, keepdim=keep_dims),
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, perm: x.permute(perm),
    "expand_dims": _expand_dims,
    "concat": _concat,
    "split": _split,
    "pad": _pad,
    "slice_by_index": _slice_by_index,
}
