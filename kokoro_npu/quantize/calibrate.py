"""Activation ranges, measured on a few small buckets for all buckets."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization.calibrate import TensorsData, create_calibrator
from tqdm import tqdm

from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.sessions import THREADS
from kokoro_npu.host.steps import Array, crop, pad_to_bucket, select_bucket
from kokoro_npu.quantize.encodings import Ranges, save_ranges
from kokoro_npu.quantize.recipe import NORM, Calibration, Recipe


class _Samples(CalibrationDataReader):
    def __init__(self, samples: Iterable[dict[str, Array]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._samples, None)


def calibration_samples(
    recorded: Sequence[ReferenceUtterance], calibration: Calibration
) -> dict[Bucket, list[dict[str, Array]]]:
    """Decoder inputs to calibrate on, by bucket: each utterance in the smallest that holds it, and the short windows.

    Utterances that no bucket holds are left out: a recipe decides whether their ranges are worth a long bucket's time.

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
    return samples


def calibrate(
    batches: Iterable[tuple[onnx.ModelProto, Sequence[dict[str, Array]]]], recipe: Recipe, encodings_path: Path
) -> None:
    """Measure the range of every activation over all batches and write the encodings.

    Args:
        batches: decoders of some buckets, weights inside, each with its inputs; tensor names are the same in all.
        recipe: method and headroom.
        encodings_path: JSON in the form of onnxruntime's calibration cache, tensor name to range.
    """
    ranges: Ranges = {}
    factors: dict[str, float] = {}
    for model, samples in batches:
        norms = (node for node in model.graph.node if node.op_type == NORM)
        factors |= {node.input[0]: recipe.calibration.norm_headroom for node in norms}
        if samples:
            measured = _measure(model, samples, recipe)
            for name in measured.keys():  # noqa: SIM118  # TensorsData is no mapping
                low, high = (float(np.asarray(bound).item()) for bound in measured[name].range_value)
                before = ranges.get(name, (low, high))
                ranges[name] = (min(low, before[0]), max(high, before[1]))
    widened = {}
    for name, bounds in ranges.items():
        factor = factors.get(name, 1.0) * recipe.calibration.headroom
        widened[name] = (bounds[0] * factor, bounds[1] * factor)
    save_ranges(widened, encodings_path)


def _measure(model: onnx.ModelProto, samples: Sequence[dict[str, Array]], recipe: Recipe) -> TensorsData:
    with tempfile.TemporaryDirectory(prefix="kokoro-calibrate-") as directory:
        model_path, augmented = Path(directory) / "model.onnx", Path(directory) / "augmented.onnx"
        onnx.save(model, model_path)
        calibrator = create_calibrator(model_path, augmented_model_path=str(augmented), calibrate_method=recipe.method)
        calibrator.infer_session = _eager_session(augmented)
        for sample in tqdm(samples, desc=f"calibrate {model.graph.name}", unit="sample"):
            # One by one: of what it is given at once, a histogram's calibrator keeps every activation (5 GB a sample).
            calibrator.collect_data(_Samples([sample]))
        return calibrator.compute_data()


def _eager_session(path: Path) -> ort.InferenceSession:
    """A session that reduces each tensor as soon as it exists.

    In its default order ONNX Runtime keeps every activation for the reductions at the end: 900 frames take more than
    22 GiB. In the order of the file, where the calibrator puts them beside their tensors, 2 GiB do.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_pattern = False
    options.intra_op_num_threads = THREADS
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
