"""Stage derive-recipe: the sensitivity table, thresholds and fixed overrides to a recipe."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.overrides import load_overrides, save_overrides
from kokoro_npu.sensitivity.derive import COMMENT, RecipeThresholds, derive
from kokoro_npu.sensitivity.table import read_sensitivities
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/sensitivity/recipe.yaml: what follows from the table, then the fixed overrides, which win."""
    # Node names are the same in every bucket.
    decoder = export_decoder(load_kmodel(places.WEIGHTS), Bucket(2), cfg.export.opset)
    thresholds = RecipeThresholds(**plain(cfg.derive.thresholds))
    derived = derive(decoder, read_sensitivities(places.SENSITIVITY_TABLE), thresholds)
    fixed = load_overrides(cfg.derive.fixed_overrides)
    save_overrides(places.SENSITIVITY / "recipe.yaml", [*derived, *fixed], COMMENT)


if __name__ == "__main__":
    main()
