"""The host's steps: repeat, choose, pad, trim, cut."""

import numpy as np
import pytest
import torch

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import GENERATOR_RATE, SAMPLES_PER_FRAME, Bucket, source_steps
from kokoro_npu.host.steps import align, crop, frame_ratio, pad_to_bucket, select_bucket, trim
from kokoro_npu.host.tokens import tokenize, voice_row
from tests.narrow_model import random_features


@pytest.mark.parametrize("durations", [[1, 1, 1], [3, 0, 2], [1, 7, 50], [0, 0, 4]])
def test_align_is_upstreams_matrix_product(durations: list[int]) -> None:
    """Upstream builds a matrix of ones, [S, L], and multiplies; a token of 0 frames has an empty row."""
    features = np.random.default_rng(0).standard_normal((1, 3, 5)).astype(np.float32)
    indices = torch.repeat_interleave(torch.arange(3), torch.tensor(durations))
    matrix = torch.zeros(3, len(indices))
    matrix[indices, torch.arange(len(indices))] = 1
    truth = torch.from_numpy(features).transpose(1, 2) @ matrix
    aligned = align(features, np.array([durations], np.int32))
    assert np.array_equal(aligned, truth.numpy())
    assert aligned.flags.c_contiguous
    assert aligned.dtype == np.float32


def test_frame_ratio_is_padded_over_real() -> None:
    ratio = frame_ratio(30, Bucket(120))
    steps = (120 * 120 + 8) / (120 * 30 + 1)
    assert ratio.shape == Bucket(120).input_shapes["frame_ratio"]
    assert ratio.dtype == np.float32
    expected = [4, 2, 0.5, steps, steps**0.5, steps**-0.5]
    np.testing.assert_allclose(ratio[0], expected, rtol=1e-7)


@pytest.mark.parametrize(("frames", "chosen"), [(1, 120), (120, 120), (121, 400), (1800, 1800)])
def test_the_smallest_bucket_that_holds_it(frames: int, chosen: int) -> None:
    assert select_bucket(frames, [1800, 120, 400]) == Bucket(chosen)


def test_no_bucket_is_one_line() -> None:
    with pytest.raises(KokoroNpuError, match=r"1801 frames \(45.0 s\) do not fit any bucket \[120, 1800\]: split"):
        select_bucket(1801, [1800, 120])


def test_padding_is_zero_and_what_is_real_is_kept() -> None:
    features, bucket = random_features(10, seed=0), Bucket(16)
    padded = pad_to_bucket(features, bucket)
    assert {name: value.shape for name, value in padded.items()} == bucket.input_shapes
    assert {value.dtype for value in padded.values()} == {np.dtype(np.float32)}
    real = {"aligned_features": 10, "f0_contour": 20, "energy": 20, "noise": source_steps(10), "frame_mask": 10}
    for name, columns in real.items():
        assert not padded[name][..., columns:].any(), name
    for name in ("aligned_features", "f0_contour", "energy", "noise"):
        assert np.array_equal(padded[name][..., : real[name]], features[name][..., : real[name]]), name
    assert np.array_equal(padded["ref_style"], features["ref_style"])
    assert padded["frame_mask"][0, 0, :10].tolist() == [1.0] * 10
    assert np.array_equal(padded["frame_ratio"], frame_ratio(10, bucket))


def test_too_long_is_one_line() -> None:
    with pytest.raises(KokoroNpuError, match="17 frames do not fit the bucket of 16"):
        pad_to_bucket(random_features(17, seed=0), Bucket(16))


def test_trim_keeps_the_real_samples() -> None:
    audio = np.arange(16 * SAMPLES_PER_FRAME, dtype=np.float32)[None]
    assert trim(audio, 16).shape == (9600,)
    assert trim(audio, 3).tolist() == list(range(1800))


@pytest.mark.parametrize(("start", "frames"), [(0, 4), (3, 5), (8, 2), (0, 10)])
def test_crop_is_a_window_of_every_rate(start: int, frames: int) -> None:
    features = random_features(10, seed=1)
    cut = crop(features, frames, start)
    assert {name: value.shape for name, value in cut.items()} == {
        name: shape for name, shape in Bucket(frames).input_shapes.items() if name not in ("frame_mask", "frame_ratio")
    }
    assert np.array_equal(cut["aligned_features"][..., 0], features["aligned_features"][..., start])
    assert np.array_equal(cut["f0_contour"][0, 0], features["f0_contour"][0, 0, 2 * start : 2 * (start + frames)])
    assert np.array_equal(cut["energy"][0, 0], features["energy"][0, 0, 2 * start : 2 * (start + frames)])
    first = GENERATOR_RATE * start
    steps = source_steps(frames)
    assert np.array_equal(cut["noise"][..., :steps], features["noise"][..., first : first + steps])
    assert not cut["noise"][..., steps:].any()


@pytest.mark.parametrize("frames", [1, 120, 400, 512, 1536, 1800, 6144])
def test_geometry_is_that_of_the_model(frames: int) -> None:
    bucket = Bucket(frames)
    assert bucket.seconds == frames / 40
    assert bucket.samples == 24_000 * frames // 40
    assert bucket.f0_steps == 2 * frames
    assert bucket.noise_steps % 8 == 0
    assert source_steps(frames) == bucket.noise_steps - 7 == bucket.samples // 5 + 1


VOCAB = {"a": 3, "b": 5, " ": 16}


def test_tokens_stand_between_boundaries() -> None:
    assert tokenize("ab a", VOCAB, "here").tolist() == [[0, 3, 5, 16, 3, 0]]
    assert tokenize("a" * 510, VOCAB, "here").shape == (1, 512)


@pytest.mark.parametrize(
    ("phonemes", "message"),
    [
        ("abq", "here: 'q' is not a symbol"),
        ("", "here: 0 phonemes"),
        ("a" * 511, "here: 511 phonemes; between 1 and 510 fit"),
    ],
)
def test_phonemes_that_cannot_be_said(phonemes: str, message: str) -> None:
    with pytest.raises(KokoroNpuError, match=message):
        tokenize(phonemes, VOCAB, "here")


def test_the_voices_row_is_that_of_the_length_less_one() -> None:
    pack = np.arange(510 * 256, dtype=np.float32).reshape(510, 256)
    for count in (1, 7, 510):
        row = voice_row({"jf_alpha": pack}, "jf_alpha", "a" * count)
        assert row.shape == (1, 256)
        assert np.array_equal(row[0], pack[count - 1])
    with pytest.raises(KokoroNpuError, match="'jf_alhpa' is not among the weights' voices; did you mean jf_alpha"):
        voice_row({"jf_alpha": pack}, "jf_alhpa", "a")
    with pytest.raises(KokoroNpuError, match="known: jf_alpha"):
        voice_row({"jf_alpha": pack}, "zz", "a")
