"""What Android's NNAPI can carry of a decoder: ONNX Runtime's mobile usability checker, and what it does not look at.

The checker knows which operator types the NNAPI execution provider takes, and whether shapes are fixed; from that it
guesses the partitions. It sees no attribute, rank or element type: it counts a one-dimensional convolution as
supported although the provider takes two-dimensional ones only. `unseen` counts those.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from kokoro import KModel

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.evaluate.parity import evaluate, onnx_variant
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.reading import read_graph, read_model
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.calibrate import calibrate_decoder
from kokoro_npu.quantize.overrides import Override
from kokoro_npu.quantize.recipe import HEAD, Calibration, Recipe

PRECISION = "w8a8"

_IMAGE_RANK = 4
"""Rank of a two-dimensional convolution's tensors, and the highest that NNAPI has."""

_SHORT_WINDOWS = (5, 12, 25)


def write_decoders(
    kmodel: KModel, frames: Sequence[int], calibration: Sequence[ReferenceUtterance], opset: int, out_dir: Path
) -> dict[int, Path]:
    """Write an INT8 QDQ decoder for each bucket, with one weight file for all; the head stays float.

    Args:
        kmodel: upstream's model, weight norm removed.
        frames: buckets; the smallest is calibrated on, because time and memory grow with them.
        calibration: utterances that set the ranges.
        opset: of the float export.
        out_dir: gets the decoders, their weights and their encodings.

    Returns:
        Frames to file.
    """
    buckets = map(Bucket, sorted(frames))
    models = {bucket.frames: export_decoder(kmodel, bucket, opset, bucket.fewest_rows) for bucket in buckets}
    # Ranges of its own: the build's are widened for 16-bit activations, where a bit of headroom costs nothing.
    ranges = Calibration((min(models),), _SHORT_WINDOWS)
    head = Override(f"{HEAD}*", "an 8-bit head costs 6 dB and holds next to no weights", float=True)
    recipe = Recipe(PRECISION, 8, 8, per_channel=True, calibration=ranges, overrides=(head,))
    encodings = out_dir / places.ENCODINGS
    calibrate_decoder(lambda bucket: models[bucket.frames], calibration, recipe, encodings)
    pack: Pack | None = None
    paths = {size: places.decoder(out_dir, size) for size in models}
    for size, path in paths.items():
        quantized = quantize_decoder(models[size], recipe, encodings)
        pack = pack or Pack.write(quantized, out_dir / places.SHARED_WEIGHTS)
        pack.save(quantized, path)
    return paths


def report(path: Path, bucket: Bucket, utterances: Sequence[ReferenceUtterance]) -> dict[str, Any]:
    """`usability`, `unseen`, and how a decoder sounds on ONNX Runtime CPU on utterances that fit, flat."""
    heard = evaluate(utterances, bucket, iter([(PRECISION, onnx_variant(path))]))
    return {
        "frames": bucket.frames,
        "utterances": len(heard),
        "snr_db_min": round(float(heard["snr_db"].min()), 3),
        "logmel_mae_max": round(float(heard["logmel_mae"].max()), 4),
        **usability(path),
        **unseen(path),
    }


def usability(path: Path | str) -> dict[str, Any]:
    """Run the checker on a model, as ``python -m onnxruntime.tools.check_onnx_model_mobile_usability`` does.

    The model is optimized to the basic level first, as it would be on its way to a phone.

    Returns:
        Flat: ``nodes``, ``nodes_supported``, ``partitions``, ``partition_nodes_max``, ``nodes_unsupported_by_op``,
        ``nodes_unsupported_by_shape``, ``unsupported_ops`` (one text), and ``verdict`` (YES, MAYBE or NO), which says
        whether the checker would try NNAPI.

    Raises:
        KokoroNpuError: no ONNX model, or one whose weights are missing.
    """
    # Imported here: only this needs onnxruntime's tools.
    from onnxruntime.tools.mobile_helpers.usability_checker import check_nnapi_partitions
    from onnxruntime.tools.onnx_model_utils import ModelProtoWithShapeInfo, optimize_model

    with tempfile.TemporaryDirectory(prefix="kokoro-nnapi-") as directory:
        whole, optimized = Path(directory) / "whole.onnx", Path(directory) / "optimized.onnx"
        onnx.save(read_model(path), str(whole))
        optimize_model(whole, optimized)
        model = ModelProtoWithShapeInfo(optimized).model_with_shape_info
        info = check_nnapi_partitions(model, require_fixed_input_sizes=True)
    return {
        "nodes": info.num_nodes,
        "nodes_supported": info.num_supported_nodes,
        "partitions": info.num_partitions,
        "partition_nodes_max": max((len(group) for group in info.supported_groups), default=0),
        "nodes_unsupported_by_op": info.nodes_unsupported_due_to_op,
        "nodes_unsupported_by_shape": info.nodes_unsupported_due_to_dynamic_input,
        "unsupported_ops": " ".join(sorted(op.removeprefix("ai.onnx:") for op in info.unsupported_ops)),
        "verdict": info.suitability().name,
    }


def unseen(path: Path | str) -> dict[str, int]:
    """What the checker does not look at, counted from the shapes of a static model.

    Returns:
        ``convolutions``, ``convolutions_not_2d`` (the provider refuses them), ``tensors_above_rank_4`` (NNAPI has
        none) and ``convolutions_float`` (that no quantized input reaches: on an NPU of 8 bits they fall back).
    """
    model = onnx.shape_inference.infer_shapes(read_graph(path))
    graph = model.graph
    values = [*graph.input, *graph.value_info, *graph.output]
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    producers = {name: node.op_type for node in graph.node for name in node.output}
    convolutions = [node for node in graph.node if node.op_type in ("Conv", "ConvTranspose")]
    return {
        "convolutions": len(convolutions),
        "convolutions_not_2d": sum(ranks.get(node.output[0]) != _IMAGE_RANK for node in convolutions),
        "convolutions_float": sum(producers.get(node.input[0]) != "DequantizeLinear" for node in convolutions),
        "tensors_above_rank_4": sum(rank > _IMAGE_RANK for rank in ranks.values()),
    }
