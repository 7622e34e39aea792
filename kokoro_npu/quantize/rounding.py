"""Rounding of weights that keeps a layer's output, not each weight by itself.

Rounding to nearest treats every weight alone. A layer's inputs are correlated, across channels and, in audio, across
neighbouring columns, so the error of one weight can be made good by the others: GPTQ rounds one input after the other
and moves what is not rounded yet against the error made (Frantar et al., "GPTQ: Accurate Post-Training Quantization for
Generative Pre-trained Transformers", 2023, arXiv:2210.17323). It costs no byte and no cycle on the device. What it
needs of the data is the second moment of each layer's input, the layer's Hessian.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from kokoro import istftnet as upstream
from torch import Tensor, nn
from tqdm import tqdm

from kokoro_npu.decoder import StaticDecoder
from kokoro_npu.features import Recorded
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize import rounded
from kokoro_npu.quantize.rounded import RoundedWeight
from kokoro_npu.runtime import Array, crop, pad_to_bucket

Layer = nn.Conv2d | nn.ConvTranspose2d

_DAMPING = 0.01
"""Share of the Hessian's mean diagonal that is added to the diagonal, as in the paper."""
_BLOCK = 128
STYLE_WEIGHTS = (".scale.weight", ".shift.weight")
"""Ends of the names of weights that see the style: one column of a few voices is too little to learn from."""
HEAD, _REFLECTED = "generator.head.", "generator.ups.1.reflected."
_FRAMES = 400
"""Of a longer utterance so many frames are seen, from the middle."""
_COLUMNS = 1024
"""At most so many columns of one sample enter a Hessian: neighbouring ones say nearly the same."""


def layers(decoder: StaticDecoder) -> dict[str, Layer]:
    """The layers with weights by the name of their weight, which is also that of the ONNX initializer."""
    return {
        f"{name}.weight": module
        for name, module in decoder.named_modules()
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)
    }


def channel_axis(layer: Layer) -> int:
    """The axis of a layer's weight that counts its output channels."""
    return rounded.channel_axis(type(layer).__name__)


def round_body(decoder: upstream.Decoder, recorded: Sequence[Recorded], bits: int = 8) -> dict[str, RoundedWeight]:
    """Round by GPTQ every weight that sees columns of sound and is not of the head."""
    names = [name for name in layers(StaticDecoder(decoder, Bucket(2))) if not name.startswith((HEAD, _REFLECTED))]
    return round_decoder(decoder, recorded, {name: bits for name in names if not name.endswith(STYLE_WEIGHTS)})


def add_hessians(
    sums: dict[str, Tensor], decoder: StaticDecoder, inputs: Mapping[str, Array], names: Iterable[str]
) -> None:
    """Run a decoder and add the second moments of the inputs of some layers to ``sums``.

    Under each name of ``names`` (as :func:`layers` gives them) stands [K, K] float32 with K the weights behind one
    output: input channels x taps (of a transposed convolution, the taps that one output column sees).
    """
    found = layers(decoder)
    handles = [found[name].register_forward_pre_hook(partial(_add, sums, name)) for name in names]
    try:
        with torch.inference_mode():
            decoder(**{key: torch.from_numpy(value) for key, value in inputs.items()})
    finally:
        for handle in handles:
            handle.remove()


def _add(sums: dict[str, Tensor], name: str, layer: Layer, inputs: tuple[Tensor, ...]) -> None:
    columns = _columns(layer, inputs[0])
    moments = columns.T @ columns
    sums[name] = sums[name].add_(moments) if name in sums else moments


def _columns(layer: Layer, x: Tensor) -> Tensor:
    """What the output columns of a layer see of its input [1, C, 1, W]: [columns, K]."""
    if isinstance(layer, nn.ConvTranspose2d):
        taps, stride, dilation, padding = layer.kernel_size[1] // layer.stride[1], 1, 1, 1
    else:
        taps, stride = layer.kernel_size[1], layer.stride[1]
        dilation, padding = layer.dilation[1], int(layer.padding[1])
    padded = F.pad(x[0, :, 0], (padding, padding))
    windows = padded.unfold(1, dilation * (taps - 1) + 1, stride)[..., ::dilation]
    # Columns of padding are zero and add nothing: they are dropped before the others are thinned out.
    windows = windows[:, windows.abs().amax(dim=(0, 2)) > 0]
    step = max(1, math.ceil(windows.shape[1] / _COLUMNS))
    chosen = windows[:, ::step]
    result: Tensor = chosen.permute(1, 0, 2).reshape(chosen.shape[1], -1) * step**0.5
    return result


