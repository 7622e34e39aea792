"""The figures that the page shows: where each stands in the reports, its name for people, and when it is worse."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kokoro_npu.build.labels import FP32, QUANTIZED, TORCH
from kokoro_npu.evaluate.gates import FIGURES, gate_names

Reports = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Kind of report, then frames, then the flat report."""


@dataclass(frozen=True)
class Figure:
    """One number of a bucket's report.

    Attributes:
        kind: directory of the report below ``reports/``.
        key: its key there, and the name of its gate; ``a/b`` is the quotient of two keys.
        label: its name on the page.
        unit: ``dB``, ``bytes``, ``s``, ``%`` (of a share) or empty.
        better: 1 when more is better, -1 when less is.
        slack: relative change for the worse that is no news: 0 for what a rebuild repeats to the last digit.
        needs: key without whose truth the figure says nothing; its loss is then told by that key's figure.
    """

    kind: str
    key: str
    label: str
    unit: str = ""
    better: int = 1
    slack: float = 0.0
    needs: str = ""

    def of(self, report: Mapping[str, Any]) -> float | None:
        """Value in a report, None where the report has none."""
        if self.needs and not report.get(self.needs):
            return None
        top, _, bottom = self.key.partition("/")
        value = report.get(top)
        if not bottom:
            return value
        return value / report[bottom] if value is not None and report.get(bottom) else None

    def worse(self, before: float | None, after: float | None) -> bool:
        """Whether ``after`` is worse than ``before``; a figure that is not measured any more is."""
        if before is None:
            return False
        if after is None:
            return not self.needs
        return (after - before) * self.better < -abs(before) * self.slack


_DECODERS = {TORCH: "static decoder in torch", FP32: "fp32 ONNX", QUANTIZED: "{precision} ONNX"}
_SOUND = {
    "snr_db": ("SNR", "dB"),
    "waveform_corr": ("waveform correlation", ""),
    "magspec_corr": ("magnitude-spectrogram correlation", ""),
    "logmel_mae": ("log-mel distance", "dB"),
    "band_db": ("band energy off by", "dB"),
}
GATED = {
    # A hundredth of a percent: other CPUs round otherwise.
    f"{variant}_{figure}_{end}": Figure(
        "parity", f"{variant}_{figure}_{end}", f"{decoder}, {_SOUND[figure][0]}", _SOUND[figure][1],
        1 if end == "min" else -1, slack=1e-4,
    )
    for variant, decoder in _DECODERS.items()
    for figure, end in FIGURES.items()
}  # fmt: skip
"""Every figure that can have a gate in the plan, by the gate's name."""
PARITY = (
    *(GATED[f"{variant}_snr_db_min"] for variant in (TORCH, FP32)),
    *(GATED[name] for name in gate_names(QUANTIZED)),
    Figure("parity", "duration_mismatches", "tokens with another duration", better=-1),
    Figure("parity", "utterances", "evaluation utterances that fit"),
)
"""Those that the reports hold."""
AUDIT = (
    Figure("audit", "blocking_ops", "blocking ops", better=-1),
    Figure("audit", "dynamic_dims", "dynamic dimensions", better=-1),
    Figure("audit", "nodes_on_npu/nodes", "nodes on the NPU, {precision}", "%"),
    Figure("audit", "fp16_nodes_on_npu/fp16_nodes", "nodes on the NPU, fp16", "%"),
)
# Qualcomm's compiler gives binaries that differ by 1.4 % from run to run.
COMPILE = (
    Figure("compile", "compiled", "compiled"),
    Figure("compile", "binary_bytes", "context binary", "bytes", -1, slack=0.03, needs="compiled"),
    Figure("compile", "peak_rss_bytes", "compiler memory", "bytes", -1, slack=0.15, needs="compiled"),
    Figure("compile", "seconds", "compile time", "s", -1, slack=1.0, needs="compiled"),
)
# Times are judged as quotients of one run: another machine is no regression.
PROFILE = (
    Figure("profile", "rtf_p50/torch_rtf_p50", "fp32 time ÷ PyTorch's, same run", "", -1, slack=0.3),
    Figure("profile", "quantized_rtf_p50/torch_rtf_p50", "{precision} time ÷ PyTorch's, same run", "", -1, slack=0.3),
    Figure("profile", "gmacs", "GMAC", "", -1),
    Figure("profile", "weight_bytes", "fp32 weights", "bytes", -1),
    Figure("profile", "quantized_weight_bytes", "{precision} weights", "bytes", -1),
    Figure("profile", "peak_rss_bytes", "memory, fp32", "bytes", -1, slack=0.3),
    Figure("profile", "quantized_peak_rss_bytes", "memory, {precision}", "bytes", -1, slack=0.3),
)
ALL = (*PARITY, *AUDIT, *COMPILE, *PROFILE)
KINDS = tuple(dict.fromkeys(figure.kind for figure in ALL))


def text(value: Any, unit: str = "") -> str:
    """A figure for people: bytes in MB or GB, four significant digits, yes and no, and a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "%":
        return f"{100 * value:.4g} %"
    if unit == "bytes":
        return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"
    if isinstance(value, float):
        if 0.99 < abs(value) < 1:  # correlations lie close to 1: fewer digits would hide them
            value = f"{value:.5f}"
        else:
            value = f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{value} {unit}".rstrip()
