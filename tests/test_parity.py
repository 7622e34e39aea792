"""Evaluation and its gates: each figure can close a gate, and the message says where and by how much."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kokoro import KModel

from kokoro_npu.build.labels import FP32, QUANTIZED, TORCH
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import parity
from kokoro_npu.evaluate.gates import check_gates
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.model import reference
from kokoro_npu.model.decoder import StaticDecoder
from tests.narrow_model import random_features

GATES = {
    "torch_snr_db_min": 100.0,
    "fp32_snr_db_min": 85.0,
    "quantized_snr_db_min": 20.0,
    "quantized_magspec_corr_min": 0.95,
    "quantized_logmel_mae_max": 1.0,
}
GOOD = {"snr_db": 114.0, "waveform_corr": 1.0, "magspec_corr": 0.999, "logmel_mae": 0.2}


def _table(**faults: Any) -> pd.DataFrame:
    """Three utterances by three variants, all good but for ``<variant>_<column>`` of utterance ``b``."""
    rows = []
    for variant in (TORCH, FP32, QUANTIZED):
        for utterance in "abc":
            row: dict[str, Any] = {"utterance": utterance, "variant": variant, "frames": 9, "fill": 0.5}
            row |= GOOD | {"band_db": 0.3, "duration_mismatches": 0}
            if utterance == "b":
                prefix = f"{variant}_"
                row |= {name.removeprefix(prefix): v for name, v in faults.items() if name.startswith(prefix)}
            rows.append(row)
    return pd.DataFrame(rows)


def test_a_good_table_passes() -> None:
    check_gates(_table(), GATES, "here")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"torch_snr_db": 99.5}, "here: b misses torch_snr_db_min 100 with 99.5, by 0.5;"),
        ({"fp32_snr_db": 24.0}, "here: b misses fp32_snr_db_min 85 with 24, by 61;"),
        ({"quantized_snr_db": -2.5}, "here: b misses quantized_snr_db_min 20 with -2.5, by 22.5;"),
        ({"quantized_magspec_corr": 0.9}, "here: b misses quantized_magspec_corr_min 0.95 with 0.9, by 0.05;"),
        ({"quantized_logmel_mae": 1.25}, "here: b misses quantized_logmel_mae_max 1 with 1.25, by 0.25;"),
        ({"quantized_snr_db": float("nan")}, "here: b misses quantized_snr_db_min 20 with nan, by nan;"),
        ({"quantized_logmel_mae": float("nan")}, "here: b misses quantized_logmel_mae_max 1 with nan, by nan;"),
        ({"torch_snr_db": float("-inf")}, "here: b misses torch_snr_db_min 100 with -inf, by inf;"),
    ],
)
def test_a_missed_gate_names_the_utterance_and_the_margin(fault: dict[str, float], message: str) -> None:
    with pytest.raises(KokoroNpuError) as caught:
        check_gates(_table(**fault), GATES, "here")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_bound_itself_passes() -> None:
    check_gates(_table(quantized_snr_db=20.0, quantized_logmel_mae=1.0), GATES, "here")


def test_the_worst_utterance_is_the_one_named() -> None:
    table = _table(quantized_snr_db=15.0)
    table.loc[(table["variant"] == QUANTIZED) & (table["utterance"] == "c"), "snr_db"] = 11.0
    with pytest.raises(KokoroNpuError, match="here: c misses quantized_snr_db_min 20 with 11, by 9;"):
        check_gates(table, GATES, "here")


def test_a_fault_of_one_variant_is_not_held_against_another() -> None:
    check_gates(_table(fp32_logmel_mae=9.0, torch_magspec_corr=0.1), GATES, "here")


@pytest.mark.parametrize("gate", ["fp16_snr_db_min", "fp32_magspec_correlation_min", "fp32_snr_db", "snr_db_min"])
def test_a_gate_that_judges_nothing_does_not_pass(gate: str) -> None:
    with pytest.raises(KokoroNpuError, match=f"the gate {gate} judges nothing that was measured; did you mean fp32_"):
        check_gates(_table(), GATES | {gate: 0.5}, "here")


@pytest.mark.parametrize(
    ("gate", "bound", "figure"), [("fp32_magspec_corr_min", 0.9995, 0.999), ("quantized_band_db_max", 0.2, 0.3)]
)
def test_a_gate_needs_only_its_name_and_a_bound(gate: str, bound: float, figure: float) -> None:
    with pytest.raises(KokoroNpuError, match=f"here: a misses {gate} {bound:g} with {figure:g}"):
        check_gates(_table(), GATES | {gate: bound}, "here")
    check_gates(_table(), GATES | {gate: figure}, "here")


def test_a_nearly_empty_bucket_is_measured_and_only_its_float_decoders_are_gated() -> None:
    nearly_empty = _table(quantized_snr_db=11.0, quantized_fill=0.02, fp32_fill=0.02)
    check_gates(nearly_empty, GATES, "here", fill_min=0.05)
    assert parity.summarize(nearly_empty)["quantized_snr_db_min"] == 11.0
    with pytest.raises(KokoroNpuError, match="b misses fp32_snr_db_min"):
        check_gates(_table(fp32_snr_db=11.0, fp32_fill=0.02), GATES, "here", fill_min=0.05)


def test_without_a_filled_bucket_the_fullest_utterance_is_gated() -> None:
    table = _table(quantized_snr_db=11.0, quantized_fill=0.04).assign(fill=lambda t: t["fill"].clip(upper=0.04))
    table.loc[table["utterance"] != "b", "fill"] = 0.01
    with pytest.raises(KokoroNpuError, match="b misses quantized_snr_db_min"):
        check_gates(table, GATES, "here", fill_min=0.05)


def test_moved_durations_close_the_gate_without_any_other() -> None:
    table = _table(quantized_duration_mismatches=2)
    with pytest.raises(KokoroNpuError, match="here: durations of b differ from PyTorch's"):
        check_gates(table, {}, "here")


def test_the_summary_is_the_worst_of_each() -> None:
    table = _table(torch_snr_db=101.0, fp32_snr_db=90.0, quantized_snr_db=21.0, quantized_logmel_mae=0.9)
    assert parity.summarize(table) == {
        "utterances": 3,
        "torch_snr_db_min": 101.0,
        "fp32_snr_db_min": 90.0,
        "quantized_snr_db_min": 21.0,
        "quantized_waveform_corr_min": 1.0,
        "quantized_magspec_corr_min": 0.999,
        "quantized_logmel_mae_max": 0.9,
        "quantized_band_db_max": 0.3,
        "duration_mismatches": 0,
    }


def _recorded(model: KModel, frames: int, mismatches: int = 0) -> ReferenceUtterance:
    features = random_features(frames, seed=frames)
    return ReferenceUtterance(
        id=f"u{frames}",
        frames=frames,
        speed=1.0,
        duration_mismatches=mismatches,
        features=features,
        reference=reference.decode(model.decoder, features),
        tokens=np.zeros((1, 2), np.int64),
        voice=np.zeros((1, 256), np.float32),
    )


def test_evaluation_measures_every_variant_on_every_utterance(narrow: KModel) -> None:
    bucket = Bucket(12)
    recorded = [_recorded(narrow, 6), _recorded(narrow, 12, mismatches=1)]
    right = parity.torch_variant(StaticDecoder(narrow.decoder, bucket))

    def halved(inputs: dict[str, Array]) -> Array:
        return right(inputs) * np.float32(0.5)

    table = parity.evaluate(recorded, bucket, iter([(TORCH, right), (QUANTIZED, halved)]))
    assert list(zip(table["variant"], table["utterance"], table["fill"], strict=True)) == [
        ("torch", "u6", 0.5),
        ("torch", "u12", 1.0),
        ("quantized", "u6", 0.5),
        ("quantized", "u12", 1.0),
    ]
    exact, half = (table[table["variant"] == v] for v in (TORCH, QUANTIZED))
    assert (exact["snr_db"] > 100).all()
    assert half["snr_db"].to_numpy() == pytest.approx(20 * np.log10(2), abs=1e-3)
    assert half["waveform_corr"].to_numpy() == pytest.approx(1)
    assert half["logmel_mae"].to_numpy() == pytest.approx(20 * np.log10(2), abs=0.1)
    bands = [name for name in table.columns if re.fullmatch(r"band_\d+-\d+_db", name)]
    assert len(bands) == 6
    assert half[bands].to_numpy() == pytest.approx(-20 * np.log10(2), abs=1e-2)
    assert half["band_db"].to_numpy() == pytest.approx(20 * np.log10(2), abs=1e-2)
    assert table["duration_mismatches"].tolist() == [0, 1, 0, 1]


def test_what_fits_is_taken_whole(narrow: KModel) -> None:
    recorded = [_recorded(narrow, frames) for frames in (6, 12, 20)]
    assert [item.id for item in parity.fitting(recorded, Bucket(12), narrow)] == ["u6", "u12"]


def test_a_bucket_too_small_for_any_gets_the_middle_of_the_shortest(narrow: KModel) -> None:
    recorded = [_recorded(narrow, frames) for frames in (20, 12)]
    (cut,) = parity.fitting(recorded, Bucket(8), narrow)
    assert (cut.id, cut.frames) == ("u12[cut]", 8)
    assert cut.reference.shape == (8 * 600,)
    assert np.array_equal(cut.features["aligned_features"], recorded[1].features["aligned_features"][:, :, 2:10])
    run = parity.torch_variant(StaticDecoder(narrow.decoder, Bucket(8)))
    table = parity.evaluate([cut], Bucket(8), iter([(TORCH, run)]))
    check_gates(table, {"torch_snr_db_min": 100.0}, "parity-eval@8")
    assert table["fill"].tolist() == [1.0]
