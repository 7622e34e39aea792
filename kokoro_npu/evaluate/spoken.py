"""An utterance in several precisions, each in the bucket that a host would choose: what listeners compare."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.audio.wav import write_wav
from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.evaluate.parity import onnx_variant
from kokoro_npu.geometry import Bucket
from kokoro_npu.host.steps import pad_to_bucket, select_bucket, trim
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.calibrate import calibrate_decoder
from kokoro_npu.quantize.recipe import Recipe


def speak(
    model: KModel,
    calibration: Sequence[ReferenceUtterance],
    recorded: Sequence[ReferenceUtterance],
    recipes: Mapping[str, Recipe],
    buckets: Sequence[int],
    opset: int,
    out_dir: Path,
) -> None:
    """Quantize the build's float decoders by each recipe and let them speak on ONNX Runtime CPU.

    Args:
        model: upstream's model, weight norm removed.
        calibration: the calibration part of the corpus.
        recorded: what is said; an utterance that fits no bucket is left out.
        recipes: variant to its precision.
        buckets: frames of each bucket.
        opset: of the decoders that calibrate.
        out_dir: receives ``<frames>/<utterance>.<variant>.wav``, and the encodings as ``<variant>.json``.
    """

    def decoder(bucket: Bucket) -> onnx.ModelProto:
        # Unfolded: the same tensors, and fewer copies of them.
        return export_decoder(model, bucket, opset, rows=1)

    chosen: dict[Bucket, list[ReferenceUtterance]] = {}
    for item in recorded:
        if item.frames <= max(buckets):
            chosen.setdefault(select_bucket(item.frames, buckets), []).append(item)
    for variant, recipe in recipes.items():
        encodings = out_dir / f"{variant}.json"
        calibrate_decoder(decoder, calibration, recipe, encodings)
        for bucket, items in chosen.items():
            plain = onnx.load(places.decoder(places.DECODERS, bucket.frames))
            run = onnx_variant(quantize_decoder(plain, recipe, encodings).SerializeToString())
            for item in tqdm(items, desc=f"speak {variant} {bucket.frames}", unit="utterance"):
                audio = trim(run(pad_to_bucket(item.features, bucket)), item.frames)
                write_wav(out_dir / str(bucket.frames) / f"{item.id}.{variant}.wav", audio)