def round_decoder(
    decoder: upstream.Decoder, recorded: Sequence[Recorded], bits: Mapping[str, int]
) -> dict[str, RoundedWeight]:
    """Round some weights of a decoder by GPTQ.

    Args:
        decoder: upstream's decoder, weight norm removed.
        recorded: utterances whose features the layers see, each in a bucket of its own size; of a long one the middle.
        bits: which weights, as :func:`layers` names them, and the bits of their symmetric integers; if none,
            nothing is run.

    Returns:
        Integers and per-channel scales by name. A channel's scale makes its largest magnitude the largest level.
    """
    if not bits:
        return {}
    sums: dict[str, Tensor] = {}
    for item in tqdm(recorded, desc="hessians", unit="utterance"):
        frames = min(item.frames, _FRAMES)
        features = crop(item.features, frames, (item.frames - frames) // 2)
        bucket = Bucket(frames)
        static = StaticDecoder(decoder, bucket)
        add_hessians(sums, static, pad_to_bucket(features, bucket), bits)
    found = layers(static)
    return {
        name: _round_layer(found[name], sums.pop(name), bits[name])
        for name in tqdm(bits, desc="round weights", unit="layer")
    }


def _round_layer(layer: Layer, hessian: Tensor, bits: int) -> RoundedWeight:
    scales = torch.from_numpy(rounded.channel_scales(layer.weight.detach().numpy(), channel_axis(layer), bits))
    rows = scales.repeat_interleave(layer.stride[1]) if isinstance(layer, nn.ConvTranspose2d) else scales
    integers = _weight(layer, gptq(_rows(layer), hessian, rows, bits))
    return RoundedWeight(integers.to(torch.int8 if bits == 8 else torch.int16).numpy(), scales.numpy())


def _rows(layer: Layer) -> Tensor:
    """A weight as the matrix [outputs, K] that multiplies what :func:`_columns` gives.

    Of a transposed convolution, each phase of each output channel is an output: phase r takes the taps r + stride k.
    With its windows [x[i - 1], x[i]], the later input comes with the earlier tap.
    """
    weight = layer.weight.detach()
    if isinstance(layer, nn.ConvTranspose2d):
        inputs, outputs, _, size = weight.shape
        stride = layer.stride[1]
        phases = weight.reshape(inputs, outputs, size // stride, stride).flip(2)
        return phases.permute(1, 3, 0, 2).reshape(outputs * stride, -1)
    return weight.reshape(weight.shape[0], -1)


def _weight(layer: Layer, rows: Tensor) -> Tensor:
    if isinstance(layer, nn.ConvTranspose2d):
        inputs, outputs, _, size = layer.weight.shape
        stride = layer.stride[1]
        phases = rows.reshape(outputs, stride, inputs, size // stride).permute(2, 0, 3, 1).flip(2)
        return phases.reshape(layer.weight.shape)
    return rows.reshape(layer.weight.shape)


def gptq(weights: Tensor, hessian: Tensor, scale: Tensor, bits: int) -> Tensor:
    """Round each row of ``weights`` to integer multiples of its scale so that ``weights @ x`` changes little.

    Args:
        weights: [R, K].
        hessian: [K, K], sum of x x^T.
        scale: [R].
        bits: of the symmetric integers.

    Returns:
        [R, K] float tensor of integers.
    """
    top = 2 ** (bits - 1) - 1
    diagonal = hessian.diagonal()
    # The inputs with most energy first: their errors are what the others then make good.
    order = torch.argsort(diagonal, descending=True, stable=True)
    work = (weights / scale[:, None])[:, order].clone()
    moments = hessian[order][:, order].double()
    damping = _DAMPING * float(moments.diagonal().mean()) or 1.0
    moments.diagonal().add_(damping)
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True).float()
    result = torch.empty_like(work)
    count = work.shape[1]
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        block, errors = work[:, start:stop], torch.empty_like(work[:, start:stop])
        for column in range(start, stop):
            offset = column - start
            rounded = block[:, offset].round().clamp(-top, top)
            result[:, column] = rounded
            error = (block[:, offset] - rounded) / inverse[column, column]
            block[:, offset:] -= error[:, None] * inverse[column, column:stop][None]
            errors[:, offset] = error
        work[:, stop:] -= errors @ inverse[start:stop, stop:]
    restored = torch.empty_like(result)
    restored[:, order] = result
    return restored
