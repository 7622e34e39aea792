"""Stage derive-recipe: trials, thresholds and pinned lines to a recipe."""

from omegaconf import DictConfig

from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.overrides import load_lines, save_lines
from kokoro_npu.sensitivity.derive import COMMENT, Thresholds, derive
from kokoro_npu.sensitivity.table import read_trials
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/trials/recipe.yaml: what the trials say, then the pinned lines, which win."""
    # Node names are the same in every bucket.
    decoder = export_decoder(load_kmodel("artifacts/weights"), Bucket(2), cfg.export.opset)
    trials = read_trials("reports/trials/trials.csv")
    lines = derive(decoder, trials, Thresholds(**plain(cfg.derive.thresholds)))
    save_lines("artifacts/trials/recipe.yaml", [*lines, *load_lines(cfg.derive.pins)], COMMENT)


if __name__ == "__main__":
    main()
