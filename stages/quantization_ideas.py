"""Stage quantization-ideas: what each idea for better 8-bit weights brings, in dB."""

from dataclasses import asdict

import pandas as pd
from _config import stage
from omegaconf import DictConfig

from kokoro_npu.corpus import CALIBRATION, EVALUATION
from kokoro_npu.features import load_recorded
from kokoro_npu.files import atomic
from kokoro_npu.quantize.ideas import compare_weights
from kokoro_npu.quantize.rounding import HEAD, round_body
from kokoro_npu.quantize.trial_bench import choose_windows
from kokoro_npu.runtime import crop
from kokoro_npu.torch_cpu import set_up_torch
from kokoro_npu.weights import load_kmodel


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/trials/ideas.csv."""
    set_up_torch()
    frames = cfg.trials.frames
    judged = choose_windows(list(load_recorded("artifacts/features", EVALUATION)), frames, cfg.trials.windows)
    windows = [crop(item.features, frames, (item.frames - frames) // 2) for item in judged]
    decoder = load_kmodel("artifacts/weights").decoder
    rounded = round_body(decoder, list(load_recorded("artifacts/features", CALIBRATION)))
    results = compare_weights(decoder, windows, rounded, (HEAD,))
    with atomic("reports/trials/ideas.csv") as tmp:
        pd.DataFrame(asdict(result) for result in results).to_csv(tmp, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
