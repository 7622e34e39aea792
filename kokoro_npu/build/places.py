"""Where a build keeps its files: the names of the models, and the places of artifacts and reports.

Places are relative to the directory in which the stages run. dvc.yaml names them again, because a plan is read without
running anything.
"""

from pathlib import Path

ARTIFACTS = Path("artifacts")
"""What the stages make for each other; cached by DVC, not committed."""
REPORTS = Path("reports")
"""What reviewers read; small and committed."""

DOWNLOADS = ARTIFACTS / "downloads"
"""Verified downloads, which outlive a rebuild; no stage owns them."""
WEIGHTS = ARTIFACTS / "weights"
"""The canonical weight files (:mod:`kokoro_npu.weights.canonical`)."""
CPU = ARTIFACTS / "cpu"
"""The models that run before the decoder."""
REFERENCE_SET = ARTIFACTS / "reference_set"
DECODERS = ARTIFACTS / "decoder"
"""The float decoders, and the weights that they share."""
QUANTIZED = ARTIFACTS / "quantized"
"""The decoders that ship, the weights that they share, and their encodings."""
AUDIT = ARTIFACTS / "audit"
COMPILED = ARTIFACTS / "compiled"
SHARED = ARTIFACTS / "shared"
"""The context binary of all buckets."""
CHIPS = ARTIFACTS / "chips"
"""The context binary of all buckets for each further chip."""
LONG = ARTIFACTS / "long"
"""Context binaries of buckets that the compiler takes too long for."""
EMULATION = ARTIFACTS / "emulation"
"""What runs in the emulation of HTP, and what came of it."""
EMULATION_CACHE = EMULATION / "cache"
"""What was measured, by content; no stage owns it."""
EMULATED_FLOAT, EMULATED_QUANTIZED = (EMULATION / "decoder" / f"{form}.onnx" for form in ("float", "quantized"))
"""The decoder of the small bucket, weights inside."""
PARITY = ARTIFACTS / "parity"
PRECISIONS = ARTIFACTS / "precisions"
"""The evaluation utterances in precisions beside the build's own."""
LISTENING = ARTIFACTS / "listening"
PROFILE = ARTIFACTS / "profile"
BUNDLE = ARTIFACTS / "sdk"
SPEECH = ARTIFACTS / "speech"
NNAPI = ARTIFACTS / "nnapi"
SENSITIVITY = ARTIFACTS / "sensitivity"
SENSITIVITY_TABLE = REPORTS / "sensitivity" / "sensitivity.csv"
VARIANTS = ARTIFACTS / "variants"
"""Whole models in other precisions, a directory each."""
MONOLITH = DOWNLOADS / "kokoro-int8.onnx"
"""The public int8 model, if the weights came from it."""
RUNTIMES = REPORTS / "runtimes"
"""A directory of reports for each further runtime; the files of this stem are the table over them."""

DURATION_MODEL = "kokoro_duration.onnx"
PROSODY_MODEL = "kokoro_prosody.onnx"
SHARED_WEIGHTS = "kokoro_decoder.weights"
"""The one weight file beside the decoders that point into it."""
ENCODINGS = "encodings.json"
BUCKET_NAMES = "bucket.json"
"""What a bucket is called in the binary that all share."""
WHY = "why.txt"
"""Why a stage could not make what its directory is for."""

_STEM = "kokoro_decoder_"
_CONTEXT = "_ctx.onnx"


def decoder(directory: Path, frames: int, suffix: str = ".onnx") -> Path:
    """A bucket's decoder, such as ``artifacts/decoder/kokoro_decoder_400.onnx``."""
    return directory / f"{_STEM}{frames}{suffix}"


def decoders(directory: Path) -> dict[int, Path]:
    """The ONNX decoders that a directory holds, frames to path, smallest first."""
    found = {path.stem.removeprefix(_STEM): path for path in directory.glob(f"{_STEM}*.onnx")}
    return {int(frames): found[frames] for frames in sorted(filter(str.isdecimal, found), key=int)}


def context_model(directory: Path, model: Path) -> Path:
    """The ONNX file beside a context binary, which names it and the graph of ``model`` in it."""
    return directory / f"{model.stem}{_CONTEXT}"


def is_context_model(path: Path) -> bool:
    """Whether a model holds nothing but the name of a context binary."""
    return path.name.endswith(_CONTEXT)
