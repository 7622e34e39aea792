"""Stage quantization-ideas: what each idea for better 8-bit weights and for the ranges of activations brings, in dB."""

from dataclasses import asdict

import pandas as pd
from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.corpus import CALIBRATION, EVALUATION
from kokoro_npu.export import export_decoder
from kokoro_npu.features import load_recorded
from kokoro_npu.files import atomic
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize import Recipe
from kokoro_npu.quantize.ideas import compare_weights
from kokoro_npu.quantize.range_ideas import compare_ranges
from kokoro_npu.quantize.rounding import HEAD, round_body
from kokoro_npu.quantize.trial_bench import choose_windows
from kokoro_npu.runtime import crop
from kokoro_npu.torch_cpu import set_up_torch
from kokoro_npu.weights import load_kmodel

RANGE_FRAMES = 100
"""Bucket in which ranges are compared: a histogram's calibrator holds every activation of a sample (5 GB at 200)."""


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/trials/ideas.csv."""
    set_up_torch()
    frames = cfg.trials.frames
    calibration, evaluation = (list(load_recorded("artifacts/features", part)) for part in (CALIBRATION, EVALUATION))
    judged = choose_windows(evaluation, frames, cfg.trials.windows)
    windows = [crop(item.features, frames, (item.frames - frames) // 2) for item in judged]
    model, recipe = load_kmodel("artifacts/weights"), Recipe.from_options(plain(cfg.quantize))
    results = compare_weights(model.decoder, windows, round_body(model.decoder, calibration), (HEAD,))
    bucket = Bucket(RANGE_FRAMES)
    results += compare_ranges(export_decoder(model, bucket, cfg.export.opset), bucket, calibration, judged, recipe)
    with atomic("reports/trials/ideas.csv") as tmp:
        pd.DataFrame(asdict(result) for result in results).to_csv(tmp, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
