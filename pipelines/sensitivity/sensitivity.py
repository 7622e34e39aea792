"""Stage sensitivity: each part of the three models quantized alone, and what that does to the sound."""

import onnx
import pandas as pd
from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.corpus.reference_set import CALIBRATION, load_reference_set
from kokoro_npu.files import sha256
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.sensitivity.analysis import analyze, summarize
from kokoro_npu.sensitivity.bench import Bench, choose_windows
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write the table and summary.json to reports/sensitivity; artifacts/sensitivity/partial.json survives a kill."""
    frames, bits = cfg.sensitivity.frames, cfg.sensitivity.weight_bits
    recorded = list(load_reference_set(places.REFERENCE_SET, CALIBRATION))
    decoder = export_decoder(load_kmodel(places.WEIGHTS), Bucket(frames), cfg.export.opset)
    duration, prosody = places.CPU / places.DURATION_MODEL, places.CPU / places.PROSODY_MODEL
    windows = choose_windows(recorded, frames, cfg.sensitivity.windows)
    bench = Bench(onnx.load(duration), onnx.load(prosody), decoder, windows, frames, bits)
    models = (places.WEIGHTS / "model.safetensors", duration, prosody)
    identity = " ".join([str(sorted(plain(cfg.sensitivity).items())), *map(sha256, models)])
    table = analyze(list(bench.parts()), places.SENSITIVITY / "partial.json", identity)
    write_table(places.SENSITIVITY_TABLE, pd.DataFrame(table))
    summary = summarize(table, bench.floor(), cfg.derive.thresholds.weights_snr_db)
    path = places.SENSITIVITY_TABLE.with_name("summary.json")
    write_report(path, summary, f"one part at w{bits} or a8", "onnxruntime-cpu")


if __name__ == "__main__":
    main()
