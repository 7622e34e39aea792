"""``kokoro-npu say``: text, or phonemes, to a WAV file or the loudspeaker."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import click
import numpy as np
import soundfile

from kokoro_npu.audio.wav import write_wav
from kokoro_npu.build.labels import FP32, QUANTIZED
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import SAMPLE_RATE
from kokoro_npu.machine import THREADS
from kokoro_npu.speech.models import DIRECTORIES, Models, models_of_build
from kokoro_npu.speech.npu import is_emulated
from kokoro_npu.speech.phonemizer import LANGUAGES, Phonemizer, paragraphs
from kokoro_npu.speech.sound import loudspeaker
from kokoro_npu.speech.synthesizer import SpokenUtterance, Synthesizer, check

DEFAULT_VOICE = "af_heart"


@click.command()
@click.argument("text", nargs=-1)
@click.option("-i", "--input", "source", type=click.File("rb"), help="Read the text from a file, or - (stdin).")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="WAV file, 24 kHz, 16 bit.")
@click.option("--play", is_flag=True, help="Play it while it is made.")
@click.option("--voice", help=f"Name of a voice. [default: {DEFAULT_VOICE}, or the first that the weights have]")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Divides the durations; 0.25 to 4.")
@click.option("--language", default="en-us", show_default=True, help=f"Of the text: {', '.join(LANGUAGES)}.")
@click.option("--phonemes", is_flag=True, help="The text is phonemes already (docs/say.md).")
@click.option(
    "--precision", type=click.Choice(list(DIRECTORIES)), help=f"Decoder. [default: {FP32}; of a bundle: {QUANTIZED}]"
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the source noise.")
@click.option("--artifacts", default="artifacts", show_default=True, help="The build to speak with.")
@click.option("--bundle", help="Speak with an SDK bundle instead, such as artifacts/sdk.")
@click.option("--npu", is_flag=True, help="Use the bundle's context binaries, on a Snapdragon with onnxruntime-qnn.")
@click.option("--threads", type=click.IntRange(1), default=THREADS, show_default=True, help="Of ONNX Runtime.")
def command(
    text: tuple[str, ...],
    source: BinaryIO | None,
    output: Path | None,
    play: bool,
    voice: str | None,
    speed: float,
    language: str,
    phonemes: bool,
    precision: str | None,
    seed: int,
    artifacts: str,
    bundle: str | None,
    npu: bool,
    threads: int,
) -> None:
    """Speak TEXT, offline, with the split model on ONNX Runtime.

    kokoro-npu say "Hello world." -o hello.wav
    """
    if output is None and not play:
        raise KokoroNpuError("say where the speech goes: -o FILE.wav, or --play")
    models = _models(artifacts, bundle, precision, npu)
    voice = voice or (DEFAULT_VOICE if DEFAULT_VOICE in models.voices else min(models.voices))
    parts = list(paragraphs(_read(text, source)))
    if not parts:
        raise KokoroNpuError("there is nothing to say: give a text, or -i FILE")
    convert = _one_line if phonemes else Phonemizer(models.vocab, language)
    # Everything is checked before a model is loaded: a typing mistake costs no time.
    spoken_parts = [convert(part) for part in parts]
    for part in spoken_parts:
        check(models, part, voice, speed)
    synthesizer = Synthesizer(models, threads)

    with loudspeaker() if play else nullcontext() as sound:
        started = time.perf_counter()
        first = 0.0
        spoken: list[SpokenUtterance] = []
        for utterance in synthesizer.speak(spoken_parts, voice, speed, seed, prompt=play):
            first = first or time.perf_counter() - started
            if sound:
                sound(utterance.audio)
            spoken.append(utterance)
        seconds = time.perf_counter() - started
    audio = np.concatenate([utterance.audio for utterance in spoken])
    length = len(audio) / SAMPLE_RATE
    if output:
        try:
            write_wav(output, audio)
        except (OSError, soundfile.SoundFileError) as error:
            raise KokoroNpuError(f"{output} cannot be written: {error}") from error
    buckets = sorted({utterance.bucket.frames for utterance in spoken})
    click.echo(
        f"{output or 'played'}: {length:.1f} s in {len(spoken)} utterance{'s' * (len(spoken) > 1)}, voice {voice}, "
        f"buckets {', '.join(map(str, buckets))}; first sound after {first:.1f} s, all after {seconds:.1f} s",
        err=True,
    )


def _models(artifacts: str, bundle: str | None, precision: str | None, npu: bool) -> Models:
    if npu and (bundle is None or is_emulated()):
        raise KokoroNpuError("--npu needs --bundle, and a Snapdragon: on this machine leave it out")
    if bundle is None:
        return models_of_build(artifacts, precision or FP32)
    from kokoro_npu.sdk.bundle import open_bundle

    return open_bundle(bundle).models(precision or QUANTIZED, npu)


def _read(text: tuple[str, ...], source: BinaryIO | None) -> str:
    if source is None:
        return " ".join(text)
    if text:
        raise KokoroNpuError("give a text or -i, not both")
    try:
        return source.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KokoroNpuError(f"the input is not UTF-8 text (byte {error.start})") from error


def _one_line(phonemes: str) -> str:
    return " ".join(phonemes.split())
