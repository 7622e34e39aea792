"""Stage speak-precisions: the evaluation utterances in further precisions, to be heard beside the build's own."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import CALIBRATION, EVALUATION, load_reference_set
from kokoro_npu.evaluate.spoken import speak
from kokoro_npu.quantize.recipe import Recipe
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/precisions/<frames>/<utterance>.<precision>.wav."""
    speak(
        load_kmodel(places.WEIGHTS),
        list(load_reference_set(places.REFERENCE_SET, CALIBRATION)),
        list(load_reference_set(places.REFERENCE_SET, EVALUATION)),
        {name: Recipe.from_options(preset) for name, preset in plain(cfg.listening.precisions).items()},
        list(cfg.buckets),
        cfg.export.opset,
        places.PRECISIONS,
    )


if __name__ == "__main__":
    main()
