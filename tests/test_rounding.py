"""GPTQ: the matrices it sees are the layers, and it beats rounding to nearest where inputs are correlated."""

import numpy as np
import pytest
import torch
from torch import nn

from kokoro_npu.decoder import StaticDecoder
from kokoro_npu.features import Recorded
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize import rounding
from tests.narrow_model import narrow_kmodel, random_features

LAYERS: dict[str, nn.Conv2d | nn.ConvTranspose2d] = {
    "plain": nn.Conv2d(3, 5, (1, 3), padding=(0, 1)),
    "dilated": nn.Conv2d(3, 5, (1, 3), padding=(0, 5), dilation=(1, 5)),
    "strided": nn.Conv2d(3, 5, (1, 12), stride=(1, 6)),
    "pointwise": nn.Conv2d(3, 5, 1),
    "transposed": nn.ConvTranspose2d(3, 5, (1, 20), stride=(1, 10), padding=(0, 5)),
    "transposed odd": nn.ConvTranspose2d(3, 5, (1, 12), stride=(1, 6), padding=(0, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_matrices_are_the_layer(name: str) -> None:
    layer = LAYERS[name]
    torch.manual_seed(0)
    x = torch.randn(1, 3, 1, 30)
    with torch.inference_mode():
        truth = layer(x)[0, :, 0]
        assert layer.bias is not None
        truth = truth - layer.bias[:, None]
        seen = rounding._columns(layer, x)
        made = rounding._rows(layer) @ seen.T
        if isinstance(layer, nn.ConvTranspose2d):
            stride, padding = layer.stride[1], int(layer.padding[1])
            made = made.reshape(5, stride, -1).permute(0, 2, 1).reshape(5, -1)[:, padding:-padding]
    assert torch.allclose(made, truth, atol=1e-5)
    assert torch.equal(rounding._weight(layer, rounding._rows(layer)), layer.weight)


def test_padding_has_no_say_and_long_inputs_are_thinned() -> None:
    layer = LAYERS["plain"]
    torch.manual_seed(1)
    x = torch.randn(1, 3, 1, 40)
    x[..., 20:] = 0
    assert rounding._columns(layer, x).shape[0] == 21  # 20 and the one that still sees the last
    assert rounding._columns(layer, torch.randn(1, 3, 1, 3 * rounding._COLUMNS)).shape[0] <= rounding._COLUMNS


def _problem(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    mixing = torch.randn(48, 48)
    mixing[:, 24:] = mixing[:, :24] + 0.1 * mixing[:, 24:]
    x = torch.randn(2000, 48) @ mixing
    weights = torch.randn(16, 48)
    return x, weights, weights.abs().amax(1) / 127


@pytest.mark.parametrize("seed", [0, 1])
def test_it_beats_rounding_to_nearest(seed: int) -> None:
    x, weights, scale = _problem(seed)
    integers = rounding.gptq(weights, x.T @ x, scale, 8)
    nearest = (weights / scale[:, None]).round()

    def error(levels: torch.Tensor) -> float:
        return float((x @ (levels * scale[:, None] - weights).T).square().sum())

    assert torch.equal(integers, integers.round())
    assert integers.abs().max() <= 127
    assert error(integers) < 0.5 * error(nearest)


def test_uncorrelated_inputs_round_to_nearest() -> None:
    _, weights, scale = _problem(2)
    diagonal = torch.rand(48) + 0.1
    assert torch.equal(rounding.gptq(weights, diagonal.diag(), scale, 8), (weights / scale[:, None]).round())


def test_inputs_that_never_sound_do_no_harm() -> None:
    _, weights, scale = _problem(3)
    assert torch.isfinite(rounding.gptq(weights, torch.zeros(48, 48), scale, 8)).all()


def test_a_decoder_is_rounded_on_its_own_inputs() -> None:
    torch.set_num_threads(1)
    decoder = narrow_kmodel(1, kernels=(3,)).decoder
    recorded = [
        Recorded(
            "cal",
            "calibration",
            n,
            1.0,
            0,
            random_features(n, seed=n),
            np.zeros(0, np.float32),
            np.zeros((1, 2), np.int64),
            np.zeros(0, np.float32),
        )
        for n in (5, 9)
    ]
    bits = {"encode.conv1.weight": 8, "generator.ups.0.weight": 8, "generator.resblocks.0.convs1.2.conv.weight": 16}
    rounded = rounding.round_decoder(decoder, recorded, bits)
    found = rounding.layers(StaticDecoder(decoder, Bucket(5)))
    assert {name: weight.bits for name, weight in rounded.items()} == bits
    for name, weight in rounded.items():
        axis = rounding.channel_axis(found[name])
        step = weight.scales.reshape([-1 if dim == axis else 1 for dim in range(4)])
        truth = found[name].weight.detach().numpy()
        # Errors are spread over the inputs, and no weight goes astray.
        assert np.abs(weight.values(axis) - truth).max() < np.max(8 * step)
        nearest = np.round(truth / step)
        assert (weight.integers != nearest).any()
        assert (np.abs(weight.integers - nearest) <= 1).mean() > 0.9
    assert rounding.round_decoder(decoder, recorded, {}) == {}
