"""The whole model in the five precisions that kokoro-onnx-export publishes.

That tool narrows one dynamic graph; here a variant is the two CPU models and the static decoders, whose weights all
buckets share. The decoder comes in three kinds: ``stored``, whose weights are narrow and whose arithmetic is float, so
that any CPU runs it as fast as float; ``static``, whose convolutions compute in 8 bits, but for `_FLOAT_STATIC`; and
``npu``, the build's own quantized decoder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.files import write_onnx
from kokoro_npu.graphs.reading import read_model
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.quantize.calibrate import calibrate, calibration_samples
from kokoro_npu.quantize.cpu import CpuRecipe, Feeds, quantize_cpu, static_products
from kokoro_npu.quantize.recipe import HEAD, Calibration
from kokoro_npu.quantize.storage import FP16, INT8, narrow
from kokoro_npu.variants.whole_model import SplitModel

STORED, STATIC, NPU = "stored", "static", "npu"

_ALIGNMENT = 64
"""Of stored weights: they are unpacked when the model is loaded, so nothing maps them by pages."""

_FLOAT_STATIC = ("/generator/resblocks", HEAD)
"""What kokoro-onnx-export leaves floating in uint8: the generator's residual blocks, and the head behind them."""


@dataclass(frozen=True)
class VariantRecipe:
    """One whole model.

    Attributes:
        published_mib: size of kokoro-onnx-export's model of that name, in MiB (its "MB"; its own tables are in KiB).
        cpu: how the CPU models are narrowed, and how a stored or static decoder stores what it leaves floating.
        decoder: its kind.
        cpu_ops: in words, how the CPU models compute.
    """

    published_mib: float
    cpu: CpuRecipe
    decoder: str
    cpu_ops: str


_STATIC_OPS = "static uint8 products and convolutions"

VARIANTS = {
    "q8f16": VariantRecipe(82.39, CpuRecipe(store=INT8, rest=FP16), STORED, "float, int8 stored"),
    "quantized": VariantRecipe(
        88.21, CpuRecipe(dynamic_ops=("LSTM", "MatMul"), store=INT8), NPU, "dynamic int8 products and LSTMs"
    ),
    "uint8f16": VariantRecipe(107.64, CpuRecipe(static=True, store=FP16, rest=FP16), STATIC, _STATIC_OPS),
    "uint8": VariantRecipe(164.15, CpuRecipe(static=True), STATIC, _STATIC_OPS),
    "fp16": VariantRecipe(156.17, CpuRecipe(store=FP16, rest=FP16), STORED, "float, fp16 stored"),
}
"""By kokoro-onnx-export's names, in its order."""


def variant(name: str) -> VariantRecipe:
    """A variant by name.

    Raises:
        KokoroNpuError: there is none of that name.
    """
    if name not in VARIANTS:
        raise KokoroNpuError(f"variant {name!r} does not exist; {did_you_mean(name, VARIANTS)}")
    return VARIANTS[name]


def write_variant(
    recipe: VariantRecipe,
    model: SplitModel,
    quantized: Path,
    samples: Mapping[str, Sequence[Feeds]],
    encodings: Path,
    out_dir: Path,
) -> SplitModel:
    """Write a variant's files.

    Args:
        recipe: which.
        model: the float model.
        quantized: directory of the build's quantized decoders, for the decoder kind ``npu``.
        samples: file name of a CPU model to inputs for its static calibration.
        encodings: of `static_decoder_encodings`, for the decoder kind ``static``.
        out_dir: gets the CPU models, the decoders and their one weight file.
    """
    for name in (places.DURATION_MODEL, places.PROSODY_MODEL):
        narrowed = quantize_cpu(read_model(model.cpu / name), recipe.cpu, samples.get(name, ()))
        write_onnx(out_dir / name, narrowed)
    pack: Pack | None = None
    for frames in sorted(model.frames):
        source = quantized if recipe.decoder == NPU else model.decoders
        decoder = read_model(places.decoder(source, frames))
        if recipe.decoder != NPU:
            decoder = _narrowed(decoder, recipe, encodings)
        # The weights are the same in every bucket; a pack refuses any that are not.
        pack = pack or Pack.write(decoder, out_dir / places.SHARED_WEIGHTS, alignment=_ALIGNMENT)
        pack.save(decoder, places.decoder(out_dir, frames))
    return SplitModel(out_dir, out_dir, model.frames)


def _narrowed(decoder: ModelProto, recipe: VariantRecipe, encodings: Path) -> ModelProto:
    if recipe.decoder == STATIC:
        kept = [node.name for node in decoder.graph.node if node.name.startswith(_FLOAT_STATIC)]
        decoder = static_products(decoder, kept, encodings)
        del decoder.metadata_props[:]
    narrow(decoder, recipe.cpu.store, recipe.cpu.rest)
    return decoder


def static_decoder_encodings(model: SplitModel, utterances: Sequence[ReferenceUtterance], encodings: Path) -> None:
    """Measure the 8-bit ranges of the float decoders' activations on the utterances that fit."""
    calibration = Calibration(tuple(model.frames))
    batches = (
        (read_model(places.decoder(model.decoders, bucket.frames)), inputs)
        for bucket, inputs in calibration_samples(utterances, calibration).items()
    )
    calibrate(batches, calibration, encodings)
