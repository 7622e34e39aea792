"""Writes the variants of the whole model and compares them with each other and with the public int8 monolith."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pandas as pd

from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.machine import integer_instructions
from kokoro_npu.variants import whole_model
from kokoro_npu.variants.conversion import (
    DURATION,
    PROSODY,
    STATIC,
    Source,
    static_decoder_encodings,
    variant,
    variant_bytes,
    write_variant,
)
from kokoro_npu.variants.monolith import predict_durations
from kokoro_npu.variants.whole_model import MONOLITH, MONOLITH_EXACT, Files

FLOAT = "fp32"
OTHER_DRAW = "fp32-other-draw"

_CALIBRATION_UTTERANCES = 10
"""The shortest ones: a static calibration keeps every tensor's values of all samples in memory."""

_MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """What is compared.

    Attributes:
        names: variants.
        frames: decoder buckets.
        runs: timed runs of each CPU model and utterance.
        seed: of the source's noise, as recorded.
    """

    names: Sequence[str]
    frames: Sequence[int]
    runs: int
    seed: int


@dataclass(frozen=True)
class Comparison:
    """What came out.

    Attributes:
        utterances: one row a model, utterance and source.
        table: one row a model.
        summary: flat.
    """

    utterances: pd.DataFrame
    table: pd.DataFrame
    summary: dict[str, Any]


def compare(
    source: Source,
    monolith: Path,
    calibration: Sequence[ReferenceUtterance],
    evaluation: Sequence[ReferenceUtterance],
    settings: Settings,
    out_dir: Path,
) -> Comparison:
    """Write every variant and measure it beside the float model and the monolith.

    Args:
        source: the build's models.
        monolith: the public int8 ONNX; left out where the weights came from elsewhere and it is not there.
        calibration: utterances for static ranges; their durations count as well.
        evaluation: utterances that are spoken, where a bucket holds them.
        settings: what to compare.
        out_dir: gets a directory a variant.

    Raises:
        KokoroNpuError: an unknown variant, or no utterance that fits a bucket.
    """
    recipes = [variant(name) for name in settings.names]
    for directory in (source.decoder, source.quantized):
        for frames in settings.frames:
            if not (path := directory / f"kokoro_decoder_{frames}.onnx").is_file():
                raise KokoroNpuError(
                    f"variants.frames: {path} does not exist; build that bucket, or leave {frames} out"
                )
    spoken = [item for item in evaluation if item.frames <= max(settings.frames)]
    if not spoken:
        raise KokoroNpuError(f"no evaluation utterance fits the buckets {list(settings.frames)}; see bucket.frames")
    corpus = [*calibration, *evaluation]
    floats = Files.in_directory(source.cpu, source.decoder, settings.frames)
    truth = whole_model.float_durations(floats.duration, corpus)
    samples = _samples(floats, calibration[:_CALIBRATION_UTTERANCES], truth)
    encodings = out_dir / "encodings.json"
    if any(recipe.decoder == STATIC for recipe in recipes):
        static_decoder_encodings(source, settings.frames, calibration, encodings)
    models = {FLOAT: floats}
    for recipe in recipes:
        write_variant(recipe, source, settings.frames, samples, encodings, out_dir / recipe.name)
        models[recipe.name] = Files.in_directory(out_dir / recipe.name, out_dir / recipe.name, settings.frames)
    each = len(spoken) * len(whole_model.SOURCES)
    tables = [
        whole_model.measure(whole_model.speak_split(name, files, spoken, truth, settings.seed), each, name)
        for name, files in models.items()
    ]
    # What another draw of the source's noise makes of the float model: below it, nothing is to be heard.
    other = whole_model.speak_split(OTHER_DRAW, floats, spoken, truth, settings.seed + 1, (whole_model.OWN,))
    tables.append(whole_model.measure(other, len(spoken), OTHER_DRAW))
    durations: dict[str, Mapping[str, npt.NDArray]] = {
        name: whole_model.predicted_durations(files.duration, corpus) for name, files in models.items()
    }
    rows = {name: _facts(name, out_dir, settings.frames) for name in settings.names}
    if monolith.is_file():
        tables.append(whole_model.measure(whole_model.speak_monolith(monolith, spoken, truth), 2 * each, MONOLITH))
        durations[MONOLITH] = predict_durations(monolith, {i.id: (i.tokens, i.voice, i.speed) for i in corpus})
        size = monolith.stat().st_size
        rows |= {key: {"bytes": size, "mib": round(size / _MIB, 2)} for key in (MONOLITH, MONOLITH_EXACT)}
    ratios = whole_model.time_ratios(
        # The float model against itself tells how exact the ratios are.
        floats,
        {name: models[name] for name in (FLOAT, *settings.names)},
        spoken,
        truth,
        settings.runs,
    )
    moved = {name: whole_model.moved_durations(found, truth) for name, found in durations.items()}
    utterances = pd.concat(tables, ignore_index=True)
    found = whole_model.figures(utterances)
    table = pd.DataFrame(
        [
            {
                "model": name,
                **rows.get(name, {}),
                **figures,
                **moved.get(name, moved.get(MONOLITH, {}) if name == MONOLITH_EXACT else {}),
                **{f"cpu_time_{part}": value for part, value in ratios.get(name, {}).items()},
            }
            for name, figures in found.items()
        ]
    )
    counts = [column for column in table.columns if column.startswith(("bytes", "tokens", "frames_", "utterances_"))]
    table = table.astype(dict.fromkeys(counts, "Int64"))  # whole numbers, though some rows lack them
    return Comparison(utterances, table, _summary(table, settings, len(spoken)))


