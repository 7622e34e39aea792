"""Stage trial-quantization: each part of the three models quantized alone, and what that does to the sound."""

from pathlib import Path

import onnx
from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import load_reference_set
from kokoro_npu.corpus.utterances import CALIBRATION
from kokoro_npu.files import sha256, write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.sensitivity.analysis import run_trials, summarize
from kokoro_npu.sensitivity.bench import TrialBench, choose_windows
from kokoro_npu.sensitivity.table import write_trials
from kokoro_npu.versions import provenance
from kokoro_npu.weights.canonical import source_label
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage

WEIGHTS, CPU, REPORTS = Path("artifacts/weights"), Path("artifacts/cpu"), Path("reports/trials")
PARTIAL = Path("artifacts/trials/partial.csv")


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/trials/{trials.csv,summary.json}; artifacts/trials/partial.csv survives a kill."""
    trials = cfg.trials
    recorded = choose_windows(
        list(load_reference_set(places.REFERENCE_SET, CALIBRATION)), trials.frames, trials.windows
    )
    decoder = export_decoder(load_kmodel(WEIGHTS), Bucket(trials.frames), cfg.export.opset)
    duration, prosody = (CPU / f"kokoro_{name}.onnx" for name in ("duration", "prosody"))
    bench = TrialBench(onnx.load(duration), onnx.load(prosody), decoder, recorded, trials.frames, trials.weight_bits)
    files = [WEIGHTS / "model.safetensors", duration, prosody]
    identity = " ".join([str(sorted(plain(trials).items())), *(sha256(path) for path in files)])
    results = run_trials(list(bench.trials()), PARTIAL, identity)
    write_trials(results, REPORTS / "trials.csv")
    made_by = provenance(source_label(WEIGHTS), f"one part at w{trials.weight_bits} or a8", "onnxruntime-cpu")
    report = summarize(results, bench.floor(), cfg.derive.thresholds.weights_snr_db)
    write_json(REPORTS / "summary.json", report | made_by)


if __name__ == "__main__":
    main()
