"""CoreML's MIL programs run op by op in torch, because CoreML itself predicts only on macOS.

An op computes in float32 from its stored inputs, and its result is stored in the type that the program declares for
it: in a half-precision program every op's output is rounded to fp16, as on a device that accumulates in float32 inside
an op. Semantics are those of coremltools' op set for the ops that the project's models convert to; any other op is an
error that names it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array

FP16_MAX = float(torch.finfo(torch.float16).max)


class Interpreter:
    """One function of a MIL program, ready to run.

    Over all runs it keeps what half precision has to hold: ``largest_output`` of any op, before rounding;
    ``largest_sum`` behind a mean, which hardware may keep in half precision while it adds, of magnitudes, so that no
    order of adding goes beyond it; and ``overflows``, outputs that half precision made infinite.

    Args:
        function: a ``coremltools`` MIL function whose shapes are all static.

    Raises:
        KokoroNpuError: an op that the interpreter does not know.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.ops = [op for op in function.operations if op.op_type != "const"]
        self.largest_output = self.largest_sum = 0.0
        self.overflows = 0
        unknown = sorted({op.op_type for op in self.ops} - set(_OPS))
        if unknown:
            raise _unknown(f"op {unknown[0]}")
        self._uses = Counter(var.name for op in self.ops for var in variables(op))
        self._uses.update(var.name for var in function.outputs)

    @torch.inference_mode()
    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by input name to arrays by output name, as float32."""
        values = {
            name: self._stored(torch.from_numpy(np.ascontiguousarray(inputs[name])), var)
            for name, var in self.function.inputs.items()
        }
        uses = Counter(self._uses)
        for op in self.ops:
            arguments = {name: _value(given, values) for name, given in op.inputs.items() if given is not None}
            if op.op_type == "reduce_mean":
                total = arguments["x"].abs().sum(dim=_axes(arguments.get("axes")))
                self.largest_sum = max(self.largest_sum, float(total.max()))
            results = _OPS[op.op_type](**arguments)
            for var, result in zip(op.outputs, results if isinstance(results, list) else [results], strict=True):
                assert tuple(result.shape) == tuple(var.shape), (op.op_type, var.name, result.shape, var.shape)
                values[var.name] = self._stored(result, var)
            for var in variables(op):
                uses[var.name] -= 1
                if not uses[var.name]:
                    values.pop(var.name, None)  # a long bucket's activations take gigabytes
        return {var.name: values[var.name].float().numpy() for var in self.function.outputs}

    def _stored(self, value: Tensor, var: Any) -> Tensor:
        """``value`` as a variable of its declared type holds it, in float32 if it is a float."""
        kind = var.dtype.__name__
        if kind not in ("fp16", "fp32"):
            return value
        value = value.float()
        low, high = torch.aminmax(value)
        largest = max(-float(low), float(high))
        self.largest_output = max(self.largest_output, largest)
        if kind == "fp32":
            return value
        rounded = value.half().float()
        if largest > FP16_MAX:
            self.overflows += int(torch.isinf(rounded).sum())
        return rounded


def _unknown(what: str) -> KokoroNpuError:
    return KokoroNpuError(f"the MIL {what} has no meaning in runtimes/mil.py")


def variables(op: Any) -> list[Any]:
    """The variables that an op reads, constants left out."""
    given = [value for value in op.inputs.values() if value is not None]
    flat = [var for value in given for var in (value if isinstance(value, (list, tuple)) else [value])]
    return [var for var in flat if var.val is None]


def _value(given: Any, values: Mapping[str, Tensor]) -> Any:
    """A variable's tensor, or a constant: tensors of floats as float32 tensors, anything else as numpy or a scalar."""
    if isinstance(given, (list, tuple)):
        return [_value(var, values) for var in given]
    if given.val is None:
        return values[given.name]
    constant = given.val
    if isinstance(constant, (np.ndarray, np.floating)) and np.issubdtype(constant.dtype, np.floating):
        return torch.from_numpy(np.asarray(constant, dtype=np.float32))
    return constant


def _ints(values: Any) -> list[int]:
    return [int(value) for value in np.atleast_1d(np.asarray(values))]


def _axes(axes: Any) -> list[int] | None:
    """Axes of a reduction; without any it goes over all, in MIL as in torch."""
    return None if axes is None else _ints(axes)


def _margins(pad_type: str, pad: Any) -> list[tuple[int, int]]:
    """What the padding of a convolution or a pool adds before and after each spatial axis, in their order."""
    if pad_type not in ("valid", "custom"):
        raise _unknown(f"pad_type {pad_type}")
    return [] if pad_type == "valid" else _pairs(pad)


def _pairs(pad: Any) -> list[tuple[int, int]]:
    flat = _ints(pad)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _padded(x: Tensor, margins: list[tuple[int, int]], value: float = 0.0) -> Tensor:
    return F.pad(x, [n for pair in reversed(margins) for n in pair], value=value)


