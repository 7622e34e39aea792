"""Which runtime to take on a CPU, by the table of runtimes."""

from pathlib import Path

from kokoro_npu.files import read_json

_TIME, _SNR = "_time_ratio", "_snr_db_min"
_EXACT_DB = 80.0
"""From here on a decoder counts as exact: the floor of the float ones."""


def fastest_on_cpu(report: Path) -> str | None:
    """The fastest decoder that the stage ``runtimes`` measured, and the fastest exact one, in one line.

    Args:
        report: ``reports/runtimes.json``, of :func:`kokoro_npu.runtimes.table.summarize`.

    Returns:
        None without a report: the stage is optional.
    """
    if not report.is_file():
        return None
    figures = read_json(report)
    times = {name.removesuffix(_TIME): value for name, value in figures.items() if name.endswith(_TIME)}
    exact = [name for name in times if figures[name + _SNR] >= _EXACT_DB]
    parts = [_part(figures["fastest"], times, f"at {figures[figures['fastest'] + _SNR]:.1f} dB")]
    if exact and figures["fastest"] not in exact:
        parts.append(_part(min(exact, key=times.__getitem__), times, f"of those above {_EXACT_DB:g} dB"))
    return "; ".join(parts)


def _part(name: str, times: dict[str, float], remark: str) -> str:
    runtime, precision = name.rsplit("_", 1)
    return f"{runtime} {precision}, {times[name]:.2f} of ONNX Runtime fp32's time, {remark}"
