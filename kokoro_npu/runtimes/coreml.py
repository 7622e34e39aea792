"""CoreML: torch modules to ML programs, and what such a program computes.

Quirks, all kept here: CoreML predicts only on macOS, so its programs are run by :mod:`kokoro_npu.runtimes.mil` from the
saved package; a package's manifest and metadata hold random identifiers and the date, which are made constant; an op
is named in the middle of coremltools' message; a half-precision program takes and gives half precision; traced lengths
are arrays of one element, on which coremltools calls ``int``, and NumPy 2.4 refuses that; an instance norm takes only
constants as scale and shift, so those of a style become a product and a sum behind it; hardware may keep the sum behind
a mean in half precision, so a mean over many columns becomes one of means.
"""

import json
import math
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from kokoro_npu.build import places
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate.parity import evaluate
from kokoro_npu.model.torch_cpu import set_up_torch
from kokoro_npu.runtimes.compare import DecoderCase, Judged, Runtime, prefixed
from kokoro_npu.runtimes.extras import require
from kokoro_npu.runtimes.measure import kinds
from kokoro_npu.runtimes.mil import Interpreter, variables

EXTRA = "coreml"

NEURAL_ENGINE_WIDTH = 16_384
"""The longest dimension that Apple's Neural Engine is reported to take (public reports; Apple documents none)."""

_COLUMNS_OF_ONE_MEAN = 256
"""A mean over more columns is taken in two steps: 14,408 columns, those of 120 frames, came to a sum of 79,970."""

_DATE = "com.github.apple.coremltools.conversion_date"


def convert(module: nn.Module, inputs: Mapping[str, Tensor], path: Path, precision: str) -> None:
    """Convert a module to an ML program for iOS 17 or macOS 14, static in every dimension.

    Args:
        module: in eval mode.
        inputs: example inputs by name, in the order of ``forward``; its one output is named ``audio``.
        path: the ``.mlpackage`` to write, a directory; one that is there is replaced.
        precision: ``fp32`` or ``fp16``, of the program's weights and arithmetic.

    Raises:
        KokoroNpuError: the extra is missing, or CoreML has no form of an op (named).
    """
    require(EXTRA)
    import coremltools as ct

    _adapt_converter()
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # coremltools' remarks on versions of numpy and torch
        traced = torch.jit.trace(module, tuple(inputs.values()), check_trace=False)
        try:
            model = ct.convert(
                traced,
                convert_to="mlprogram",
                inputs=[ct.TensorType(name=name, shape=tuple(value.shape)) for name, value in inputs.items()],
                outputs=[ct.TensorType(name="audio")],
                minimum_deployment_target=ct.target.iOS17,
                compute_precision=ct.precision.FLOAT16 if precision == "fp16" else ct.precision.FLOAT32,
                skip_model_load=True,
            )
        except NotImplementedError as error:
            op = re.search(r"op '([^']+)'", str(error))
            raise KokoroNpuError(
                f"CoreML has no form of the op {op[1] if op else error}: write it otherwise"
            ) from error
    del model.user_defined_metadata[_DATE]
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    model.save(str(part))
    _constant_manifest(part / "Manifest.json")
    shutil.rmtree(path, ignore_errors=True)
    os.replace(part, path)


def _adapt_converter() -> None:
    """Replace some of coremltools' conversions of torch ops: lengths, norms with a computed scale, long means."""
    from coremltools.converters.mil import Builder, register_torch_op
    from coremltools.converters.mil.frontend.torch import ops

    def _int(context: Any, node: Any) -> None:
        length = np.asarray(context[node.inputs[0]].val).item()
        context.add(Builder.const(val=int(length), name=node.name), node.name)

    def instance_norm(context: Any, node: Any) -> None:
        x, scale, shift = (context[name] for name in node.inputs[:3])
        x = Builder.instance_norm(x=x, epsilon=context[node.inputs[7]])
        by_channel = [1, x.shape[1]] + [1] * (len(x.shape) - 2)
        x = Builder.mul(x=x, y=Builder.reshape(x=scale, shape=by_channel))
        context.add(Builder.add(x=x, y=Builder.reshape(x=shift, shape=by_channel)), node.name)

    def mean(context: Any, node: Any) -> None:
        pieces = 1
        if len(node.inputs) > 2:  # without axes torch gives two arguments, the second of which is a type
            x, axes, keep = (context[name] for name in node.inputs[:3])
            pieces = _pieces(x.shape, axes.val, bool(keep.val))
        if pieces == 1:
            ops.mean(context, node)
            return
        x = Builder.reshape(x=x, shape=[*x.shape[:2], pieces, -1])
        x = Builder.reduce_mean(x=x, axes=[3], keep_dims=True)
        context.add(Builder.reduce_mean(x=x, axes=[2], keep_dims=True, name=node.name), node.name)

    register_torch_op(_int, torch_alias=["int"], override=True)
    register_torch_op(instance_norm, override=True)
    register_torch_op(mean, override=True)


