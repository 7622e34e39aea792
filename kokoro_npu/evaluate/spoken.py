"""An utterance in several precisions, each in the bucket that a host would choose: what listeners compare."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.audio.wav import write_wav
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.evaluate.parity import onnx_variant
from kokoro_npu.host.steps import pad_to_bucket, select_bucket, trim
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.preparation import prepare
from kokoro_npu.quantize.recipe import Recipe


def speak(
    model: KModel,
    calibration: Sequence[ReferenceUtterance],
    recorded: Sequence[ReferenceUtterance],
    recipes: Mapping[str, Recipe],
    buckets: Sequence[int],
    opset: int,
    decoder_dir: Path,
    out_dir: Path,
) -> None:
    """Quantize the float decoders by each recipe and let them speak on ONNX Runtime CPU.

    Args:
        model: upstream's model, weight norm removed.
        calibration: the calibration part of the corpus.
        recorded: what is said; an utterance that fits no bucket is left out.
        recipes: variant to its precision.
        buckets: frames of each bucket.
        opset: of the decoders that calibrate.
        decoder_dir: ``kokoro_decoder_<frames>.onnx`` of each bucket, float.
        out_dir: emptied first; receives ``<frames>/<utterance>.<variant>.wav``.
    """
    shutil.rmtree(out_dir, ignore_errors=True)
    out_dir.mkdir(parents=True)
    fitting = [item for item in recorded if item.frames <= max(buckets)]
    chosen = {item.id: select_bucket(item.frames, buckets) for item in fitting}
    models = {bucket: decoder_dir / f"kokoro_decoder_{bucket.frames}.onnx" for bucket in set(chosen.values())}
    with tqdm(total=len(recipes) * len(fitting), desc="speak", unit="utterance") as progress:
        for variant, recipe in recipes.items():
            with tempfile.TemporaryDirectory(prefix="kokoro-precisions-") as directory:
                encodings = Path(directory) / "encodings.json"
                prepare(model, calibration, recipe, opset, encodings)
                for bucket, path in models.items():
                    quantized = Path(directory) / "decoder.onnx"
                    onnx.save(quantize_decoder(onnx.load(path), recipe, encodings), quantized)
                    run = onnx_variant(quantized)
                    for item in (item for item in fitting if chosen[item.id] == bucket):
                        audio = trim(run(pad_to_bucket(item.features, bucket)), item.frames)
                        write_wav(out_dir / str(bucket.frames) / f"{item.id}.{variant}.wav", audio)
                        progress.update()
