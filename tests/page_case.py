"""A small build's reports, tables and audio, written by hand, and a page made of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kokoro_npu.audio.wav import write_wav
from kokoro_npu.build.labels import FP32, QUANTIZED, REFERENCE, TORCH
from kokoro_npu.files import write_json
from kokoro_npu.page.page import write_page

FRAMES = [60, 400]
GATES = {
    "torch_snr_db_min": 100.0,
    "fp32_snr_db_min": 85.0,
    "quantized_snr_db_min": 20.0,
    "quantized_logmel_mae_max": 0.5,
}


SOUND = {"waveform_corr": 0.9995, "magspec_corr": 0.99991, "logmel_mae": 0.17, "band_db": 0.15}
"""Figures of every utterance of the quantized decoder, as the reports have them."""


def reports(**changes: Any) -> dict[str, dict[str, Any]]:
    """One bucket's reports by kind; a change ``kind__key=value`` sets one figure."""
    by_kind: dict[str, dict[str, Any]] = {
        "parity": {
            "backend": "onnxruntime-cpu",
            "torch_snr_db_min": 110.0,
            "fp32_snr_db_min": 105.0,
            "quantized_snr_db_min": 29.94,
            "quantized_waveform_corr_min": 0.9995,
            "quantized_magspec_corr_min": 0.99991,
            "quantized_logmel_mae_max": 0.17,
            "quantized_band_db_max": 0.15,
            "duration_mismatches": 0,
            "utterances": 2,
        },
        "audit": {
            "backend": "qnn-htp-offline",
            "blocking_ops": 0,
            "dynamic_dims": 0,
            "nodes": 50,
            "nodes_on_npu": 50,
            "fp16_nodes": 20,
            "fp16_nodes_on_npu": 20,
            "reason": "",
        },
        "compile": {
            "backend": "qnn-htp-offline",
            "compiled": True,
            "binary_bytes": 69_000_000,
            "peak_rss_bytes": 2_400_000_000,
            "seconds": 36.8,
            "soc_model": 57,
            "htp_arch": 75,
            "reason": "",
        },
        "profile": {
            "backend": "onnxruntime-cpu",
            "rtf_p50": 0.2,
            "quantized_rtf_p50": 0.3,
            "torch_rtf_p50": 0.25,
            "gmacs": 78.0,
            "weight_bytes": 213_000_000,
            "quantized_weight_bytes": 54_000_000,
            "peak_rss_bytes": 980_000_000,
            "quantized_peak_rss_bytes": 860_000_000,
        },
    }
    for name, value in changes.items():
        kind, key = name.split("__")
        by_kind[kind][key] = value
    return {kind: report | {"precision": "w8a16", "weights_source": "wheel"} for kind, report in by_kind.items()}


def write_reports(root: Path, frames: int, **changes: Any) -> None:
    """The reports of one bucket, as the stages leave them."""
    for kind, report in reports(**changes).items():
        write_json(root / "reports" / kind / f"{frames}.json", report)


def write_build(root: Path) -> None:
    """Reports, tables and audio of two buckets; the second is not compiled."""
    write_reports(root, 60)
    not_compiled = {"compile__compiled": False, "compile__binary_bytes": 0, "compile__reason": "too wide"}
    write_reports(root, 400, parity__quantized_snr_db_min=20.4, **not_compiled)
    summary = {"weights_source": "wheel", "compiled_buckets": 1, "versions": {"onnx": "1.23.2", "onnxruntime-qnn": ""}}
    write_json(root / "reports/summary.json", summary)
    for frames in FRAMES:
        for kind, ops in (("float", {"Conv": 5, "Sin": 2}), ("quantized", {"Conv": 5, "QuantizeLinear": 9})):
            rows = [(op, n, "full" if op == "Conv" else "not listed", n, n, "") for op, n in ops.items()]
            header = ["op", "nodes_in_file", "listed_status", "nodes_at_partition", "nodes_on_npu", "listed_source"]
            path = root / f"artifacts/audit/{frames}/{kind}_ops.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(rows, columns=header).to_csv(path, index=False)
        parity = root / "artifacts/parity"
        utterances = {"short": 40, "usual": 60} | ({"long": 300} if frames == 400 else {})
        table = []
        for place, (utterance, length) in enumerate(utterances.items()):
            time = np.arange(600 * length) / 24_000
            clean = (0.4 * np.sin(2 * np.pi * 220 * (1 + time) * time)).astype(np.float32)
            noise = np.random.default_rng(place).normal(0, 0.01, len(clean)).astype(np.float32)
            for variant, audio in {REFERENCE: clean, TORCH: clean, FP32: clean, QUANTIZED: clean + noise}.items():
                write_wav(parity / str(frames) / f"{utterance}.{variant}.wav", audio)
                # the shortest is worst in the largest bucket, as in the real build
                snr = 20.4 if (frames, utterance) == (400, "short") else 29.94
                row = {"utterance": utterance, "frames": length, "fill": length / frames, "variant": variant}
                if variant == QUANTIZED:
                    table.append(row | SOUND | {"snr_db": snr})
                elif variant != REFERENCE:
                    table.append(row | dict.fromkeys(SOUND, 1.0) | {"snr_db": 110.0 if variant == TORCH else 105.0})
        pd.DataFrame(table).to_csv(parity / f"{frames}.csv", index=False)
    why = root / "artifacts/compiled/400/why.txt"
    why.parent.mkdir(parents=True, exist_ok=True)
    why.write_text("Not compiled: too wide: tensor <noise> is 48008 wide\n")


def measured(root: Path, frames: int, utterance: str, variant: str, **figures: float) -> None:
    """Change one row of a bucket's table."""
    path = root / f"artifacts/parity/{frames}.csv"
    table = pd.read_csv(path)
    table.loc[(table["utterance"] == utterance) & (table["variant"] == variant), list(figures)] = list(figures.values())
    table.to_csv(path, index=False)


def make_page(
    root: Path,
    revision: str = "HEAD",
    frames: list[int] = FRAMES,
    gates: Mapping[str, float] = GATES,
    fill_min: float = 0.05,
) -> str:
    """Write the page of `write_build`; its HTML."""
    write_page(root, frames, "w8a16", gates, fill_min, revision)
    return (root / "reports/index.html").read_text(encoding="utf-8")
