"""The duration and prosody models as ONNX files, dynamic in time."""

from pathlib import Path

import onnx
import torch
from kokoro import KModel

from kokoro_npu.build import places
from kokoro_npu.geometry import PROSODY_DIM, SAMPLES_PER_FRAME, STYLE_DIM, VOICE_DIM
from kokoro_npu.model import duration, prosody
from kokoro_npu.model.tracing import DEFAULT_OPSET, export_module, finish

_ANY_LENGTH = 16
"""Of the axes that stay dynamic."""


def export_duration(model: KModel, opset: int = DEFAULT_OPSET) -> onnx.ModelProto:
    """Export the duration model, dynamic in its tokens (at most 512); see :class:`duration.DurationModel`."""
    inputs = {
        "tokens": torch.ones(1, _ANY_LENGTH, dtype=torch.int64),
        "token_length": torch.tensor([_ANY_LENGTH]),
        "voice_embedding": torch.zeros(1, VOICE_DIM),
        "speed": torch.ones(1),
    }
    module = duration.DurationModel(model)
    exported = export_module(module, inputs, duration.OUTPUT_NAMES, opset, duration.DYNAMIC_AXES)
    return finish(exported, Path(places.DURATION_MODEL).stem)


def export_prosody(model: KModel, opset: int = DEFAULT_OPSET) -> onnx.ModelProto:
    """Export the prosody model, dynamic in its frames; see :class:`prosody.ProsodyModel`."""
    inputs = {
        "aligned_prosody": torch.zeros(1, PROSODY_DIM, _ANY_LENGTH),
        "prosody_style": torch.zeros(1, STYLE_DIM),
        "source_noise": torch.zeros(1, 1, SAMPLES_PER_FRAME * _ANY_LENGTH),
    }
    exported = export_module(prosody.ProsodyModel(model), inputs, prosody.OUTPUT_NAMES, opset, prosody.DYNAMIC_AXES)
    return finish(exported, Path(places.PROSODY_MODEL).stem)
