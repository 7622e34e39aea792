"""Any torch module to ONNX: traced, simplified, with the same bytes each time."""

import io
import warnings
from collections.abc import Mapping, Sequence

import onnx
import onnxsim
import torch
from torch import Tensor, nn

DEFAULT_OPSET = 17


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


def finish(exported: onnx.ModelProto, name: str) -> onnx.ModelProto:
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
