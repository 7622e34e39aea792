"""CoreML's MIL programs run op by op in torch, because CoreML itself predicts only on macOS.

An op computes in float32 from its stored inputs, and its result is stored in the type that the program declares for
it: in a half-precision program every op's output is rounded to fp16, as on a device that accumulates in float32 inside
an op. Semantics are those of coremltools' op set for the ops that the project's models convert to; any other op is an
error that names it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array

FP16_MAX = float(torch.finfo(torch.float16).max)


@dataclass
class Extremes:
    """The largest magnitudes that a program came to, over all runs: what half precision has to hold.

    Attributes:
        output: of any op's output, before rounding, and the op's type.
        total: of any sum behind a mean, which hardware may keep in half precision while it adds; of the magnitudes,
            so that no order of adding goes beyond it.
        overflows: outputs that half precision made infinite.
    """

    output: tuple[float, str] = (0.0, "")
    total: float = 0.0
    overflows: int = 0


@dataclass
class Interpreter:
    """One function of a MIL program, ready to run.

    Args:
        function: a ``coremltools`` MIL function whose shapes are all static.

    Raises:
        KokoroNpuError: an op that the interpreter does not know.
    """

    function: Any
    extremes: Extremes = field(default_factory=Extremes)

    def __post_init__(self) -> None:
        unknown = sorted({op.op_type for op in self.function.operations} - set(_OPS) - {"const"})
        if unknown:
            raise KokoroNpuError(f"the MIL op {unknown[0]} has no meaning in runtimes/mil.py yet")
        self._uses = Counter(
            var.name for op in self.function.operations if op.op_type != "const" for var in variables(op)
        )
        self._uses.update(var.name for var in self.function.outputs)

    @torch.inference_mode()
    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by input name to arrays by output name, as float32."""
        values = {
            name: self._stored(torch.from_numpy(np.ascontiguousarray(inputs[name])), var, "input")
            for name, var in self.function.inputs.items()
        }
        uses = Counter(self._uses)
        for op in self.function.operations:
            if op.op_type == "const":
                continue
            arguments = {name: _value(given, values) for name, given in op.inputs.items() if given is not None}
            if op.op_type == "reduce_mean":
                self._watch_sum(arguments)
            results = _OPS[op.op_type](**arguments)
            for var, result in zip(op.outputs, results if isinstance(results, list) else [results], strict=True):
                assert tuple(result.shape) == tuple(var.shape), (op.op_type, var.name, result.shape, var.shape)
                values[var.name] = self._stored(result, var, op.op_type)
            for var in variables(op):
                uses[var.name] -= 1
                if not uses[var.name]:
                    values.pop(var.name, None)  # a long bucket's activations take gigabytes
        return {var.name: values[var.name].float().numpy() for var in self.function.outputs}

    def _stored(self, value: Tensor, var: Any, op_type: str) -> Tensor:
        """``value`` as a variable of its declared type holds it, in float32 if it is a float."""
        kind = var.dtype.__name__
        if kind not in ("fp16", "fp32"):
            return value
        value = value.float()
        low, high = torch.aminmax(value)
        largest = max(-float(low), float(high))
        self.extremes.output = max(self.extremes.output, (largest, op_type))
        if kind == "fp32":
            return value
        rounded = value.half().float()
        if largest > FP16_MAX:
            self.extremes.overflows += int(torch.isinf(rounded).sum())
        return rounded

    def _watch_sum(self, arguments: Mapping[str, Any]) -> None:
        total = arguments["x"].abs().sum(dim=_axes(arguments.get("axes")))
        self.extremes.total = max(self.extremes.total, float(total.max()))


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


def _custom_padding(x: Tensor, pad_type: str, pad: Any, value: float = 0.0) -> Tensor:
    """``x`` padded as a convolution's ``custom`` padding says: before and after each spatial axis, in order."""
    if pad_type == "valid":
        return x
    if pad_type != "custom":
        raise KokoroNpuError(f"MIL's conv or pool with pad_type {pad_type} has no meaning in runtimes/mil.py yet")
    pairs = np.asarray(pad).reshape(-1, 2)
    return F.pad(x, [int(n) for pair in pairs[::-1] for n in pair], value=value)


def _max_pool(
    x: Tensor, kernel_sizes: Any, strides: Any, pad_type: str, pad: Any = (0, 0, 0, 0), ceil_mode: Any = False
) -> Tensor:
    padded = _custom_padding(x, pad_type, pad, float("-inf"))
    pool = F.max_pool2d if x.ndim == 4 else F.max_pool1d
    pooled: Tensor = pool(padded, _ints(kernel_sizes), _ints(strides), ceil_mode=bool(ceil_mode))
    return pooled


def _conv(
    x: Tensor,
    weight: Tensor,
    strides: Any,
    pad_type: str,
    dilations: Any,
    groups: Any,
    pad: Any = (0, 0, 0, 0),
    bias: Tensor | None = None,
) -> Tensor:
    padded = _custom_padding(x, pad_type, pad)
    convolve = F.conv2d if x.ndim == 4 else F.conv1d
    return convolve(padded, weight, bias, _ints(strides), 0, _ints(dilations), int(groups))


def _conv_transpose(
    x: Tensor,
    weight: Tensor,
    strides: Any,
    pad_type: str,
    dilations: Any,
    groups: Any,
    pad: Any = (0, 0, 0, 0),
    bias: Tensor | None = None,
    output_shape: Any = None,
) -> Tensor:
    transpose = F.conv_transpose2d if x.ndim == 4 else F.conv_transpose1d
    full = transpose(x, weight, bias, _ints(strides), 0, 0, int(groups), _ints(dilations))
    if pad_type == "valid":
        return full
    if pad_type != "custom":
        raise KokoroNpuError(
            f"the MIL op conv_transpose with pad_type {pad_type} has no meaning in runtimes/mil.py yet"
        )
    for axis, (before, after) in enumerate(np.asarray(pad).reshape(-1, 2), start=2):
        length = full.shape[axis] - int(before) - int(after)
        if output_shape is not None:
            length = int(output_shape[axis])
        full = full.narrow(axis, int(before), length)
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
        raise KokoroNpuError(f"MIL's pad with mode {mode} has no meaning in runtimes/mil.py yet")
    pairs = np.asarray(pad).reshape(-1, 2)
    return F.pad(x, [int(n) for pair in pairs[::-1] for n in pair], value=float(constant_val))


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
    "real_div": lambda x, y: _tensor(x) / _tensor(y),
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
    "squeeze": lambda x, axes: x.squeeze(dim=tuple(_ints(axes))),
    "tile": lambda x, reps: x.repeat(_ints(reps)),
    "concat": _concat,
    "split": _split,
    "pad": _pad,
    "slice_by_index": _slice_by_index,
    "slice_by_size": lambda x, begin, size: x[
        tuple(
            slice(first, None if count == -1 else first + count)
            for first, count in zip(_ints(begin), _ints(size), strict=True)
        )
    ],
}
