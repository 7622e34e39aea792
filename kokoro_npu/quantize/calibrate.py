"""Activation ranges, measured on a few small buckets for all buckets."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization.calibrate import MinMaxCalibrater
from tqdm import tqdm

from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_json
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.host.steps import crop, pad_to_bucket, select_bucket
from kokoro_npu.quantize.encodings import Ranges, save_ranges, to_ranges
from kokoro_npu.quantize.recipe import NORM, Calibration, Recipe


def calibrate_decoder(
    decoder: Callable[[Bucket], onnx.ModelProto],
    recorded: Sequence[ReferenceUtterance],
    recipe: Recipe,
    encodings_path: Path,
) -> None:
    """Measure a recipe's ranges on the utterances that fit its calibration buckets, and write the encodings.

    Args:
        decoder: gives the float decoder of a bucket, weights inside; tensor names are the same in all.
        recorded: the calibration part of the corpus.
        recipe: the precision.
        encodings_path: as in :func:`calibrate`; empty for a float precision.

    Raises:
        KokoroNpuError: no utterance fits, or a window is longer than the utterance it is cut from.
    """
    if recipe.float:
        write_json(encodings_path, {})
        return
    samples = calibration_samples(recorded, recipe.calibration)
    batches = ((decoder(bucket), inputs) for bucket, inputs in samples.items())
    calibrate(batches, recipe.calibration, encodings_path)


def calibration_samples(
    recorded: Sequence[ReferenceUtterance], calibration: Calibration
) -> dict[Bucket, list[dict[str, Array]]]:
    """Decoder inputs to calibrate on, by bucket: each utterance in the smallest that holds it, and the short windows.

    Utterances that no bucket holds are left out: a recipe decides whether their ranges are worth a long bucket's time.
    So are buckets that would be empty.

    Raises:
        KokoroNpuError: no utterance fits, or a window is longer than the utterance it is cut from.
    """
    samples: dict[Bucket, list[dict[str, Array]]] = {Bucket(frames): [] for frames in sorted(calibration.frames)}
    recorded = [item for item in recorded if item.frames <= max(calibration.frames)]
    if not recorded:
        raise KokoroNpuError(
            f"no calibration utterance fits any of quantize.calibration.frames {list(calibration.frames)}"
        )
    for item in recorded:
        bucket = select_bucket(item.frames, calibration.frames)
        samples[bucket].append(pad_to_bucket(item.features, bucket))
    smallest = next(iter(samples))
    for number, window in enumerate(calibration.short_windows):
        item = recorded[number % len(recorded)]
        if window > min(item.frames, smallest.frames):
            raise KokoroNpuError(
                f"quantize.calibration.short_windows: {window} frames exceed {item.id} ({item.frames} frames) "
                f"or the smallest bucket ({smallest.frames} frames)"
            )
        # From the middle: the ends of an utterance are silence.
        cut = crop(item.features, window, (item.frames - window) // 2)
        samples[smallest].append(pad_to_bucket(cut, smallest))
    return {bucket: inputs for bucket, inputs in samples.items() if inputs}


def calibrate(
    batches: Iterable[tuple[onnx.ModelProto, Sequence[dict[str, Array]]]],
    calibration: Calibration,
    encodings_path: Path,
) -> None:
    """Measure the range of every activation over all batches and write the encodings.

    Args:
        batches: decoders of some buckets, weights inside, each with its inputs; tensor names are the same in all.
        calibration: the headrooms; its buckets and windows are those of the batches already.
        encodings_path: JSON in the form of onnxruntime's calibration cache, tensor name to range.
    """
    ranges: Ranges = {}
    norm_inputs: set[str] = set()
    for model, samples in batches:
        norm_inputs |= {node.input[0] for node in model.graph.node if node.op_type == NORM}
        for name, (low, high) in measure(model, samples).items():
            before = ranges.get(name, (low, high))
            ranges[name] = (min(low, before[0]), max(high, before[1]))
    for name, (low, high) in ranges.items():
        factor = (calibration.norm_headroom if name in norm_inputs else 1.0) * calibration.headroom
        ranges[name] = (low * factor, high * factor)
    save_ranges(ranges, encodings_path)


class _Samples(CalibrationDataReader):
    def __init__(self, samples: Iterable[Mapping[str, NDArray]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, NDArray] | None:
        sample = next(self._samples, None)
        return None if sample is None else dict(sample)


def measure(model: onnx.ModelProto, samples: Iterable[Mapping[str, NDArray]]) -> Ranges:
    """The range of every activation of a model over samples of its inputs."""
    with tempfile.TemporaryDirectory(prefix="kokoro-calibrate-") as directory:
        model_path, augmented = Path(directory) / "model.onnx", Path(directory) / "augmented.onnx"
        onnx.save(model, model_path)
        calibrator = MinMaxCalibrater(model_path, augmented_model_path=str(augmented))
        calibrator.augment_graph()
        calibrator.infer_session = cpu_session(augmented, options=_eager())
        calibrator.collect_data(_Samples(tqdm(samples, desc=f"calibrate {model.graph.name}", unit="sample")))
        return to_ranges(calibrator.compute_data())


def _eager() -> ort.SessionOptions:
    """Options of a session that reduces each tensor as soon as it exists.

    In its default order ONNX Runtime keeps every activation for the reductions at the end: 900 frames take more than
    22 GiB. In the order of the file, where the calibrator puts them beside their tensors, 2 GiB do.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_pattern = False
    return options
