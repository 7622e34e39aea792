"""Stage speak-precisions: the evaluation utterances in further precisions, to be heard beside the build's own."""

from pathlib import Path

import yaml
from _config import stage
from _listening import SPOKEN, further_precisions
from omegaconf import DictConfig

from kokoro_npu.corpus import CALIBRATION, EVALUATION
from kokoro_npu.features import load_recorded
from kokoro_npu.precisions import speak
from kokoro_npu.quantize import Recipe
from kokoro_npu.weights import load_kmodel


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/precisions/<frames>/<utterance>.<precision>.wav."""
    names = further_precisions(cfg)
    presets = {name: yaml.safe_load((Path("conf/quantize") / f"{name}.yaml").read_bytes()) for name in names}
    speak(
        load_kmodel("artifacts/weights"),
        list(load_recorded("artifacts/features", CALIBRATION)),
        list(load_recorded("artifacts/features", EVALUATION)),
        {name: Recipe.from_options(preset) for name, preset in presets.items()},
        list(cfg.buckets),
        cfg.export.opset,
        Path("artifacts/decoder"),
        SPOKEN,
    )


if __name__ == "__main__":
    main()
