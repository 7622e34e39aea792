"""The whole model in the five precisions that seed 3 (kokoro-onnx-export) publishes.

Seed 3 narrows one dynamic graph; here a variant is the two CPU models and the static decoders, whose weights all
buckets share. The decoder comes in two kinds: ``stored``, which any CPU runs as fast as float, and quantized for the
NPU (QDQ), whose integers need the range of every activation as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_onnx
from kokoro_npu.graphs.reading import read_model
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.quantize.cpu import CpuRecipe, Feeds, quantize_cpu, static_products
from kokoro_npu.quantize.static8 import HEAD, static_encodings, static_recipe
from kokoro_npu.quantize.storage import FP16, INT8, narrow, widths_of

DURATION, PROSODY = "kokoro_duration", "kokoro_prosody"
WEIGHTS = "kokoro_decoder.weights"

STORED, NPU, STATIC = "stored", "npu", "static"

_ALIGNMENT = 64
"""Of stored weights: they are unpacked when the model is loaded, so nothing maps them by pages."""

_CALIBRATION_FRAMES = 400
"""Longer buckets take minutes and gigabytes to calibrate."""

_FLOAT_STATIC = ("/generator/resblocks", HEAD)
"""What seed 3 leaves floating in uint8: the residual blocks of the generator, and the head behind them."""


@dataclass(frozen=True)
class VariantRecipe:
    """One whole model.

    Attributes:
        name: as seed 3 has it.
        seed3_mib: size of seed 3's model of that name, in MiB (its "MB"; its own tables are in KiB).
        duration: of the duration model.
        prosody: of the prosody model.
        decoder: ``stored`` (weights narrow, arithmetic float), ``npu`` (the build's own quantized decoder) or
            ``static`` (convolutions in 8 bits but for `_FLOAT_STATIC`, the rest float).
        decoder_store: width of the decoder's floating matrices: int8, fp16 or empty.
        rest: fp16 or empty: how all other floats of the decoder are stored.
        cpu_ops: in words, how the CPU models compute.
    """

    name: str
    seed3_mib: float
    duration: CpuRecipe
    prosody: CpuRecipe
    decoder: str
    decoder_store: str
    rest: str
    cpu_ops: str


def _both(recipe: CpuRecipe) -> dict[str, CpuRecipe]:
    return {"duration": recipe, "prosody": recipe}


VARIANTS: dict[str, VariantRecipe] = {
    variant.name: variant
    for variant in (
        VariantRecipe(
            "q8f16", 82.39, **_both(CpuRecipe(store=INT8, rest=FP16)),
            decoder=STORED, decoder_store=INT8, rest=FP16, cpu_ops="float, int8 stored",
        ),
        VariantRecipe(
            "quantized", 88.21, **_both(CpuRecipe(dynamic_ops=("LSTM", "MatMul"), store=INT8)),
            decoder=NPU, decoder_store="", rest="", cpu_ops="dynamic int8 products and LSTMs",
        ),
        VariantRecipe(
            "uint8f16", 107.64, **_both(CpuRecipe(static=True, store=FP16, rest=FP16)),
            decoder=STATIC, decoder_store=FP16, rest=FP16, cpu_ops="static uint8 products and convolutions",
        ),
        VariantRecipe(
            "uint8", 164.15, **_both(CpuRecipe(static=True)),
            decoder=STATIC, decoder_store="", rest="", cpu_ops="static uint8 products and convolutions",
        ),
        VariantRecipe(
            "fp16", 156.17, **_both(CpuRecipe(store=FP16, rest=FP16)),
            decoder=STORED, decoder_store=FP16, rest=FP16, cpu_ops="float, fp16 stored",
        ),
    )
}  # fmt: skip
"""By name, in seed 3's order."""


@dataclass(frozen=True)
class Source:
    """Where the build's models lie.

    Attributes:
        cpu: directory of the CPU models.
        decoder: directory of the float decoders.
        quantized: directory of the NPU's decoders.
    """

    cpu: Path
    decoder: Path
    quantized: Path


def variant(name: str) -> VariantRecipe:
    """A variant by name.

    Raises:
        KokoroNpuError: there is none of that name.
    """
    if name not in VARIANTS:
        raise KokoroNpuError(f"variant {name!r} does not exist; there are {', '.join(VARIANTS)}")
    return VARIANTS[name]


def write_variant(
    recipe: VariantRecipe,
    source: Source,
    frames: Sequence[int],
    samples: Mapping[str, Sequence[Feeds]],
    encodings_path: Path,
    out_dir: Path,
) -> None:
    """Write a variant's files.

    Args:
        recipe: which.
        source: the float models, and for the decoder kinds ``npu`` and ``static`` the quantized ones.
        frames: decoder buckets.
        samples: model (``kokoro_duration``, ``kokoro_prosody``) to inputs for static calibration.
        encodings_path: of `static_decoder_encodings`, for the decoder kind ``static``.
        out_dir: gets the two CPU models, ``kokoro_decoder_<frames>.onnx`` and their one weight file.
    """
    for name, cpu in ((DURATION, recipe.duration), (PROSODY, recipe.prosody)):
        model = quantize_cpu(read_model(source.cpu / f"{name}.onnx"), cpu, samples.get(name, ()))
        write_onnx(out_dir / f"{name}.onnx", model)
    pack: Pack | None = None
    for size in sorted(frames):
        name = f"kokoro_decoder_{size}.onnx"
        model = _decoder(recipe, source, name, encodings_path)
        # The weights are the same in every bucket; a pack refuses any that are not.
        pack = pack or Pack.write(model, out_dir / WEIGHTS, alignment=_ALIGNMENT)
        pack.save(model, out_dir / name)


def _decoder(recipe: VariantRecipe, source: Source, name: str, encodings_path: Path) -> ModelProto:
    if recipe.decoder == NPU:
        return read_model(source.quantized / name)
    model = read_model(source.decoder / name)
    if recipe.decoder == STATIC:
        kept = [node.name for node in model.graph.node if node.name.startswith(_FLOAT_STATIC)]
        model = static_products(model, kept, encodings_path=encodings_path, per_channel=True)
        del model.metadata_props[:]
    if recipe.decoder_store:
        narrow(model, widths_of(model, recipe.decoder_store), recipe.rest)
    return model


def static_decoder_encodings(
    source: Source, frames: Sequence[int], recorded: Sequence[ReferenceUtterance], encodings_path: Path
) -> None:
    """Measure the 8-bit ranges of the decoder on the buckets up to `_CALIBRATION_FRAMES`, and on the smallest."""
    chosen = [size for size in sorted(frames) if size <= _CALIBRATION_FRAMES] or [min(frames)]
    models = {size: read_model(source.decoder / f"kokoro_decoder_{size}.onnx") for size in chosen}
    static_encodings(models, recorded, static_recipe(chosen, _FLOAT_STATIC), encodings_path)


def variant_bytes(directory: Path, frames: Sequence[int]) -> int:
    """Bytes of all files that speak with the decoders of ``frames``: both CPU models, decoders, their weight file."""
    names = [f"{DURATION}.onnx", f"{PROSODY}.onnx", WEIGHTS, *(f"kokoro_decoder_{size}.onnx" for size in frames)]
    return sum((directory / name).stat().st_size for name in names)