def _max_pool(x: Tensor, kernel_sizes: Any, strides: Any, pad_type: str, pad: Any = (), ceil_mode: Any = False) -> Any:
    pool = F.max_pool2d if x.ndim == 4 else F.max_pool1d
    padded = _padded(x, _margins(pad_type, pad), float("-inf"))
    return pool(padded, _ints(kernel_sizes), _ints(strides), ceil_mode=bool(ceil_mode))


def _steps(strides: Any, dilations: Any, groups: Any) -> dict[str, Any]:
    return {"stride": _ints(strides), "dilation": _ints(dilations), "groups": int(groups)}


def _conv(x: Tensor, weight: Tensor, pad_type: str, pad: Any = (), bias: Tensor | None = None, **steps: Any) -> Tensor:
    convolve = F.conv2d if x.ndim == 4 else F.conv1d
    return convolve(_padded(x, _margins(pad_type, pad)), weight, bias, **_steps(**steps))


def _conv_transpose(
    x: Tensor,
    weight: Tensor,
    pad_type: str,
    pad: Any = (),
    bias: Tensor | None = None,
    output_shape: Any = None,
    **steps: Any,
) -> Tensor:
    transpose = F.conv_transpose2d if x.ndim == 4 else F.conv_transpose1d
    full = transpose(x, weight, bias, **_steps(**steps))
    for axis, (before, after) in enumerate(_margins(pad_type, pad), start=2):
        length = full.shape[axis] - before - after if output_shape is None else int(output_shape[axis])
        full = full.narrow(axis, before, length)
    return full


def _slice_by_index(
    x: Tensor,
    begin: Any,
    end: Any,
    stride: Any = None,
    begin_mask: Any = None,
    end_mask: Any = None,
    squeeze_mask: Any = None,
) -> Tensor:
    steps = _ints(stride) if stride is not None else [1] * x.ndim
    index: list[slice | int] = []
    for axis in range(x.ndim):
        if squeeze_mask is not None and squeeze_mask[axis]:
            index.append(int(begin[axis]))
            continue
        first = None if begin_mask is not None and begin_mask[axis] else int(begin[axis])
        last = None if end_mask is not None and end_mask[axis] else int(end[axis])
        index.append(slice(first, last, steps[axis]))
    return x[tuple(index)]


def _pad(x: Tensor, pad: Any, mode: str = "constant", constant_val: Any = 0.0) -> Tensor:
    if mode != "constant":
        raise _unknown(f"pad with mode {mode}")
    return _padded(x, _pairs(pad), float(constant_val))


def _split(x: Tensor, axis: Any, split_sizes: Any = None, num_splits: Any = None) -> list[Tensor]:
    sizes = _ints(split_sizes) if split_sizes is not None else [x.shape[int(axis)] // int(num_splits)] * int(num_splits)
    return list(x.split(sizes, dim=int(axis)))


def _concat(values: list[Tensor], axis: Any, interleave: Any = False) -> Tensor:
    assert not interleave
    return torch.cat(values, dim=int(axis))


def _expand_dims(x: Tensor, axes: Any) -> Tensor:
    for axis in sorted(a % (x.ndim + len(_ints(axes))) for a in _ints(axes)):
        x = x.unsqueeze(axis)
    return x


def _tensor(value: Any) -> Any:
    """Constants that are no tensors (an integer beside a tensor) stay numbers."""
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


_OPS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: _tensor(x) + _tensor(y),
    "sub": lambda x, y: _tensor(x) - _tensor(y),
    "mul": lambda x, y: _tensor(x) * _tensor(y),
    "sin": lambda x: torch.sin(x),
    "cos": lambda x: torch.cos(x),
    "exp": lambda x: torch.exp(x),
    "identity": lambda x: x,
    "cast": lambda x, dtype: x,  # noqa: ARG005  # the declared type of the result does it
    "leaky_relu": lambda x, alpha: F.leaky_relu(x, float(alpha)),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "instance_norm": lambda x, epsilon, gamma=None, beta=None: F.instance_norm(
        x, weight=gamma, bias=beta, eps=float(epsilon)
    ),
    "batch_norm": lambda x, mean, variance, epsilon, gamma=None, beta=None: F.batch_norm(
        x, mean, variance, gamma, beta, eps=float(epsilon)
    ),
    "max_pool": _max_pool,
    "reduce_mean": lambda x, axes=None, keep_dims=False: x.mean(dim=_axes(axes), keepdim=bool(keep_dims)),
    "reshape": lambda x, shape: x.reshape(_ints(shape)),
    "transpose": lambda x, perm: x.permute(_ints(perm)),
    "expand_dims": _expand_dims,
    "concat": _concat,
    "split": _split,
    "pad": _pad,
    "slice_by_index": _slice_by_index,
}
