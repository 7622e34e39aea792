"""``kokoro-npu verify``: a text by a model and by PyTorch, as two WAV files and the metrics."""

from pathlib import Path

import click

from kokoro_npu.build import places
from kokoro_npu.cli._tables import console, table
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import SAMPLE_RATE

_FILES = ("torch_output.wav", "onnx_output.wav")


@click.command(short_help="Speak a text with a model and with PyTorch.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--text", help="What is said, in American English.")
@click.option("--phonemes", help="What is said, in Kokoro's alphabet, in place of --text.")
@click.option("--voice", required=True, help="A voice of the weights.")
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the source's noise.")
@click.option("--weights", type=click.Path(path_type=Path), default=places.WEIGHTS, show_default=True)
@click.option("--cpu", type=click.Path(path_type=Path), default=places.CPU, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Directory of the WAV files.")
def command(
    model: Path,
    text: str | None,
    phonemes: str | None,
    voice: str,
    speed: float,
    seed: int,
    weights: Path,
    cpu: Path,
    out: Path,
) -> None:
    """Speak a text with the ONNX file MODEL (a decoder, or the int8 monolith) and with upstream's PyTorch model.

    Writes torch_output.wav and onnx_output.wav, and prints how far they are from each other.
    """
    if (text is None) == (phonemes is None):
        raise KokoroNpuError("give either --text or --phonemes")
    # Imported here: they load torch, and --help should not.
    from kokoro_npu.audio.wav import write_wav
    from kokoro_npu.graphs.reading import read_graph
    from kokoro_npu.host.frontend import Frontend
    from kokoro_npu.host.tokens import tokenize, voice_row
    from kokoro_npu.speech.phonemizer import Phonemizer
    from kokoro_npu.variants.verification import verify
    from kokoro_npu.weights.canonical import FILES, load_config, load_voices
    from kokoro_npu.weights.kmodel import load_kmodel

    read_graph(model)  # before anything slow
    if missing := [name for name in FILES if not (weights / name).is_file()]:
        raise KokoroNpuError(f"{weights} holds no {missing[0]}: run the stage `fetch-weights`, or give --weights")
    vocab = load_config(weights)["vocab"]
    symbols = phonemes if phonemes is not None else Phonemizer(vocab)(text or "")
    tokens = tokenize(symbols, vocab, "the text")
    row = voice_row(load_voices(weights), voice, symbols)
    duration, prosody = cpu / places.DURATION_MODEL, cpu / places.PROSODY_MODEL
    for path in (duration, prosody):
        read_graph(path)
    found = verify(model, tokens, row, speed, seed, Frontend(duration, prosody), load_kmodel(weights))
    for name, audio in zip(_FILES, (found.reference, found.audio), strict=True):
        write_wav(out / name, audio)
    rows = [(name, f"{value:.4f}") for name, value in found.figures().items()]
    rows += [("tokens of another duration", str(found.moved_tokens)), ("by frames", str(found.moved_frames))]
    printer = console()
    title = f"{model.name} ({found.kind}), {len(found.reference) / SAMPLE_RATE:.2f} s, voice {voice}"
    printer.print(table(title, ("", "against PyTorch"), rows))
    printer.print(f"Phonemes: {symbols}", markup=False)
    printer.print(f"Wrote {out / _FILES[0]} and {out / _FILES[1]}", markup=False)