def _pieces(shape: Sequence[int], axes: Any, keep: bool) -> int:
    """How many equal pieces a mean over time, [1, C, R, W] to [1, C, 1, 1], is taken in; 1 for all other means.

    As nearly as the columns' divisors allow, there are as many pieces as columns in a piece. The tensor keeps its four
    dimensions, and in memory the pieces lie one after the other.
    """
    time = sorted(int(axis) % len(shape) for axis in np.atleast_1d(axes))
    over_time = keep and len(shape) == 4 and (time == [2, 3] or (time == [3] and shape[2] == 1))
    columns = shape[2] * shape[3] if over_time else 1
    if columns <= _COLUMNS_OF_ONE_MEAN:
        return 1
    return max(n for n in range(1, math.isqrt(columns) + 1) if columns % n == 0)


def _constant_manifest(path: Path) -> None:
    """Replace the manifest's random identifiers by ones that follow from what they identify."""
    manifest = json.loads(path.read_text(encoding="utf-8"))
    entries = manifest["itemInfoEntries"]
    names = {old: str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])).upper() for old, item in entries.items()}
    manifest["itemInfoEntries"] = {names[old]: entries[old] for old in sorted(entries, key=names.__getitem__)}
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    # In the layout in which coremltools writes it again whenever it reads a package.
    path.write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n", encoding="utf-8")


class Program(Interpreter):
    """A saved package's program: of a decoder, inputs by name to audio [1, 600 T].

    Args:
        path: the ``.mlpackage``.
    """

    def __init__(self, path: Path) -> None:
        require(EXTRA)
        from coremltools.converters.mil.frontend.milproto.load import load
        from coremltools.models.utils import load_spec

        spec = load_spec(str(path))
        weights = path / "Data" / "com.apple.CoreML" / "weights"
        program = load(spec, specification_version=spec.specificationVersion, file_weights_dir=str(weights))
        super().__init__(program.functions["main"])
        self.path = path

    def inspect(self) -> dict[str, Any]:
        """What the program is made of, flat.

        Returns:
            ``bytes`` of the package, ``ops`` (constants left out), ``op_kinds``, ``longest_dim`` of any tensor, and
            ``ops_within_ane_width``: ops all of whose tensors stay within the length that the Neural Engine is
            reported to take. Where an op really runs, only macOS can tell.
        """
        longest = [max(n for var in [*op.outputs, *variables(op)] for n in [1, *var.shape]) for op in self.ops]
        return {
            "bytes": sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()),
            "ops": len(self.ops),
            "op_kinds": kinds(op.op_type for op in self.ops),
            "longest_dim": max(longest),
            "ops_within_ane_width": sum(n <= NEURAL_ENGINE_WIDTH for n in longest),
        }


def _export(case: DecoderCase, directory: Path) -> Judged:
    """Both precisions, each run op by op on every utterance."""
    set_up_torch()
    tables = []
    report: dict[str, Any] = {}
    for precision in ("fp32", "fp16"):
        path = places.decoder(directory, case.bucket.frames, f"_{precision}.mlpackage")
        convert(case.module, case.example, path, precision)
        program = Program(path)
        tables.append(evaluate(case.utterances, case.bucket, iter([(precision, program)])))
        extremes = {"overflows_max": program.overflows, "sum_max": round(program.sum_max, 3)}
        report |= prefixed(precision, program.inspect() | extremes)
    return pd.concat(tables, ignore_index=True), report


RUNTIME = Runtime("coreml", ("coremltools",), _export)
