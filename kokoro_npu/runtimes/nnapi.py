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
from onnx import ModelProto, TensorProto
from tqdm import tqdm

from kokoro_npu.audio import metrics
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate.parity import onnx_variant
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.reading import all_nodes, constants, read_graph, read_model
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.host.steps import pad_to_bucket, trim
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.static8 import HEAD, quantize_static8, static_encodings, static_recipe

_IMAGE_RANK = 4
"""Rank of a two-dimensional convolution's tensors, and the highest that NNAPI has."""

_SHORT_WINDOWS = (5, 12, 25)
_CALIBRATION_BUCKETS = 1
"""Of the buckets, so many of the smallest are calibrated on: time and memory grow with them."""

_WIDE_INTEGERS = (TensorProto.INT16, TensorProto.UINT16)


def write_decoders(
    kmodel: KModel, frames: Sequence[int], calibration: Sequence[ReferenceUtterance], opset: int, out_dir: Path
) -> dict[int, Path]:
    """Write an INT8 QDQ decoder for each bucket, with one weight file for all; the head stays float, as seed 1 advises.

    Args:
        kmodel: upstream's model, weight norm removed.
        frames: buckets.
        calibration: utterances that set the ranges.
        opset: of the float export.
        out_dir: gets ``kokoro_decoder_<frames>.onnx``, ``kokoro_decoder.weights`` and ``encodings.json``.

    Returns:
        Frames to file.
    """
    buckets = [Bucket(size) for size in sorted(frames)]
    models = {bucket.frames: export_decoder(kmodel, bucket, opset, bucket.fewest_rows) for bucket in buckets}
    recipe = static_recipe(list(models)[:_CALIBRATION_BUCKETS], (HEAD,), _SHORT_WINDOWS)
    static_encodings(models, calibration, recipe, out_dir / "encodings.json")
    pack: Pack | None = None
    paths = {size: out_dir / f"kokoro_decoder_{size}.onnx" for size in models}
    for size, path in paths.items():
        quantized = quantize_static8(models[size], recipe, out_dir / "encodings.json")
        pack = pack or Pack.write(quantized, out_dir / "kokoro_decoder.weights")
        pack.save(quantized, path)
    return paths


def report(path: Path, bucket: Bucket, evaluation: Sequence[ReferenceUtterance]) -> dict[str, Any]:
    """`usability`, `unseen`, and how a decoder sounds on ONNX Runtime CPU, flat.

    The figures of sound are None where no utterance fits the bucket.
    """
    run = onnx_variant(path)
    fitting = [item for item in evaluation if item.frames <= bucket.frames]
    heard = [
        (item.reference, trim(run(pad_to_bucket(item.features, bucket)), item.frames))
        for item in tqdm(fitting, desc=f"nnapi {bucket.frames}", unit="utterance")
    ]
    return {
        "frames": bucket.frames,
        "utterances": len(heard),
        "snr_db_min": round(min(metrics.snr_db(*pair) for pair in heard), 3) if heard else None,
        "logmel_mae_max": round(max(metrics.logmel_mae(*pair) for pair in heard), 4) if heard else None,
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
        KokoroNpuError: no ONNX model, or one whose shapes cannot be inferred.
    """
    # Imported here: only this needs onnxruntime's tools.
    from onnxruntime.tools.mobile_helpers.usability_checker import check_nnapi_partitions
    from onnxruntime.tools.onnx_model_utils import ModelProtoWithShapeInfo, optimize_model

    read_graph(path)
    with tempfile.TemporaryDirectory(prefix="kokoro-nnapi-") as directory:
        whole, optimized = Path(directory) / "whole.onnx", Path(directory) / "optimized.onnx"
        onnx.save(read_model(path), str(whole))
        optimize_model(whole, optimized)
        model = ModelProtoWithShapeInfo(optimized).model_with_shape_info
        try:
            info = check_nnapi_partitions(model, require_fixed_input_sizes=True)
        except ValueError as error:
            raise KokoroNpuError(f"{path}: {error}") from None
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
    """What the checker does not look at, counted from the shapes and types of a static model.

    Returns:
        ``convolutions``, ``convolutions_not_2d`` (the provider refuses them), ``tensors_above_rank_4`` (NNAPI has
        none), ``tensors_of_16_bit_integers`` (its quantized types have 8) and ``convolutions_float`` (that no
        quantized input reaches: on an NPU of 8 bits they fall back).
    """
    model: ModelProto = onnx.shape_inference.infer_shapes(read_graph(path))
    graph = model.graph
    values = [*graph.input, *graph.value_info, *graph.output]
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    producers = {name: node.op_type for _, node in all_nodes(model) for name in node.output}
    convolutions = [(name, node) for name, node in all_nodes(model) if node.op_type in ("Conv", "ConvTranspose")]
    weight_ranks: dict[str, int] = {}
    for constant in constants(model):
        for name, _, index in constant.consumers:
            if index == 1:  # the weight, or the scale and zero point that make it
                weight_ranks[name] = max(weight_ranks.get(name, 0), len(constant.tensor.dims))
    return {
        "convolutions": len(convolutions),
        "convolutions_not_2d": sum(weight_ranks.get(name, 0) != _IMAGE_RANK for name, _ in convolutions),
        "convolutions_float": sum(producers.get(node.input[0]) != "DequantizeLinear" for _, node in convolutions),
        "tensors_above_rank_4": sum(rank > _IMAGE_RANK for rank in ranks.values()),
        # By the type of the zero point: Microsoft's own Q/DQ operators leave no other trace of it.
        "tensors_of_16_bit_integers": sum(
            types.get(node.input[2]) in _WIDE_INTEGERS
            for _, node in all_nodes(model)
            if node.op_type == "QuantizeLinear" and len(node.input) > 2
        ),
    }
