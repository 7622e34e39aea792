"""The duration model against upstream's text side, padded or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from kokoro import KModel
from torch import Tensor

from kokoro_npu.geometry import STYLE_DIM, VOICE_DIM
from kokoro_npu.host.steps import align
from kokoro_npu.model.duration import DurationModel


class Upstream(NamedTuple):
    durations: Tensor
    encoded_text: Tensor
    prosody: Tensor
    aligned_text: Tensor


@contextmanager
def _seen(module: torch.nn.Module, found: dict[str, Tensor], name: str) -> Iterator[None]:
    def keep(module: torch.nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        del module
        found[name] = args[0] if name == "aligned_text" else output

    handle = module.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def _upstream(model: KModel, tokens: Tensor, voice: Tensor, speed: float) -> Upstream:
    """What upstream's own ``forward_with_tokens`` computes on its way to the audio."""
    found: dict[str, Tensor] = {}
    with (
        _seen(model.text_encoder, found, "encoded_text"),
        _seen(model.predictor.text_encoder, found, "prosody"),
        _seen(model.decoder, found, "aligned_text"),
    ):
        _, durations = model.forward_with_tokens(tokens, voice, speed)
    return Upstream(durations, found["encoded_text"].transpose(1, 2), found["prosody"], found["aligned_text"])


def _tokens(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.cat([torch.zeros(1), torch.randint(1, 10, (count - 2,), generator=generator), torch.zeros(1)])[
        None
    ].long()


@pytest.fixture(scope="module")
def voice() -> Tensor:
    return 0.3 * torch.randn(1, VOICE_DIM, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("padding", [0, 1, 9])
@pytest.mark.parametrize(("count", "speed"), [(3, 1.0), (12, 1.0), (12, 0.5), (29, 1.7)])
@torch.inference_mode()
def test_equals_upstream_with_and_without_padded_tokens(
    narrow: KModel, voice: Tensor, count: int, speed: float, padding: int
) -> None:
    tokens = _tokens(count)
    truth = _upstream(narrow, tokens, voice, speed)
    # Garbage, not zeros: what lies right of token_length must not matter.
    padded = torch.cat([tokens, torch.full((1, padding), 5)], dim=1)
    durations, encoded, ref_style, prosody, style = DurationModel(narrow)(
        padded, torch.tensor([count]), voice, torch.tensor([speed])
    )
    assert durations.dtype == torch.int32
    assert durations[0, :count].tolist() == truth.durations.tolist()
    assert durations[0, count:].tolist() == [0] * padding
    torch.testing.assert_close(encoded[:, :count], truth.encoded_text, rtol=0, atol=1e-5)
    torch.testing.assert_close(prosody[:, :count], truth.prosody, rtol=0, atol=1e-5)
    assert not encoded[:, count:].any()
    assert not prosody[:, count:].any()
    assert torch.equal(ref_style, voice[:, :STYLE_DIM])
    assert torch.equal(style, voice[:, STYLE_DIM:])
    aligned = torch.from_numpy(align(encoded.numpy(), durations.numpy()))
    torch.testing.assert_close(aligned, truth.aligned_text, rtol=0, atol=1e-5)


def test_the_random_model_says_something(narrow: KModel, voice: Tensor) -> None:
    """Durations that differ between tokens and speeds, or the test above would compare constants."""
    durations = [narrow.forward_with_tokens(_tokens(29), voice, speed)[1] for speed in (1.0, 0.5)]
    assert len(set(durations[0].tolist())) > 1
    assert int(durations[1].sum()) > int(durations[0].sum())
