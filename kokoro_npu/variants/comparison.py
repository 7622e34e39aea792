"""Writes the variants of the whole model and compares them with each other and with the public int8 monolith."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from kokoro_npu.machine import integer_instructions
from kokoro_npu.variants import whole_model
from kokoro_npu.variants.conversion import STATIC, static_decoder_encodings, variant, write_variant
from kokoro_npu.variants.monolith import predict_durations
from kokoro_npu.variants.whole_model import MONOLITH, MONOLITH_EXACT, Durations, SplitModel

FLOAT = "fp32"
OTHER_DRAW = "fp32-other-draw"

_CALIBRATION_UTTERANCES = 10
"""The shortest ones: a static calibration keeps every tensor's values of all samples in memory."""

_MIB = 1 << 20


@dataclass(frozen=True)
class VariantComparison:
    """What came out.

    Attributes:
        utterances: one row a model, utterance and source.
        table: one row a model.
        summary: flat.
    """

    utterances: pd.DataFrame
    table: pd.DataFrame
    summary: dict[str, Any]


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
) -> VariantComparison:
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

    Raises:
        KokoroNpuError: an unknown variant, or no utterance that fits a bucket.
    """
    recipes = {name: variant(name) for name in names}
    spoken = [item for item in evaluation if item.frames <= max(floats.frames)]
    if not spoken:
        raise KokoroNpuError(f"no evaluation utterance fits the buckets {list(floats.frames)}; see bucket.frames")
    corpus = [*calibration, *evaluation]
    truth = whole_model.predicted_durations(floats.duration, corpus)
    samples = _samples(floats, calibration[:_CALIBRATION_UTTERANCES], truth)
    encodings = out_dir / places.ENCODINGS
    if any(recipe.decoder == STATIC for recipe in recipes.values()):
        static_decoder_encodings(floats, calibration, encodings)
    models = {FLOAT: floats} | {
        name: write_variant(recipe, floats, quantized, samples, encodings, out_dir / name)
        for name, recipe in recipes.items()
    }
    speakers = [whole_model.speak_split(name, model, spoken, truth, seed) for name, model in models.items()]
    # What another draw of the source's noise makes of the float model: below it, nothing is to be heard.
    speakers.append(whole_model.speak_split(OTHER_DRAW, floats, spoken, truth, seed + 1, (whole_model.OWN,)))
    durations: dict[str, Mapping[str, npt.NDArray]] = {
        name: whole_model.predicted_durations(model.duration, corpus) for name, model in models.items()
    }
    facts = {name: _facts(name, models[name]) for name in names}
    if monolith.is_file():
        speakers.append(whole_model.speak_monolith(monolith, spoken, truth))
        found = predict_durations(monolith, {i.id: (i.tokens, i.voice, i.speed) for i in corpus})
        size = monolith.stat().st_size
        for name in (MONOLITH, MONOLITH_EXACT):
            durations[name] = found
            facts[name] = {"bytes": size, "mib": round(size / _MIB, 2)}
    # The float model against itself tells how exact the ratios are.
    ratios = whole_model.time_ratios(floats, models, spoken, truth, runs)
    moved = {name: whole_model.moved_durations(found, truth) for name, found in durations.items()}
    utterances = pd.DataFrame(tqdm(chain.from_iterable(speakers), desc="speak", unit="recording"))
    table = pd.DataFrame(
        [
            {
                "model": name,
                **facts.get(name, {}),
                **figures,
                **moved.get(name, {}),
                **{f"cpu_time_{part}": value for part, value in ratios.get(name, {}).items()},
            }
            for name, figures in whole_model.figures(utterances).items()
        ]
    )
    counts = [column for column in table.columns if column.startswith(("bytes", "tokens", "frames_", "utterances_"))]
    table = table.astype(dict.fromkeys(counts, "Int64"))  # whole numbers, though some rows lack them
    summary = {
        "cpu_instructions": integer_instructions(),
        "evaluation_utterances": len(spoken),
        "smallest_bucket_frames": min(floats.frames),
        "timed_runs": runs,
    }
    return VariantComparison(utterances, table, summary | _figures(table) | _nearer(table, names))


def _samples(
    model: SplitModel, utterances: Sequence[ReferenceUtterance], truth: Mapping[str, Durations]
) -> dict[str, list[whole_model.Feeds]]:
    session = cpu_session(model.duration)
    pairs = [whole_model.cpu_feeds(session, item, truth[item.id]) for item in utterances]
    return {places.DURATION_MODEL: [pair[0] for pair in pairs], places.PROSODY_MODEL: [pair[1] for pair in pairs]}


def _facts(name: str, model: SplitModel) -> dict[str, Any]:
    recipe, smallest = variant(name), model.bytes([min(model.frames)])
    return {
        "cpu_ops": recipe.cpu_ops,
        "decoder": recipe.decoder,
        "published_mib": recipe.published_mib,
        "bytes": smallest,
        "mib": round(smallest / _MIB, 2),
        "bytes_all_buckets": model.bytes(model.frames),
        "bytes_cpu_models": model.cpu_bytes(),
    }


def _figures(table: pd.DataFrame) -> dict[str, Any]:
    """Each model's main figures, flat."""
    columns = ("bytes", "given_logmel_mae_mean", "given_snr_db_min", "own_logmel_mae_mean", "tokens_moved",
               "frames_moved", "cpu_time_both")  # fmt: skip
    summary: dict[str, Any] = {}
    for name, row in table.set_index("model").iterrows():
        for column in columns:
            if column in row and pd.notna(row[column]):
                value = float(row[column])
                summary[f"{name}_{column}".replace("-", "_")] = int(value) if value.is_integer() else value
    return summary


def _nearer(table: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """How many variants are nearer to PyTorch than the monolith, and the smallest of them; empty without a monolith."""
    by_name = table.set_index("model")
    if MONOLITH not in by_name.index:
        return {}
    # The monolith's best figure of each source is the one to beat.
    bars = by_name.loc[[MONOLITH, MONOLITH_EXACT]]
    means = [f"{source}_logmel_mae_mean" for source in whole_model.SOURCES]
    nearer = [name for name in names if all(by_name.loc[name, mean] < bars[mean].min() for mean in means)]
    best = min(nearer, key=by_name["bytes"].to_dict().__getitem__, default="")
    return {"nearer_than_monolith": len(nearer), "best_variant": best}
