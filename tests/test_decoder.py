"""The static decoder is upstream's at any padding, and the parity gate sees when it is not."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from kokoro import KModel
from torch import Tensor, nn

from kokoro_npu.audio import metrics
from kokoro_npu.build.labels import TORCH
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import gates, parity
from kokoro_npu.geometry import (
    DECODE_RATE,
    HOP,
    MAX_WIDTH,
    N_FFT,
    SAMPLES_PER_FRAME,
    STFT_BINS,
    STYLE_DIM,
    UPSAMPLE_RATES,
    VOICE_DIM,
    Array,
    Bucket,
    source_steps,
)
from kokoro_npu.host.steps import pad_to_bucket, trim
from kokoro_npu.model import reference
from kokoro_npu.model.blocks import Affine, MaskedResBlock, Rate, StyleProjections, TwoPhaseUpsample
from kokoro_npu.model.decoder import InverseSTFT, StaticDecoder
from kokoro_npu.model.istft import SYNTHESIS_PADDING, edge_kernel, hann_window, synthesis_kernel
from tests.narrow_model import as_tensors, enliven, random_features
from tests.tiny_model import tiny_kmodel

EXACT_DB = 100.0
EDGE = 5
BUCKET = Bucket(24)


def _decode(decoder: StaticDecoder, features: dict[str, Array]) -> Array:
    """The whole bucket's audio, [600 T]."""
    return parity.torch_variant(decoder)(pad_to_bucket(features, decoder.bucket)).reshape(-1)


@pytest.mark.parametrize(
    ("frames", "size"),
    [(2, 2), (24, 24), (23, 24), (12, 24), (8, 24), (30, 40), (39, 40), (40, 40), (31, 100), (64, 100)],
)
def test_exact_at_any_padding(narrow: KModel, frames: int, size: int) -> None:
    features = random_features(frames, seed=100 * size + frames)
    truth = reference.decode(narrow.decoder, features)
    audio = trim(_decode(StaticDecoder(narrow.decoder, Bucket(size)), features), frames)
    assert audio.shape == truth.shape == (SAMPLES_PER_FRAME * frames,)
    assert metrics.snr_db(truth, audio) >= EXACT_DB
    assert metrics.snr_db(truth[:EDGE], audio[:EDGE]) >= EXACT_DB
    assert metrics.snr_db(truth[-EDGE:], audio[-EDGE:]) >= EXACT_DB


