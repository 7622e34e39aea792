"""The command `kokoro-npu say`."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner, Result

from kokoro_npu.build.labels import FP32
from kokoro_npu.cli.main import cli
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.speech.models import models_of_build
from kokoro_npu.speech.synthesizer import Synthesizer
from tests.narrow_build import VOICE


@pytest.fixture
def artifacts(narrow_build: Path) -> Path:
    return narrow_build


def say(artifacts: Path, *arguments: str, stdin: bytes | None = None) -> Result:
    command = ["say", "--artifacts", str(artifacts), "--threads", "1", *arguments]
    return CliRunner().invoke(cli, command, input=None if stdin is None else io.BytesIO(stdin))


def error(result: Result) -> str:
    assert isinstance(result.exception, KokoroNpuError), result.output
    return str(result.exception)


def truth(artifacts: Path, paragraphs: list[str], voice: str = VOICE, speed: float = 1.0, seed: int = 0) -> np.ndarray:
    """What the library says, as 16-bit samples."""
    speech = Synthesizer(models_of_build(artifacts, FP32), 1).speak(paragraphs, voice, speed, seed)
    buffer = io.BytesIO()
    soundfile.write(buffer, np.concatenate([part.audio for part in speech]), 24_000, "PCM_16", format="WAV")
    buffer.seek(0)
    return soundfile.read(buffer, dtype="int16")[0]


def test_phonemes_to_a_wav_file(artifacts: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out.wav"
    result = say(artifacts, "abc", "def.", "--phonemes", "-o", str(out), "--voice", "jm_kumo", "--speed", "1.5")
    assert result.exit_code == 0, result.output
    audio, rate = soundfile.read(out, dtype="int16")
    assert (rate, soundfile.info(out).subtype, soundfile.info(out).channels) == (24_000, "PCM_16", 1)
    assert np.array_equal(audio, truth(artifacts, ["abc def."], "jm_kumo", 1.5))
    assert "in 1 utterance, voice jm_kumo, buckets " in result.stderr
    assert [path.name for path in out.parent.iterdir()] == ["out.wav"]


def test_the_voice_defaults_to_the_first_and_the_seed_matters(artifacts: Path, tmp_path: Path) -> None:
    outs = {}
    for seed in ("0", "1"):
        out = tmp_path / f"{seed}.wav"
        assert say(artifacts, "ab.", "--phonemes", "-o", str(out), "--seed", seed).exit_code == 0
        outs[seed] = soundfile.read(out, dtype="int16")[0]
    assert np.array_equal(outs["0"], truth(artifacts, ["ab."]))
    assert not np.array_equal(outs["0"], outs["1"])


def test_files_and_stdin_with_paragraphs(artifacts: Path, tmp_path: Path) -> None:
    text = "ab\ncd.\n\nef gh.\n"
    (tmp_path / "text.txt").write_text("\ufeff" + text, encoding="utf-8")
    expected = truth(artifacts, ["ab cd.", "ef gh."])
    for name, stdin in ((str(tmp_path / "text.txt"), None), ("-", text.encode())):
        out = tmp_path / "out.wav"
        result = say(artifacts, "-i", name, "--phonemes", "-o", str(out), stdin=stdin)
        assert result.exit_code == 0, result.output
        assert np.array_equal(soundfile.read(out, dtype="int16")[0], expected)


PLAYER = """\
#!{python}
import pathlib, sys
pathlib.Path({out!r}).write_bytes(sys.stdin.buffer.read())
sys.exit({status})
"""


def player(directory: Path, status: int) -> Path:
    """An `aplay` that keeps what it is given."""
    script, out = directory / "aplay", directory / "played.raw"
    script.write_text(PLAYER.format(python=sys.executable, out=str(out), status=status))
    script.chmod(0o755)
    return out


def test_play_gives_the_same_samples_to_a_player(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = player(tmp_path, 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = say(artifacts, "ab.", "--phonemes", "--play")
    assert result.exit_code == 0, result.output
    samples = np.frombuffer(played.read_bytes(), "<i2").astype(int)
    assert np.abs(samples - truth(artifacts, ["ab."])).max() <= 2  # libsndfile scales by 32768 and rounds down


def test_a_player_that_fails_or_is_not_there_is_one_line(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--play needs one of paplay, aplay" in error(say(artifacts, "ab.", "--phonemes", "--play"))
    player(tmp_path, 3)
    assert "aplay failed with status 3" in error(say(artifacts, "ab.", "--phonemes", "--play"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ab."], "say where the speech goes"),
        (["-o", "x.wav"], "there is nothing to say: give a text"),
        (["-o", "x.wav", "--phonemes", "ab", "-i", "-"], "give a text or -i, not both"),
        (["-o", "x.wav", "--phonemes", "abz"], "'z' .* is not in Kokoro's phoneme alphabet"),
        (["-o", "x.wav", "--phonemes", "ab", "--voice", "jm_kuno"], "did you mean jm_kumo"),
        (["-o", "x.wav", "--phonemes", "ab", "--speed", "9"], "speed 9 is out of range"),
        (["-o", "x.wav", "ab", "--language", "ja"], "language 'ja' has no front end here"),
        (["-o", "x.wav", "始発は何時ですか"], "'始' is a CJK letter, .*--phonemes"),
        (["-o", "x.wav", "...", "--language", "en-us"], "nothing to say"),
        (["-o", "x.wav", "--phonemes", "ab", "--precision", "quantized"], "is not there: build it first"),
        (["-o", "x.wav", "--phonemes", "ab", "--npu"], "--npu needs --bundle, and a Snapdragon"),
        (["-o", "x.wav", "--phonemes", "ab", "--bundle", "nosuch"], "nosuch is no SDK bundle"),
    ],
)
def test_what_cannot_be_said_is_one_line_and_leaves_nothing(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KokoroNpuError, match=message):
        raise say(artifacts, *arguments).exception or AssertionError("it was said")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_one_line(artifacts: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = say(artifacts, "ab.", "--phonemes", "-o", str(tmp_path / "file/x.wav"))
    assert "file/x.wav cannot be written: " in error(result)


def test_input_that_is_no_utf8_or_not_there_is_one_line(artifacts: Path, tmp_path: Path) -> None:
    result = say(artifacts, "-i", "-", "-o", str(tmp_path / "x.wav"), stdin=b"caf\xe9")
    assert error(result) == "the input is not UTF-8 text (byte 3)"
    result = say(artifacts, "-i", "nosuch.txt", "-o", str(tmp_path / "x.wav"))
    assert result.exit_code == 2
    assert "'nosuch.txt': No such file or directory" in result.output


def test_a_typing_mistake_costs_no_import_of_torch() -> None:
    code = "import sys; import kokoro_npu.cli.say; sys.exit('torch' in sys.modules or 'spacy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
