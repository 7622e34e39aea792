"""The duration and prosody models at fixed sizes, for runtimes that take neither dynamic axes nor a packed LSTM.

They compute what :mod:`kokoro_npu.model.duration` and :mod:`kokoro_npu.model.prosody` compute, at any right-padding.
An LSTM is unrolled step by step; its gates are closed on padding, so that the backward direction starts at the last
real step. The source (running phase, atan2) stays on the host.
"""

from copy import deepcopy

import torch
from kokoro import KModel
from torch import Tensor, nn

from kokoro_npu.geometry import DECODE_RATE
from kokoro_npu.model.blocks import AffineSplit, MaskedStyleBlock, Rate, StyleProjections
from kokoro_npu.model.convs import interleave
from kokoro_npu.model.duration import DurationModel

_CLOSED = -1e4
"""Added to the gates of padded steps: their sigmoids are exactly zero then, and with them the state."""


class UnrolledLSTM(nn.Module):
    """One bidirectional layer over a fixed number of steps.

    Both directions take a step together, which halves the ops: a converter's time grows with them.

    Args:
        lstm: its weights; one layer, bidirectional, batch first.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.inputs = nn.ModuleList()
        of_states = []
        for of_input, of_state, bias, other in lstm.all_weights:  # of each direction
            layer = nn.Linear(of_input.shape[1], of_input.shape[0])
            layer.weight.data, layer.bias.data = of_input.data, (bias + other).data
            self.inputs.append(layer)
            of_states.append(of_state.data.T)
        self.of_states = nn.Parameter(torch.stack(of_states))
        self.size = lstm.hidden_size

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """X [1, S, C] and ``real`` [1, S, 1], 1 on real steps and 0 on padding, to [1, S, 2 H], zero on padding."""
        closed = (1 - real) * _CLOSED
        ahead, back = (layer(x) + closed for layer in self.inputs)
        hidden = cell = torch.zeros(2, 1, self.size)
        outputs: list[Tensor] = []
        for given in torch.cat([ahead, back.flip(1)]).split(1, dim=1):
            gates = given + torch.bmm(hidden, self.of_states)
            enter, forget, candidate, leave = gates.split(self.size, dim=2)  # torch's order: i, f, g, o
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            outputs.append(hidden)
        ahead, back = torch.cat(outputs, dim=1).split(1)
        return torch.cat([ahead, back.flip(1)], dim=2)


class StaticDuration(DurationModel):
    """:class:`kokoro_npu.model.duration.DurationModel` for a fixed number of tokens, padded on the right."""

    def __init__(self, model: KModel) -> None:
        super().__init__(model)
        # Copies: the model keeps its own LSTMs.
        self.prosody_encoder, self.text_encoder = deepcopy(self.prosody_encoder), deepcopy(self.text_encoder)
        for parent in list(self.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.LSTM):
                    setattr(parent, name, UnrolledLSTM(child))
        self.requires_grad_(False)
        self.eval()

    def _lstm(self, lstm: nn.Module, x: Tensor, length: Tensor) -> Tensor:
        real = (torch.arange(x.shape[1]) < length).to(torch.float32)[None, :, None]
        states: Tensor = lstm(x, real)
        return states


class StaticProsody(nn.Module):
    """Upstream's F0 and energy predictor for frames that are padded on the right; the source is not in it.

    Args:
        model: upstream's model, weight norm removed.
    """

    def __init__(self, model: KModel) -> None:
        super().__init__()
        predictor = model.predictor
        self.shared = UnrolledLSTM(predictor.shared)
        self.f0 = nn.ModuleList(map(MaskedStyleBlock, predictor.F0))
        self.energy = nn.ModuleList(map(MaskedStyleBlock, predictor.N))
        chains = [predictor.F0, predictor.N]
        styles = [StyleProjections(n for b in chain for n in MaskedStyleBlock.style_norms(b)) for chain in chains]
        self.styles = nn.ModuleList(styles)
        self.affines = nn.ModuleList(AffineSplit(projections.channels) for projections in styles)
        self.f0_proj, self.energy_proj = predictor.F0_proj, predictor.N_proj
        self.requires_grad_(False)
        self.eval()

    def forward(
        self, aligned_prosody: Tensor, prosody_style: Tensor, frame_mask: Tensor, frame_ratio: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Predict F0 and energy.

        Args:
            aligned_prosody: [1, 640, T].
            prosody_style: [1, 128].
            frame_mask: [1, 1, T].
            frame_ratio: [1, 6].

        Returns:
            F0 in Hz and energy, each [1, 1, 2 T] and zero on padding.
        """
        states = self.shared(aligned_prosody.transpose(1, 2), frame_mask.transpose(1, 2))
        features = states.transpose(1, 2)[:, :, None]
        style = prosody_style[:, :, None, None]
        ratio, root, inverse = (frame_ratio[:, i : i + 1].reshape(1, 1, 1, 1) for i in range(3))
        mask = frame_mask[:, :, None]
        steps = interleave([mask] * DECODE_RATE)
        rates = [Rate(m, m * root, ratio) for m in (mask, steps)]
        results = []
        chains = ((self.f0, self.f0_proj), (self.energy, self.energy_proj))
        for (blocks, projection), styles, split in zip(chains, self.styles, self.affines, strict=True):
            affines = split(*styles(style, inverse))
            x, rate = features, rates[0]
            for block in blocks:
                assert isinstance(block, MaskedStyleBlock)
                out_rate = rate if block.pool is None else rates[1]
                x = block(x, affines, rate, out_rate)
                rate = out_rate
            results.append(projection(x[:, :, 0]) * steps[:, :, 0])
        return results[0], results[1]
