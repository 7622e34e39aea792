"""What dvc repro leaves behind, of a narrow model and as far as speaking needs it."""

from pathlib import Path

from kokoro import KModel
from safetensors.numpy import save_file

from kokoro_npu.files import write_json, write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.weights import canonical, writing
from tests.tiny_model import tiny_config, tiny_voice

VOICE, BUCKETS = "jf_alpha", (40, 16)


def build(model: KModel, artifacts: Path) -> None:
    """Write to ``artifacts`` what `kokoro_npu.speech.models.models_of_build` reads."""
    write_onnx(artifacts / "cpu/kokoro_duration.onnx", export_duration(model))
    write_onnx(artifacts / "cpu/kokoro_prosody.onnx", export_prosody(model))
    for frames in BUCKETS:
        decoder = export_decoder(model, Bucket(frames))
        pack = artifacts / "decoder/kokoro_decoder.weights"
        opened = Pack.open(pack) if pack.exists() else Pack.write(decoder, pack)
        opened.save(decoder, pack.with_name(f"kokoro_decoder_{frames}.onnx"))
    (artifacts / "weights").mkdir()
    packs = writing.check_voices({VOICE: tiny_voice(1), "jm_kumo": tiny_voice(2)}, "here")
    save_file(packs, artifacts / "weights" / canonical.VOICES)
    write_json(artifacts / "weights" / canonical.CONFIG, tiny_config())
    write_json(artifacts / "weights" / canonical.SOURCE, {"source": "narrow", "dither": False})
