"""Torch modules to ONNX files: traced, simplified, static where they have to be."""

import io
import warnings
from collections.abc import Mapping, Sequence

import onnx
import onnxsim
import torch
from kokoro import KModel
from torch import Tensor, nn
from tqdm import tqdm

from kokoro_npu.geometry import PROSODY_DIM, SAMPLES_PER_FRAME, STYLE_DIM, VOICE_DIM, Bucket
from kokoro_npu.model import duration, prosody
from kokoro_npu.model.decoder import StaticDecoder

DEFAULT_OPSET = 17
_ANY_LENGTH = 16
"""Of the axes that stay dynamic."""


def export_module(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    opset: int = DEFAULT_OPSET,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
) -> onnx.ModelProto:
    """Trace a module and export it to ONNX.

    The TorchScript exporter is used on purpose: it traces, so that no control flow enters the graph; it exports LSTMs
    with sequence lengths, and names nodes by module path, which makes tensor names the same in every bucket.

    Args:
        module: the module, in eval mode.
        inputs: example inputs by ONNX name, in the order of ``forward``.
        outputs: ONNX output names.
        opset: ONNX opset of the file.
        dynamic_axes: as for ``torch.onnx.export``; none means that every dimension is an integer.
    """
    buffer = io.BytesIO()
    with torch.inference_mode(), warnings.catch_warnings():
        # Deprecation and tracer warnings of torch itself; what they warn of is checked on the exported graph.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            buffer,  # type: ignore[arg-type]  # without dynamo a stream is taken too
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=opset,
            dynamic_axes={name: dict(axes) for name, axes in (dynamic_axes or {}).items()},
            dynamo=False,
        )
    return onnx.load_from_string(buffer.getvalue())


def export_duration(model: KModel, opset: int = DEFAULT_OPSET) -> onnx.ModelProto:
    """Export the duration model, dynamic in its tokens (at most 512); see :class:`duration.DurationModel`."""
    inputs = {
        "tokens": torch.ones(1, _ANY_LENGTH, dtype=torch.int64),
        "token_length": torch.tensor([_ANY_LENGTH]),
        "voice_embedding": torch.zeros(1, VOICE_DIM),
        "speed": torch.ones(1),
    }
    module = duration.DurationModel(model)
    exported = export_module(module, inputs, duration.OUTPUT_NAMES, opset, duration.DYNAMIC_AXES)
    return _finish(exported, "kokoro_duration")


def export_prosody(model: KModel, opset: int = DEFAULT_OPSET) -> onnx.ModelProto:
    """Export the prosody model, dynamic in its frames; see :class:`prosody.ProsodyModel`."""
    inputs = {
        "aligned_prosody": torch.zeros(1, PROSODY_DIM, _ANY_LENGTH),
        "prosody_style": torch.zeros(1, STYLE_DIM),
        "source_noise": torch.zeros(1, 1, SAMPLES_PER_FRAME * _ANY_LENGTH),
    }
    exported = export_module(prosody.ProsodyModel(model), inputs, prosody.OUTPUT_NAMES, opset, prosody.DYNAMIC_AXES)
    return _finish(exported, "kokoro_prosody")


def export_decoder(
    model: KModel, bucket: Bucket, opset: int = DEFAULT_OPSET, rows: int | None = None
) -> onnx.ModelProto:
    """Export the static decoder of one bucket and simplify it; weights stay inside the returned model.

    Args:
        model: upstream's model, weight norm removed.
        bucket: the static size.
        opset: ONNX opset, 17 or newer.
        rows: of time folding; see :class:`StaticDecoder`.
    """
    module = StaticDecoder(model.decoder, bucket, rows)
    inputs = {name: torch.zeros(shape) for name, shape in bucket.input_shapes.items()}
    name = f"kokoro_decoder_{bucket.frames}"
    with tqdm(total=2, desc=f"export {name}", unit="step") as progress:
        progress.set_postfix_str("trace")  # runs the decoder once
        exported = export_module(module, inputs, list(bucket.output_shapes), opset)
        progress.update()
        progress.set_postfix_str("simplify")
        finished = _finish(exported, name)
        _name_by_scope(finished)
        progress.update()
    return finished


def _finish(exported: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Simplify, store equal initializers once, and leave out what would change the bytes but not the graph."""
    model, _ = onnxsim.simplify(exported)
    _merge_initializers(model)
    model.graph.name = name
    model.doc_string = ""
    del model.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    return model


def _name_by_scope(model: onnx.ModelProto) -> None:
    """Put what the simplifier has made of several ops into the module that reads it.

    It numbers such ops without regard to modules, and recipes go by names: a piece of the head would not float with it.
    """
    readers = {name: node for node in reversed(model.graph.node) for name in node.input}
    # Backwards, so that a reader has its final name.
    for node in reversed(model.graph.node):
        if not node.name.startswith("/") and node.output[0] in readers:
            scope = readers[node.output[0]].name.rpartition("/")[0]
            node.name = f"{scope.removesuffix('/merged')}/merged/{node.name}"


def _merge_initializers(model: onnx.ModelProto) -> None:
    """Keep one of equal initializers: the exporter stores ALBERT's shared layer twelve times, transposed."""
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    renamed: dict[str, str] = {}
    kept = []
    for tensor in model.graph.initializer:
        key = (tensor.data_type, tuple(tensor.dims), onnx.numpy_helper.to_array(tensor).tobytes())
        renamed[tensor.name] = first.setdefault(key, tensor.name)
        if renamed[tensor.name] == tensor.name:
            kept.append(tensor)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
