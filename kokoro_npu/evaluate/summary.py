"""The summary of a build: the worst figure of each kind over its buckets."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kokoro_npu.build.reports import read_report
from kokoro_npu.versions import TOOLS, tool_versions

# Key of the summary, kind of report, key there, and how the buckets' values become one (worst or total).
_FIGURES: tuple[tuple[str, str, str, Callable[[list[Any]], Any]], ...] = (
    ("torch_snr_db_min", "parity", "torch_snr_db_min", min),
    ("fp32_snr_db_min", "parity", "fp32_snr_db_min", min),
    ("quantized_snr_db_min", "parity", "quantized_snr_db_min", min),
    ("quantized_magspec_corr_min", "parity", "quantized_magspec_corr_min", min),
    ("quantized_logmel_mae_max", "parity", "quantized_logmel_mae_max", max),
    ("utterances_min", "parity", "utterances", min),
    ("blocking_ops", "audit", "blocking_ops", sum),
    ("dynamic_dims", "audit", "dynamic_dims", sum),
    ("nodes", "audit", "nodes", sum),
    ("nodes_on_npu", "audit", "nodes_on_npu", sum),
    ("compiled_buckets", "compile", "compiled", sum),
    ("binary_bytes_max", "compile", "binary_bytes", max),
    ("binary_bytes_sum", "compile", "binary_bytes", sum),
    ("compile_seconds_max", "compile", "seconds", max),
    ("compile_peak_rss_bytes_max", "compile", "peak_rss_bytes", max),
    ("rtf_p50_max", "profile", "rtf_p50", max),
    ("torch_rtf_p50_max", "profile", "torch_rtf_p50", max),
    ("latency_ms_p50_max", "profile", "latency_ms_p50", max),
    ("profile_peak_rss_bytes_max", "profile", "peak_rss_bytes", max),
    ("gmacs_max", "profile", "gmacs", max),
)


def summarize(reports_dir: Path, frames: Sequence[int], precision: str, weights_source: str) -> dict[str, Any]:
    """One flat row over all buckets.

    ``buckets`` and ``compiled_buckets`` stand beside the figures, so that leaving a bucket out, or failing to
    compile it, cannot look like a gain.

    Args:
        reports_dir: holds ``{parity,audit,compile,profile}/<frames>.json``.
        frames: the build's buckets; reports of other buckets are not read.
        precision: of the build.
        weights_source: label of the weights that the figures were measured on.

    Returns:
        ``buckets`` (count), ``frames``, ``precision``, ``weights_source``, ``versions`` and one value for
        each row of the table above: the worst of the buckets that have one, a total only if all have one,
        else None (no utterance fits a bucket; the machine has no compiler to place nodes with).

    Raises:
        KokoroNpuError: a report is missing.
    """
    summary: dict[str, Any] = {
        "buckets": len(frames),
        "frames": list(frames),
        "precision": precision,
        "versions": tool_versions(TOOLS),
        "weights_source": weights_source,
    }
    for name, kind, key, fold in _FIGURES:
        values = [read_report(reports_dir / kind / f"{size}.json")[key] for size in frames]
        known = [value for value in values if value is not None]
        summary[name] = fold(known) if known and (fold is not sum or len(known) == len(values)) else None
    return summary