@pytest.mark.parametrize("frames", [16, 5])
def test_exact_at_upstreams_width(frames: int) -> None:
    """The same with the 1024, 512 and 256 channels that upstream hard-codes."""
    model = tiny_kmodel(3)
    torch.manual_seed(3)
    enliven(model.decoder)
    features = random_features(frames, seed=frames)
    audio = trim(_decode(StaticDecoder(model.decoder, Bucket(16)), features), frames)
    assert metrics.snr_db(reference.decode(model.decoder, features), audio) >= EXACT_DB


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize(("frames", "size"), [(24, 24), (23, 24), (13, 24), (6, 24), (5, 24), (3, 24), (32, 32)])
def test_exact_in_any_number_of_rows(narrow: KModel, rows: int, frames: int, size: int) -> None:
    """The last real column at a row's end, in its beginning, and whole rows of padding."""
    features = random_features(frames, seed=frames)
    truth = reference.decode(narrow.decoder, features)
    audio = _decode(StaticDecoder(narrow.decoder, Bucket(size), rows), features)
    assert metrics.snr_db(truth, trim(audio, frames)) >= EXACT_DB
    seams = [SAMPLES_PER_FRAME * frames * row // rows for row in range(1, rows)]
    for seam in seams:
        around = slice(seam - 200, seam + 200)
        assert metrics.snr_db(truth[around], audio[around]) >= EXACT_DB - 10
    assert np.abs(audio[SAMPLES_PER_FRAME * frames + 2 * HOP :]).max(initial=0) == 0


@pytest.mark.parametrize(
    ("frames", "fewest", "rows"),
    [
        (120, 1, 1),
        (136, 1, 1),
        (137, 1, 4),
        (138, 1, 8),
        (546, 1, 8),
        (547, 2, 4),
        (1000, 2, 8),
        (1536, 4, 8),
        (4300, 8, 8),
    ],
)
def test_rows_keep_every_width_within_what_the_compiler_takes(frames: int, fewest: int, rows: int) -> None:
    bucket = Bucket(frames)
    assert (bucket.fewest_rows, bucket.rows) == (fewest, rows)
    for number in (fewest, rows):
        assert bucket.noise_steps / number <= MAX_WIDTH
        assert bucket.noise_steps % number == 0
        # The rate before is cut into pieces as well.
        assert DECODE_RATE * UPSAMPLE_RATES[0] * frames % number == 0


def test_exact_in_an_odd_bucket_of_several_rows(narrow: KModel) -> None:
    """Eight rows do not divide the rate before the last there, 20 columns a frame."""
    features = random_features(130, seed=130)
    audio = trim(_decode(StaticDecoder(narrow.decoder, Bucket(137)), features), 130)
    assert metrics.snr_db(reference.decode(narrow.decoder, features), audio) >= EXACT_DB


def test_one_utterance_sounds_the_same_in_every_bucket(narrow: KModel) -> None:
    features = random_features(9, seed=9)
    audios = [trim(_decode(StaticDecoder(narrow.decoder, Bucket(size)), features), 9) for size in (9, 16, 29)]
    for other in audios[1:]:
        assert metrics.snr_db(audios[0], other) >= EXACT_DB


def test_nothing_sounds_behind_the_real_frames(narrow: KModel) -> None:
    """Two hops after the real frames still touch their last window; from there on the audio is exactly zero."""
    audio = _decode(StaticDecoder(narrow.decoder, BUCKET), random_features(10, seed=1))
    assert audio.shape == (BUCKET.samples,)
    assert np.abs(audio[: SAMPLES_PER_FRAME * 10]).max() > 0
    assert np.abs(audio[SAMPLES_PER_FRAME * 10 + 2 * HOP :]).max() == 0


def test_the_model_given_is_left_as_it_was(narrow: KModel) -> None:
    before = {name: value.clone() for name, value in narrow.decoder.state_dict().items()}
    decoder = StaticDecoder(narrow.decoder, Bucket(4))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.fill_(0.0)
    assert all(torch.equal(value, before[name]) for name, value in narrow.decoder.state_dict().items())


# The gate. Each fault is planted in an otherwise right decoder; the gate must close and say where and by how much.


def _unmask_a_convolution(decoder: StaticDecoder) -> None:
    """Let the convolutions of one residual block see its padding; its norms go on as they were."""

    class Unmasked(nn.Module):
        def __init__(self, block: MaskedResBlock) -> None:
            super().__init__()
            self.block = block
            self.rate: Rate | None = None
            for norms in (block.norms1, block.norms2):
                for index, norm in enumerate(norms):
                    norms[index] = _RightRate(norm, self)

        def forward(self, x: Tensor, affines: Iterator[Affine], rate: Rate) -> Tensor:
            self.rate = rate
            return self.block(x, affines, rate._replace(mask=torch.ones_like(rate.mask)))

    class _RightRate(nn.Module):
        def __init__(self, norm: nn.Module, owner: Unmasked) -> None:
            super().__init__()
            self.norm, self.owner = norm, [owner]

        def forward(self, x: Tensor, affine: Affine, rate: Rate) -> Tensor:
            del rate
            return self.norm(x, affine, self.owner[0].rate)

    blocks = decoder.generator.resblocks
    block = blocks[0]
    assert isinstance(block, MaskedResBlock)
    blocks[0] = Unmasked(block)


def _scale_the_inverse_stft(decoder: StaticDecoder) -> None:
    decoder.generator.head.inverse_stft.synthesis.weight.data *= 1.001


def _forget_the_one_sided_doubling(decoder: StaticDecoder) -> None:
    """Upstream's CustomSTFT: every bin counts once."""
    weight = decoder.generator.head.inverse_stft.synthesis.weight.data
    for bins in (slice(1, STFT_BINS - 1), slice(STFT_BINS + 1, 2 * STFT_BINS - 1)):
        weight[:, bins] /= 2


def _forget_the_edges(decoder: StaticDecoder) -> None:
    """The normalisation's correction in the first and the last hop."""
    weight = decoder.generator.head.inverse_stft.edge.weight.data
    weight.zero_()
    weight[:, :, :, 2] = 1


def _swap_the_norms_halves(decoder: StaticDecoder) -> None:
    """Scale and shift of one adaptive norm, each a half of the style's projection."""
    styles = decoder.styles[0]
    assert isinstance(styles, StyleProjections)
    first = styles.channels[0]
    for scale, shift in zip(styles.scale.parameters(), styles.shift.parameters(), strict=True):
        scale.data[:first], shift.data[:first] = shift.data[:first].clone(), scale.data[:first].clone()


FAULTS: dict[str, Callable[[StaticDecoder], None]] = {
    "unmasked-convolution": _unmask_a_convolution,
    "istft-scale": _scale_the_inverse_stft,
    "istft-one-sided": _forget_the_one_sided_doubling,
    "istft-edges": _forget_the_edges,
    "norm-halves": _swap_the_norms_halves,
}
GATES = {"torch_snr_db_min": EXACT_DB}


def _recorded(model: KModel, frames: int, voice: Array) -> ReferenceUtterance:
    features = random_features(frames, seed=frames) | {"ref_style": voice[:, :STYLE_DIM]}
    return ReferenceUtterance(
        id=f"say-{frames}",
        frames=frames,
        speed=1.0,
        duration_mismatches=0,
        features=features,
        reference=reference.decode(model.decoder, features),
        tokens=np.zeros((1, 3), np.int64),
        voice=voice,
    )


@pytest.fixture(scope="module")
def spoken(narrow: KModel) -> list[ReferenceUtterance]:
    voice = (0.3 * np.random.default_rng(0).standard_normal((1, VOICE_DIM))).astype(np.float32)
    return [_recorded(narrow, frames, voice) for frames in (8, 15, 24)]


def _gate(recorded: list[ReferenceUtterance], run: parity.Variant) -> None:
    table = parity.evaluate(recorded, BUCKET, iter([(TORCH, run)]))
    gates.check_gates(table, GATES, f"parity-eval@{BUCKET.frames}")


def test_the_gate_is_open_without_a_fault(narrow: KModel, spoken: list[ReferenceUtterance]) -> None:
    _gate(spoken, parity.torch_variant(StaticDecoder(narrow.decoder, BUCKET)))


NAMED = r"^parity-eval@24: say-(8|15|24) misses torch_snr_db_min 100 with -?[\d.]+, by [\d.]+;"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_closes_the_gate(narrow: KModel, spoken: list[ReferenceUtterance], fault: str) -> None:
    decoder = StaticDecoder(narrow.decoder, BUCKET)
    FAULTS[fault](decoder)
    with pytest.raises(KokoroNpuError, match=NAMED):
        _gate(spoken, parity.torch_variant(decoder))


def test_swapped_style_halves_close_the_gate(narrow: KModel, spoken: list[ReferenceUtterance]) -> None:
    """The decoder's style is the first half of a voice; the second is the prosody's."""
    decoder = parity.torch_variant(StaticDecoder(narrow.decoder, BUCKET))

    def swapped(inputs: dict[str, Array]) -> Array:
        return decoder(inputs | {"ref_style": np.ascontiguousarray(spoken[0].voice[:, STYLE_DIM:])})

    with pytest.raises(KokoroNpuError, match=NAMED):
        _gate(spoken, swapped)


@pytest.mark.parametrize("name", ["frame_mask", "frame_ratio"])
def test_a_host_that_forgets_the_padding_closes_the_gate(
    narrow: KModel, spoken: list[ReferenceUtterance], name: str
) -> None:
    """Full utterances do not notice: the gate names one that is padded."""
    decoder = parity.torch_variant(StaticDecoder(narrow.decoder, BUCKET))

    def forgetful(inputs: dict[str, Array]) -> Array:
        return decoder(inputs | {name: np.ones_like(inputs[name])})

    with pytest.raises(KokoroNpuError, match=r"^parity-eval@24: say-(8|15) misses torch_snr_db_min"):
        _gate(spoken, forgetful)


# The parts.


def test_two_phases_are_the_transposed_convolution() -> None:
    torch.manual_seed(0)
    pool = nn.ConvTranspose1d(6, 6, 3, stride=2, groups=6, padding=1, output_padding=1)
    x = torch.randn(1, 6, 11)
    with torch.inference_mode():
        torch.testing.assert_close(TwoPhaseUpsample(pool)(x[:, :, None])[:, :, 0], pool(x), rtol=0, atol=1e-6)


def _istft(magnitude: Tensor, phase: Tensor) -> Tensor:
    window = torch.hann_window(N_FFT, periodic=True, dtype=magnitude.dtype)
    return torch.istft(magnitude * torch.exp(phase * 1j), N_FFT, HOP, N_FFT, window=window)[0]


@pytest.mark.parametrize(("frames", "size"), [(1, 1), (3, 3), (1, 4), (3, 4)])
def test_inverse_stft_is_torchs(frames: int, size: int) -> None:
    torch.manual_seed(size)
    bucket, steps = Bucket(size), source_steps(frames)
    magnitude, phase, mask = (torch.zeros(1, c, 1, bucket.noise_steps) for c in (STFT_BINS, STFT_BINS, 1))
    magnitude[..., :steps] = torch.rand(1, STFT_BINS, 1, steps)
    # On padding only the magnitude is zero, as in the decoder.
    phase.uniform_(-1, 1)
    mask[..., :steps] = 1
    with torch.inference_mode():
        audio = InverseSTFT(bucket, torch.ones(2 * STFT_BINS))(magnitude, phase, mask)[
            0, : SAMPLES_PER_FRAME * frames
        ].numpy()
        truth = _istft(magnitude[:, :, 0, :steps].double(), phase[:, :, 0, :steps].double()).numpy()
    assert metrics.snr_db(truth, audio) >= 120
    assert np.abs(audio - truth)[:EDGE].max() < 1e-6
    assert np.abs(audio - truth)[-EDGE:].max() < 1e-6


def _hops(x: Tensor, kernel: Tensor) -> Tensor:
    """[C, W] through a polyphase kernel to samples [5 W]."""
    return F.conv1d(F.pad(x[None], SYNTHESIS_PADDING), kernel)[0].T.reshape(-1)


@pytest.mark.parametrize("part", [0, 1], ids=["real", "imaginary"])
@pytest.mark.parametrize("bin_", range(STFT_BINS))
def test_synthesis_kernel_is_the_inverse_transform_of_each_bin(bin_: int, part: int) -> None:
    """One bin of one frame in the middle, through the kernel and through torch's inverse."""
    spectrum = torch.zeros(2 * STFT_BINS, 12)
    spectrum[part * STFT_BINS + bin_, 6] = 1.0
    complex_spectrum = torch.complex(spectrum[:STFT_BINS].double(), spectrum[STFT_BINS:].double())
    truth = torch.istft(complex_spectrum[None], N_FFT, HOP, N_FFT, window=hann_window())[0]
    got = _hops(spectrum, synthesis_kernel())[: len(truth)].double()
    torch.testing.assert_close(got, truth, rtol=0, atol=1e-8)


@pytest.mark.parametrize("real", [5, 13])
def test_edge_kernel_corrects_the_first_and_the_last_hop(real: int) -> None:
    """It is the constant sum of squared windows over the true one, on each sample that is kept."""
    mask = torch.zeros(1, 16)
    mask[:, :real] = 1
    squared = torch.zeros(HOP * real + N_FFT, dtype=torch.float64)
    for frame in range(real):
        squared[HOP * frame : HOP * frame + N_FFT] += hann_window().square()
    kept = HOP * (real - 1)
    expected = 1.5 / squared[N_FFT // 2 :][:kept]
    torch.testing.assert_close(_hops(mask, edge_kernel())[:kept].double(), expected, rtol=0, atol=1e-6)


def test_reference_restores_the_stft(narrow: KModel) -> None:
    original = narrow.decoder.generator.stft
    with pytest.raises(RuntimeError), reference.given_source(narrow.decoder, random_features(2, seed=0)["noise"]):
        raise RuntimeError
    assert narrow.decoder.generator.stft is original


def test_inputs_are_the_contracts(narrow: KModel) -> None:
    """Every input is heard: none is ignored."""
    decoder = StaticDecoder(narrow.decoder, BUCKET)
    inputs = as_tensors(pad_to_bucket(random_features(20, seed=4), BUCKET))
    assert list(inputs) == list(BUCKET.input_shapes)
    with torch.inference_mode():
        audio = decoder(**inputs)
        assert tuple(audio.shape) == BUCKET.output_shapes["audio"]
        for name in inputs:
            assert not torch.equal(decoder(**{**inputs, name: 0.9 * inputs[name]}), audio), name
