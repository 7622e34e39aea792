"""The duration model: tokens and a voice to durations and per-token features, on the CPU.

It is upstream's text side (``kokoro.model.KModel.forward_with_tokens`` 0.9.4 up to the alignment) for one utterance
whose tokens may be right-padded: LSTMs stop at ``token_length``, attention does not see padding, and padded tokens
last 0 frames.
"""

import torch
import torch.nn.functional as F
from kokoro import KModel
from torch import Tensor, nn

from kokoro_npu.geometry import STYLE_DIM

OUTPUT_NAMES = ("durations", "encoded_text", "ref_style", "prosody_features", "prosody_style")
DYNAMIC_AXES = {
    "tokens": {1: "token_count"},
    "durations": {1: "token_count"},
    "encoded_text": {1: "token_count"},
    "prosody_features": {1: "token_count"},
}


class DurationModel(nn.Module):
    """Upstream's text encoder, PL-BERT and duration predictor as one traceable module.

    Args:
        model: upstream's model, weight norm removed, with eager attention.
    """

    def __init__(self, model: KModel) -> None:
        super().__init__()
        self.bert = model.bert
        self.bert_encoder = model.bert_encoder
        self.prosody_encoder = model.predictor.text_encoder
        self.duration_lstm = model.predictor.lstm
        self.duration_proj = model.predictor.duration_proj
        self.text_encoder = model.text_encoder
        self.eval()

    def forward(
        self, tokens: Tensor, token_length: Tensor, voice_embedding: Tensor, speed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Predict durations and features.

        Args:
            tokens: [1, S] int64, boundary tokens included, S at most 512.
            token_length: [1] int64, how many of the tokens are real.
            voice_embedding: [1, 256] float32, one row of a voice pack.
            speed: [1] float32, divides durations.

        Returns:
            durations [1, S] int32, encoded text [1, S, 512], decoder style [1, 128], prosody features [1, S, 640],
            prosody style [1, 128].
        """
        positions = torch.arange(tokens.shape[1])[None]
        real = (positions < token_length[:, None]).to(torch.float32)
        ref_style, style = voice_embedding[:, :STYLE_DIM], voice_embedding[:, STYLE_DIM:]

        embedded = self.bert.embeddings(tokens, token_type_ids=torch.zeros_like(tokens), position_ids=positions)
        # Additive attention mask, as transformers builds it: the lowest float on padding.
        blocked = (1 - real)[:, None, None, :] * torch.finfo(torch.float32).min
        hidden = self.bert_encoder(self.bert.encoder(embedded, blocked).last_hidden_state)

        prosody_features = self._encode_prosody(hidden, style, real, token_length)
        states = self._lstm(self.duration_lstm, prosody_features, token_length)
        frames = torch.sigmoid(self.duration_proj(states)).sum(dim=2) / speed
        durations = (torch.round(frames).clamp(min=1) * real).to(torch.int32)
        return durations, self._encode_text(tokens, real, token_length), ref_style, prosody_features, style

    def _encode_prosody(self, x: Tensor, style: Tensor, real: Tensor, length: Tensor) -> Tensor:
        """``DurationEncoder``: alternating LSTMs and adaptive layer norms, the style appended to each input."""
        keep = real[:, :, None]
        styles = style[:, None, :].expand(1, x.shape[1], style.shape[1])
        x = torch.cat([x, styles], dim=2) * keep
        blocks = self.prosody_encoder.lstms
        for lstm, norm in zip(blocks[::2], blocks[1::2], strict=True):
            x = norm(self._lstm(lstm, x, length), style)
            x = torch.cat([x, styles], dim=2) * keep
        return x

    def _encode_text(self, tokens: Tensor, real: Tensor, length: Tensor) -> Tensor:
        """``TextEncoder``: convolutions and an LSTM over the phoneme embeddings, [1, S, 512]."""
        keep = real[:, None, :]
        x = self.text_encoder.embedding(tokens).transpose(1, 2) * keep
        for layer in self.text_encoder.cnn:
            x = layer(x) * keep
        return self._lstm(self.text_encoder.lstm, x.transpose(1, 2), length) * real[:, :, None]

    def _lstm(self, lstm: nn.LSTM, x: Tensor, length: Tensor) -> Tensor:
        """Run an LSTM over the first ``length`` of [1, S, C]; the exporter turns the packing into sequence lengths."""
        packed = nn.utils.rnn.pack_padded_sequence(x, length, batch_first=True)
        output, _ = lstm(packed)
        unpacked, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
        if torch.jit.is_tracing():  # type: ignore[attr-defined]  # public, documented, not in __all__
            return unpacked  # in ONNX the sequence keeps its padded length
        return F.pad(unpacked, (0, 0, 0, x.shape[1] - unpacked.shape[1]))
