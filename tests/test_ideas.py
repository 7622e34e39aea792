"""Ideas for better weights: each does what its name says, and leaves the decoder as it found it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kokoro_npu import metrics
from kokoro_npu.export import export_decoder
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize import ideas, range_ideas
from kokoro_npu.quantize.encodings import Ranges, save_ranges
from tests.narrow_model import narrow_kmodel, random_features
from tests.test_quantize import CALIBRATION, W8A16, quantized_kmodel, recorded

FRAMES = 5


@pytest.fixture(scope="module")
def contest() -> ideas.Contest:
    torch.set_num_threads(1)
    windows = [random_features(FRAMES, seed) for seed in (1, 2)]
    return ideas.Contest(narrow_kmodel(1, kernels=(3,)).decoder, windows, ("generator.head.",))


def test_float_weights_are_judged_perfect_and_come_back(contest: ideas.Contest) -> None:
    before = contest.hear()
    assert contest.judge("none", {}).snr_db_min == float("inf")
    nearest = contest.apply(ideas.per_channel)
    result = contest.judge("nearest", nearest)
    assert contest.judge("nearest again", nearest).snr_db_min == result.snr_db_min
    assert 10 < result.snr_db_min < 60
    assert result.logmel_mae_max > 0
    assert all(np.array_equal(a, b) for a, b in zip(before, contest.hear(), strict=True))
    assert not any(name.startswith("generator.head.") for name in contest.layers)


def test_grids_have_their_number_of_levels(contest: ideas.Contest) -> None:
    layer = contest.layers["encode.conv1.weight"]
    peak = layer.weight.abs().amax()
    whole = ideas.per_tensor(layer) / (peak / 127)
    assert torch.allclose(whole, whole.round(), atol=1e-3)
    for rule in (ideas.per_channel, ideas.mse, ideas.percentile):
        assert all(len(channel.unique()) <= 255 for channel in rule(layer).flatten(1))
    # The squared error of the MSE ranges is never above that of the full ones.
    errors = [(rule(layer) - layer.weight).flatten(1).square().sum(1) for rule in (ideas.mse, ideas.per_channel)]
    assert (errors[0] <= errors[1] + 1e-12).all()
    clipped = ideas.percentile(layer).abs().flatten(1).amax(1)
    assert (clipped < layer.weight.abs().flatten(1).amax(1)).any()


def test_equalisation_is_exact_in_float(contest: ideas.Contest) -> None:
    before = contest.hear()
    weights = {name: layer.weight.clone() for name, layer in contest.layers.items()}
    contest.equalize()
    moved = [name for name, layer in contest.layers.items() if not torch.equal(layer.weight, weights[name])]
    heard = contest.hear()
    contest.reset()
    assert {"encode.conv1.weight", "styles.0.scale.weight", "decode.3.conv2.weight"} <= set(moved)
    assert {"generator.resblocks.0.convs1.0.conv.weight", "generator.noise_res.1.convs2.2.conv.weight"} <= set(moved)
    assert "decode.3.conv1.weight" not in moved  # the depthwise upsampling stands between
    assert all(metrics.snr_db(a, b) > 90 for a, b in zip(before, heard, strict=True))


def test_bias_correction_takes_the_mean_error_away(contest: ideas.Contest) -> None:
    name = "generator.resblocks.0.convs2.0.conv.weight"
    layer = contest.layers[name]
    biased = {name: layer.weight.detach() + 0.05}
    plain = contest.judge("shifted", biased)

    def correct() -> None:
        contest.correct_biases(biased)

    assert contest.judge("corrected", biased, correct).snr_db_min > plain.snr_db_min


def test_ideas_for_ranges_change_what_their_names_say(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, recipe = Bucket(10), replace(W8A16, calibration=replace(CALIBRATION, frames=(10,), short_windows=()))
    decoder = export_decoder(quantized_kmodel(), bucket)
    calibration, judged = [recorded(10), recorded(8)], [recorded(9), recorded(30)]
    applied: list[Ranges] = []

    def keep(ranges: Ranges, path: Path) -> None:
        applied.append(ranges)
        save_ranges(ranges, path)

    monkeypatch.setattr(range_ideas, "save_ranges", keep)
    results = {r.idea: r for r in range_ideas.compare_ranges(decoder, bucket, calibration, judged, recipe)}
    assert list(results) == [idea for changes in range_ideas.IDEAS.values() for idea in changes]
    assert all(np.isfinite(r.snr_db_min) and r.logmel_mae_max > 0 for r in results.values())
    assert len({r.snr_db_min for r in results.values()}) == len(results)
    plain, wider, widest, symmetric, percentile, entropy = applied
    name, other = "/generator/resblocks.0/snakes1.0/Add_output_0", "/joins.1/Concat_output_0"
    low, high = plain[name]
    assert wider[name] == (1.25 * low, 1.25 * high)
    assert widest[other] == (2 * plain[other][0], 2 * plain[other][1])
    assert symmetric[name] == (-max(-low, high), max(-low, high)) != (low, high)
    assert symmetric[other] == plain[other]
    for clipped in (percentile, entropy):
        assert low <= clipped[name][0] < clipped[name][1] <= high
    assert percentile != plain
