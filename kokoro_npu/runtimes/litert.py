"""LiteRT: torch modules to ``.tflite`` files, their int8 forms, and how they run.

Quirks, all kept here: the converter silently turns a transposed convolution with kernel 3, stride 2 and padding 1 into
a bilinear resize without its weights (7 dB), so such a module is refused before it is converted; the quantizer knows a
module only by how the converter names its ops, and passes over a name that no op has, so a name is made from the module
itself and looked up in the file; what the XNNPACK delegate took shows only after the interpreter has allocated its
tensors.
"""

import mmap
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import CALIBRATION, load_reference_set
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic
from kokoro_npu.geometry import Array
from kokoro_npu.host.steps import pad_to_bucket
from kokoro_npu.machine import THREADS
from kokoro_npu.model.decoder import Head
from kokoro_npu.runtimes.compare import DecoderCase, Judged, Runtime, compare, prefixed
from kokoro_npu.runtimes.extras import require
from kokoro_npu.runtimes.measure import Loader, Run, kinds

EXTRA = "litert"
TOOLS = ("litert-torch", "ai-edge-litert", "ai-edge-quantizer")


def convert(module: nn.Module, inputs: Mapping[str, Tensor], path: Path) -> None:
    """Convert a module to float32 LiteRT.

    Args:
        module: in eval mode.
        inputs: example inputs by name, in the order of ``forward``.
        path: the ``.tflite`` to write.

    Raises:
        KokoroNpuError: the extra is missing, LiteRT has no form of an op (named), or the module holds the
            transposed convolution that the converter gets wrong.
    """
    _refuse_resized_convolutions(module)
    require(EXTRA)
    import litert_torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the converter's remarks on its own dependencies
        try:
            model = litert_torch.convert(module, sample_kwargs=dict(inputs))
        except (NotImplementedError, RuntimeError) as error:
            op = re.search(r"aten[.:]+[\w.]+", str(error))
            if op is None:
                raise
            raise KokoroNpuError(f"LiteRT has no form of the op {op[0]}: write it otherwise") from error
    with atomic(path) as tmp:
        model.export(str(tmp))


def _refuse_resized_convolutions(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d)):
            sizes = {*zip(layer.kernel_size, layer.stride, layer.padding, strict=True)}
            if (3, 2, 1) in sizes:
                raise KokoroNpuError(
                    f"LiteRT's converter turns ConvTranspose {name} (kernel 3, stride 2, padding 1) into "
                    "RESIZE_BILINEAR without its weights: write it as two phases (model/blocks.py, TwoPhaseUpsample)"
                )


def scope(module: nn.Module, kind: type[nn.Module]) -> str:
    """How the converter names the ops of the one submodule of a class, such as ``package.Head_head``."""
    (name,) = (name for name, layer in module.named_modules() if type(layer) is kind)
    return f"{kind.__module__}.{kind.__qualname__}_{name.rpartition('.')[2]}"


def quantize_weights(source: Path, path: Path, kept: Sequence[str] = (), half: Sequence[str] = ()) -> None:
    """Write ``source`` with its weights as 8-bit integers, one scale a channel; the arithmetic stays in float32.

    Args:
        source: a float32 ``.tflite``.
        path: the file to write.
        kept: scopes whose weights stay float32.
        half: scopes whose weights become half precision instead.

    Raises:
        KokoroNpuError: the extra is missing, or a scope holds no op.
    """
    kept, half = _patterns(source, kept), _patterns(source, half)
    require(EXTRA)
    from ai_edge_quantizer import qtyping
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.recipe_manager import RecipeManager

    every_op = qtyping.TFLOperationName.ALL_SUPPORTED
    recipe = RecipeManager()
    recipe.add_weight_only_config(regex=".*", operation_name=every_op, num_bits=8)
    to_half = qtyping.OpQuantizationConfig(
        weight_tensor_config=qtyping.TensorQuantizationConfig(num_bits=16, dtype=qtyping.TensorDataType.FLOAT),
        compute_precision=qtyping.ComputePrecision.FLOAT,
    )
    for pattern in half:
        recipe.add_quantization_config(pattern, every_op, to_half, AlgorithmName.FLOAT_CASTING)
    _quantize(source, path, recipe, kept)


def quantize_convolutions(
    source: Path, path: Path, samples: Sequence[Mapping[str, Array]], kept: Sequence[str] = ()
) -> None:
    """Write ``source`` with convolutions in integers: 8-bit weights, 16-bit activations; all other ops stay float.

    Ranges are the extremes over the samples.

    Args:
        source: a float32 ``.tflite``.
        path: the file to write.
        samples: inputs by name, on which the float file is run to calibrate.
        kept: scopes that stay float.

    Raises:
        KokoroNpuError: the extra is missing, or a scope holds no op.
    """
    kept = _patterns(source, kept)
    require(EXTRA)
    from ai_edge_quantizer.calibrator import CalibrationMode, Calibrator
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.recipe_manager import RecipeManager
    from ai_edge_quantizer.utils.qsv_utils import min_max_update

    recipe = RecipeManager()
    for kind in (TFLOperationName.CONV_2D, TFLOperationName.CONV_2D_TRANSPOSE):
        recipe.add_static_config(regex=".*", operation_name=kind, activation_num_bits=16, weight_num_bits=8)
    calibrating = Calibrator(
        str(source),
        num_threads=THREADS,
        mode=CalibrationMode.CALIBRATION_PROFILER_BASED,  # the other mode keeps every activation in memory
        qsv_update_func=min_max_update,
    )
    signature, *_ = calibrating.get_signature_list()
    calibrating.calibrate({signature: list(samples)}, recipe)
    _quantize(source, path, recipe, kept, calibrating.get_model_qsvs())


