"""Writes the variants of the whole model and compares them with each other and with the public int8 monolith."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pandas as pd
from tqdm import tqdm

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.quantize.cpu import STATIC
from kokoro_npu.variants import whole_model
from kokoro_npu.variants.conversion import static_decoder_ranges, variant, write_variant
from kokoro_npu.variants.monolith import predict_durations
from kokoro_npu.variants.whole_model import MONOLITH, MONOLITH_EXACT, SplitModel

FLOAT = "fp32"
OTHER_DRAW = "fp32-other-draw"

_CALIBRATION_UTTERANCES = 10
"""The shortest ones: a static calibration keeps every tensor's values of all samples in memory."""

_MIB = 1 << 20

_MEANS = [f"{source}_logmel_mae_mean" for source in whole_model.SOURCES]


def short_buckets(buckets: Sequence[int], most: int) -> list[int]:
    """The buckets of at most so many frames; where there is none, the smallest."""
    return [frames for frames in buckets if frames <= most] or [min(buckets)]


def compare(
    floats: SplitModel,
    quantized: Path,
    monolith: Path,
    calibration: Sequence[ReferenceUtterance],
    evaluation: Sequence[ReferenceUtterance],
    names: Sequence[str],
    runs: int,
    seed: int,
    out_dir: Path,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write every variant and measure it beside the float model and the monolith.

    Args:
        floats: the build's float model.
        quantized: directory of its quantized decoders.
        monolith: the public int8 ONNX; left out where it is not there, because the weights came from elsewhere.
        calibration: utterances for static ranges; their durations count as well.
        evaluation: utterances that are spoken, where a bucket holds them.
        names: of the variants.
        runs: timed runs of each CPU model and utterance.
        seed: of the source's noise in the reference set.
        out_dir: gets a directory a variant.

    Returns:
        A row a model, utterance and source; and a row a model.

    Raises:
        KokoroNpuError: an unknown variant, or no utterance that fits a bucket.
    """
    recipes = {name: variant(name) for name in names}
    spoken = [item for item in evaluation if item.frames <= max(floats.frames)]
    if not spoken:
        raise KokoroNpuError(f"no evaluation utterance fits the buckets {list(floats.frames)}; see bucket.frames")
    corpus = [*calibration, *evaluation]
    truth = whole_model.predicted_durations(floats.duration, corpus)
    session = cpu_session(floats.duration)
    pairs = [whole_model.cpu_feeds(session, item, truth[item.id]) for item in calibration[:_CALIBRATION_UTTERANCES]]
    samples = dict(zip((places.DURATION_MODEL, places.PROSODY_MODEL), zip(*pairs, strict=True), strict=True))
    static = any(recipe.arithmetic == STATIC for recipe in recipes.values())
    ranges = static_decoder_ranges(floats, calibration, out_dir / places.ENCODINGS) if static else {}
    models = {FLOAT: floats} | {
        name: write_variant(recipe, floats, quantized, samples, ranges, out_dir / name)
        for name, recipe in recipes.items()
    }
    speakers = [whole_model.speak_split(name, model, spoken, truth, seed) for name, model in models.items()]
    # What another draw of the source's noise makes of the float model: below it, nothing is to be heard.
    speakers.append(whole_model.speak_split(OTHER_DRAW, floats, spoken, truth, seed + 1))
    durations: dict[str, Mapping[str, npt.NDArray]] = {
        name: whole_model.predicted_durations(model.duration, corpus) for name, model in models.items()
    }
    facts: dict[str, dict[str, Any]] = {}
    for name, recipe in recipes.items():
        model = models[name]
        facts[name] = {
            "arithmetic": recipe.arithmetic,
            "published_mib": recipe.published_mib,
            "bytes": model.bytes([min(model.frames)]),
            "bytes_all_buckets": model.bytes(model.frames),
            "bytes_cpu_models": model.cpu_bytes(),
        }
    if monolith.is_file():
        speakers.append(whole_model.speak_monolith(monolith, spoken, truth))
        found = predict_durations(monolith, {i.id: (i.tokens, i.voice, i.speed) for i in corpus})
        for name in (MONOLITH, MONOLITH_EXACT):
            durations[name] = found
            facts[name] = {"bytes": monolith.stat().st_size}
    # The float model against itself tells how exact the ratios are.
    ratios = whole_model.time_ratios(floats, models, spoken, truth, runs)
    utterances = pd.DataFrame(tqdm(chain.from_iterable(speakers), desc="speak", unit="recording"))
    columns: list[dict[str, dict[str, Any]]] = [
        facts,
        {name: whole_model.moved_durations(found, truth) for name, found in durations.items()},
        {name: {"cpu_time_both": ratio} for name, ratio in ratios.items()},
    ]
    parts = [*(pd.DataFrame.from_dict(part, orient="index") for part in columns), _figures(utterances)]
    table = pd.concat(parts, axis=1).reindex(utterances["model"].unique())
    table.insert(3, "mib", (table["bytes"] / _MIB).round(2))
    # Whole numbers stay whole, though some rows lack them.
    return utterances, table.convert_dtypes().rename_axis("model").reset_index()


def _figures(utterances: pd.DataFrame) -> pd.DataFrame:
    """Mean and worst over the utterances, by source; a row a model."""
    by_source = [
        rows.groupby("model")
        .agg(
            logmel_mae_mean=("logmel_mae", "mean"),
            logmel_mae_max=("logmel_mae", "max"),
            snr_db_mean=("snr_db", "mean"),
            snr_db_min=("snr_db", "min"),
            magspec_corr_min=("magspec_corr", "min"),
        )
        .add_prefix(f"{source}_")
        for source, rows in utterances.groupby("source")
    ]
    return pd.concat(by_source, axis=1).round(6)


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """Each model's main figures, flat.

    Beside the monolith: how many variants are nearer to PyTorch than it by its best figure of each source, and the
    smallest of them.
    """
    by_name = table.set_index("model")
    columns = ["bytes", *_MEANS, "given_snr_db_min", "tokens_moved", "frames_moved", "cpu_time_both"]
    summary = {
        f"{name}_{column}".replace("-", "_"): value
        for column in columns
        for name, value in by_name[column].dropna().to_dict().items()
    }
    if MONOLITH in by_name.index:
        bars = by_name.loc[[MONOLITH, MONOLITH_EXACT], _MEANS].min()
        variants = by_name[by_name["arithmetic"].notna()]
        nearer = variants[(variants[_MEANS] < bars).all(axis=1)]
        summary |= {
            "nearer_than_monolith": len(nearer),
            "best_variant": "" if nearer.empty else nearer["bytes"].idxmin(),
        }
    return summary
