"""The whole model in the five precisions that kokoro-onnx-export publishes.

That tool narrows one dynamic graph; here a variant is the two CPU models and the static decoders, whose weights all
buckets share. The arithmetic of the CPU models (`kokoro_npu.quantize.cpu`) is the decoder's as well, but for `DYNAMIC`,
where the decoder is the build's own quantized one, and for what `_FLOAT_STATIC` names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.files import write_onnx
from kokoro_npu.graphs.reading import read_model
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.quantize.calibrate import calibrate_decoder
from kokoro_npu.quantize.cpu import DYNAMIC, FLOAT, STATIC, quantize_cpu, static_products
from kokoro_npu.quantize.encodings import Ranges, load_ranges
from kokoro_npu.quantize.recipe import HEAD, Calibration, Recipe
from kokoro_npu.quantize.storage import FP16, INT8, narrow
from kokoro_npu.variants.whole_model import Feeds, SplitModel

_ALIGNMENT = 64
"""Of stored weights: they are unpacked when the model is loaded, so nothing maps them by pages."""

_FLOAT_STATIC = ("/generator/resblocks", HEAD)
"""What kokoro-onnx-export leaves floating in uint8: the generator's residual blocks, and the head behind them."""


@dataclass(frozen=True)
class VariantRecipe:
    """One whole model.

    Attributes:
        published_mib: size of kokoro-onnx-export's model of that name, in MiB (its "MB"; its own tables are in KiB).
        arithmetic: ``float``, ``dynamic`` or ``static``.
        store: width of the matrices that are left floating, as in `kokoro_npu.quantize.storage.narrow`.
        rest: width of all other floats, likewise.
    """

    published_mib: float
    arithmetic: str
    store: str = ""
    rest: str = ""


VARIANTS = {
    "q8f16": VariantRecipe(82.39, FLOAT, store=INT8, rest=FP16),
    "quantized": VariantRecipe(88.21, DYNAMIC, store=INT8),
    "uint8f16": VariantRecipe(107.64, STATIC, store=FP16, rest=FP16),
    "uint8": VariantRecipe(164.15, STATIC),
    "fp16": VariantRecipe(156.17, FLOAT, store=FP16, rest=FP16),
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
    ranges: Ranges,
    out_dir: Path,
) -> SplitModel:
    """Write a variant's files.

    Args:
        recipe: which.
        model: the float model.
        quantized: directory of the build's quantized decoders, for dynamic arithmetic.
        samples: file name of a CPU model to inputs that it is calibrated on, for static arithmetic.
        ranges: of `static_decoder_ranges`, for static arithmetic.
        out_dir: gets the CPU models, the decoders and their one weight file.
    """
    for name in (places.DURATION_MODEL, places.PROSODY_MODEL):
        source = read_model(model.cpu / name)
        narrowed = quantize_cpu(source, recipe.arithmetic, recipe.store, recipe.rest, samples.get(name, ()))
        write_onnx(out_dir / name, narrowed)
    pack: Pack | None = None
    for frames in sorted(model.frames):
        if recipe.arithmetic == DYNAMIC:
            decoder = read_model(places.decoder(quantized, frames))
        else:
            decoder = read_model(places.decoder(model.decoders, frames))
            if recipe.arithmetic == STATIC:
                kept = [node.name for node in decoder.graph.node if node.name.startswith(_FLOAT_STATIC)]
                decoder = static_products(decoder, ranges, kept)
                del decoder.metadata_props[:]
            narrow(decoder, recipe.store, recipe.rest)
        # The weights are the same in every bucket; a pack refuses any that are not.
        pack = pack or Pack.write(decoder, out_dir / places.SHARED_WEIGHTS, alignment=_ALIGNMENT)
        pack.save(decoder, places.decoder(out_dir, frames))
    return SplitModel(out_dir, out_dir, model.frames)


def static_decoder_ranges(model: SplitModel, utterances: Sequence[ReferenceUtterance], encodings: Path) -> Ranges:
    """Ranges of the float decoders' activations on the utterances that fit, which are written to ``encodings`` too."""
    recipe = Recipe("uint8", 8, 8, per_channel=True, calibration=Calibration(tuple(model.frames)))
    calibrate_decoder(
        lambda bucket: read_model(places.decoder(model.decoders, bucket.frames)), utterances, recipe, encodings
    )
    return load_ranges(encodings)
