"""The model card: ``README.md`` of a bundle."""

from collections.abc import Mapping, Sequence
from typing import Any

from kokoro_npu.geometry import SAMPLE_RATE, SAMPLES_PER_FRAME, Bucket
from kokoro_npu.sdk.manifest import Entry

_CARD = """\
# Kokoro-82M for NPUs: SDK bundle

Text-to-speech, {sample_rate} Hz mono. Kokoro-82M v1.0 by hexgrad (Apache-2.0), split into two models for the CPU and
static decoders for an NPU. Weights: source `{source}`. Decoders: {precision}. Context binaries: {chip} ({target}, SoC
model {soc_model}, Hexagon V{htp_arch}){compiler}.

`manifest.json` holds everything that a program needs, and the SHA-256 of every file; `manifest.schema.json` is its
schema. `kokoro-npu check-bundle DIRECTORY` checks a bundle. `reference/` holds the host's steps in Kotlin, with test
vectors.

## Buckets

| frames | seconds | context binary |
| --- | --- | --- |
{buckets}

One frame is {samples_per_frame} samples.

## Voices

{voices}. A file holds 510 rows of 256 float32 (little-endian). An utterance of n phonemes takes row n − 1: its first
half is the decoder's style, its second the prosody's.

## Quality

Worst utterance of the evaluation corpus against the unpadded PyTorch model with the same source. The backend is what
ran to measure it, not the NPU.

| frames | utterances | fp32 SNR | {precision} SNR | backend |
| --- | --- | --- | --- | --- |
{quality}

## Use and limits

For speech in products, as Kokoro's licence allows. The voices are synthetic: say so where listeners may take them for a
person. Phonemes come from a front end that is not in this bundle; symbols outside `phonemes.json` cannot be spoken. A
very short utterance in a long bucket loses precision when quantized: choose the smallest bucket that holds it.
"""


def model_card(facts: Mapping[str, Any], buckets: Sequence[Entry], voices: Sequence[str]) -> str:
    """Markdown.

    Args:
        facts: of the manifest (`kokoro_npu.sdk.package`).
        buckets: of the bundle.
        voices: names.
    """
    target, qairt = facts["target"], facts["target"]["qairt"]
    return _CARD.format(
        sample_rate=SAMPLE_RATE,
        samples_per_frame=SAMPLES_PER_FRAME,
        source=facts["model"]["weights"]["source"],
        precision=facts["precision"],
        chip=target["chip"],
        target=target["name"],
        soc_model=target["soc_model"],
        htp_arch=target["htp_arch"],
        compiler=f", QAIRT {qairt}" if qairt else ": none in this bundle",
        buckets="\n".join(_bucket(entry) for entry in buckets),
        voices=", ".join(f"`{voice}`" for voice in voices),
        quality="\n".join(_figures(row) for row in facts["quality"]),
    )


def _bucket(entry: Entry) -> str:
    seconds = Bucket(entry.frames).seconds
    return f"| {entry.frames} | {seconds:g} | {entry.context_binary or f'none: {entry.not_compiled}'} |"


def _figures(row: Mapping[str, Any]) -> str:
    floats = " | ".join(_db(row[key]) for key in ("fp32_snr_db_min", "quantized_snr_db_min"))
    return f"| {row['frames']} | {row['utterances']} | {floats} | {row['backend']} |"


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} dB"