def _facts(name: str, out_dir: Path, frames: Sequence[int]) -> dict[str, Any]:
    recipe, directory = variant(name), out_dir / name
    smallest = variant_bytes(directory, [min(frames)])
    return {
        "cpu_ops": recipe.cpu_ops,
        "decoder": recipe.decoder,
        "seed3_mib": recipe.seed3_mib,
        "bytes": smallest,
        "mib": round(smallest / _MIB, 2),
        "bytes_all_buckets": variant_bytes(directory, frames),
        "bytes_cpu_models": sum((directory / f"{part}.onnx").stat().st_size for part in (DURATION, PROSODY)),
    }


def _samples(
    files: Files, recorded: Sequence[ReferenceUtterance], truth: dict[str, Any]
) -> dict[str, list[whole_model.Feeds]]:
    session = cpu_session(files.duration)
    pairs = [whole_model.cpu_feeds(session, item, truth[item.id]) for item in recorded]
    return {DURATION: [pair[0] for pair in pairs], PROSODY: [pair[1] for pair in pairs]}


def _summary(table: pd.DataFrame, settings: Settings, utterances: int) -> dict[str, Any]:
    """Flat: each model's main figures, and the smallest variant that is nearer to PyTorch than the monolith."""
    summary: dict[str, Any] = {
        "cpu_instructions": integer_instructions(),
        "evaluation_utterances": utterances,
        "smallest_bucket_frames": min(settings.frames),
        "timed_runs": settings.runs,
    }
    columns = ("bytes", "given_logmel_mae_mean", "given_snr_db_min", "own_logmel_mae_mean", "tokens_moved",
               "frames_moved", "cpu_time_both")  # fmt: skip
    by_name = table.set_index("model")
    for name, row in by_name.iterrows():
        for column in columns:
            if column in row and pd.notna(row[column]):
                value = float(row[column])
                summary[f"{name}_{column}".replace("-", "_")] = int(value) if value.is_integer() else value
    if MONOLITH in by_name.index:
        # The monolith's best figure of each source is the one to beat.
        bars = by_name.loc[[MONOLITH, MONOLITH_EXACT]]
        means = [f"{source}_logmel_mae_mean" for source in whole_model.SOURCES]
        sizes = {str(name): int(size) for name, size in by_name["bytes"].dropna().items()}
        nearer = [name for name in settings.names if all(by_name.loc[name, mean] < bars[mean].min() for mean in means)]
        summary["nearer_than_monolith"] = len(nearer)
        summary["best_variant"] = min(nearer, key=lambda name: sizes[name], default="")
    return summary
