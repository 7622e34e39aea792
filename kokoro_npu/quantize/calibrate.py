"""Activation ranges, measured on one small bucket for all buckets."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization.calibrate import TensorsData, create_calibrator, save_tensors_data
from tqdm import tqdm

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.features import Recorded
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize.recipe import Calibration, Recipe
from kokoro_npu.runtime import Array, crop, pad_to_bucket


class _Samples(CalibrationDataReader):
    def __init__(self, samples: Iterable[dict[str, Array]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._samples, None)


def calibration_samples(recorded: Sequence[Recorded], calibration: Calibration) -> Iterator[dict[str, Array]]:
    """Decoder inputs to calibrate on: every utterance that fits the bucket, then the short windows.

    Raises:
        KokoroNpuError: no utterance fits, or a window is longer than the bucket or the utterances.
    """
    bucket = Bucket(calibration.frames)
    fitting = [item for item in recorded if item.frames <= bucket.frames]
    if not fitting:
        raise KokoroNpuError(f"no calibration utterance fits quantize.calibration.frames={bucket.frames}")
    for item in fitting:
        yield pad_to_bucket(item.features, bucket)
    for number, window in enumerate(calibration.short_windows):
        item = fitting[number % len(fitting)]
        if window > item.frames:
            raise KokoroNpuError(
                f"quantize.calibration.short_windows: {window} frames exceed {item.id} ({item.frames} frames)"
            )
        # From the middle: the ends of an utterance are silence.
        yield pad_to_bucket(crop(item.features, window, (item.frames - window) // 2), bucket)


def calibrate(
    model: onnx.ModelProto, samples: Sequence[dict[str, Array]], recipe: Recipe, encodings_path: Path
) -> None:
    """Measure the range of every activation and write the encodings.

    Args:
        model: the decoder of the calibration bucket, weights inside.
        samples: its inputs; see :func:`calibration_samples`.
        recipe: method and headroom.
        encodings_path: JSON in the form of onnxruntime's calibration cache, tensor name to range.
    """
    with tempfile.TemporaryDirectory(prefix="kokoro-calibrate-") as directory:
        model_path = Path(directory) / "model.onnx"
        onnx.save(model, model_path)
        calibrator = create_calibrator(
            model_path,
            augmented_model_path=str(Path(directory) / "augmented.onnx"),
            calibrate_method=recipe.method,
        )
        calibrator.collect_data(_Samples(tqdm(samples, desc="calibrate", unit="sample")))
        ranges = calibrator.compute_data()
    headroom = recipe.calibration.headroom
    widened = {
        name: tuple(np.float32(bound * headroom) for bound in ranges[name].range_value)
        for name in sorted(ranges.keys())
    }
    save_tensors_data(TensorsData(recipe.method, widened), encodings_path)