def _patterns(source: Path, scopes: Sequence[str]) -> list[str]:
    """Patterns of the ops of scopes; a ``.tflite``, which stores names as they are, must have ops in each."""
    with open(source, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as names:
        for module in scopes:
            if names.find(module.encode()) < 0:
                raise KokoroNpuError(f"{source} has no op in {module}: LiteRT's converter names modules otherwise")
    return [f".*{re.escape(module)}.*" for module in scopes]


def _quantize(source: Path, path: Path, recipe: Any, kept: Sequence[str], ranges: Any = None) -> None:
    from ai_edge_quantizer import quantizer
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import TFLOperationName

    for pattern in kept:
        recipe.add_quantization_config(pattern, TFLOperationName.ALL_SUPPORTED, algorithm_key=AlgorithmName.NO_QUANTIZE)
    quantizing = quantizer.Quantizer(str(source))
    quantizing.load_quantization_recipe(recipe.get_quantization_recipe())
    with atomic(path) as tmp:
        quantizing.quantize(ranges, enable_progress_report=False).export_model(str(tmp), overwrite=True)
        # It comes executable. DVC notes that in dvc.lock, and then no experiment starts where the file is not cached.
        tmp.chmod(0o644)


def run_all(path: Path, threads: int) -> Callable[[Mapping[str, Array]], list[Array]]:
    """A file of any module as a function of inputs by name; 64-bit integers go in as the 32-bit ones of the file."""
    interpreter = _interpreter(path, threads)
    runner = interpreter.get_signature_runner()
    types = {name: details["dtype"] for name, details in runner.get_input_details().items()}

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        outputs = runner(**{name: value.astype(types[name]) for name, value in inputs.items()})
        return [outputs[f"output_{place}"] for place in range(len(outputs))]

    return run


def _interpreter(path: Path, threads: int) -> Any:
    require(EXTRA)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    interpreter.allocate_tensors()
    return interpreter


def _load(path: Path, threads: int) -> Run:
    run = run_all(path, threads)
    return lambda inputs: run(inputs)[0]


LOADER = Loader(_load, ("ai_edge_litert.interpreter",))
"""LiteRT's interpreter with XNNPACK, its default on CPUs."""


def inspect(path: Path) -> dict[str, Any]:
    """What a file holds and how much of it XNNPACK takes, flat.

    Returns:
        ``ops``, ``op_kinds``, ``ops_accelerated`` and ``partitions`` (delegated pieces).
    """
    # All of the file's ops, also those that a delegate replaces, and the delegates' own behind them.
    nodes = _interpreter(path, 1)._get_ops_details()
    ops = [node for node in nodes if node["op_name"] != "DELEGATE"]
    delegates = [node for node in nodes if node["op_name"] == "DELEGATE"]
    return {
        "ops": len(ops),
        "op_kinds": kinds(op["op_name"] for op in ops),
        "ops_accelerated": sum(_behind(delegate, ops) for delegate in delegates),
        "partitions": len(delegates),
    }


def _behind(delegate: Mapping[str, Any], ops: Sequence[Mapping[str, Any]]) -> int:
    """How many ops a delegate replaces: those between its inputs and its outputs. The ops are in their order."""
    given, wanted, count = set(delegate["inputs"]), set(delegate["outputs"]), 0
    for op in reversed(ops):
        if not wanted.isdisjoint(op["outputs"]):
            count += 1
            wanted |= set(op["inputs"]) - given
    return count


def _judge(files: Mapping[str, Path], case: DecoderCase) -> Judged:
    table, report = compare(files, LOADER, case)
    for precision, path in files.items():
        report |= prefixed(precision, inspect(path))
    return table, report


def _file(case: DecoderCase, directory: Path, precision: str) -> Path:
    return places.decoder(directory, case.bucket.frames, f"_{precision}.tflite")


def _export(case: DecoderCase, directory: Path) -> Judged:
    """Float32, and int8 weights but for the head: 8 bits there, in the inverse STFT above all, cost 11 dB."""
    files = {precision: _file(case, directory, precision) for precision in ("fp32", "int8")}
    convert(case.module, case.example, files["fp32"])
    quantize_weights(files["fp32"], files["int8"], [scope(case.module, Head)])
    return _judge(files, case)


def _export_w8a16(case: DecoderCase, directory: Path) -> Judged:
    """Integer convolutions, made of the float32 file that is there; the head stays float."""
    recorded = load_reference_set(places.REFERENCE_SET, CALIBRATION)
    samples = [pad_to_bucket(item.features, case.bucket) for item in recorded if item.frames <= case.bucket.frames]
    path = _file(case, directory, "w8a16")
    quantize_convolutions(_file(case, directory, "fp32"), path, samples, [scope(case.module, Head)])
    # One timed run: LiteRT has no fast kernels for these convolutions on a CPU.
    table, report = _judge({"w8a16": path}, replace(case, runs=1))
    return table, report | {"calibration_utterances": len(samples)}


RUNTIME = Runtime("litert", TOOLS, _export)
W8A16 = Runtime("litert", TOOLS, _export_w8a16, "w8a16")
"""The smallest bucket's decoder with integer convolutions, 8-bit weights and 16-bit activations."""
