"""What the QNN compiler is asked for: target, level, and an allow-list of options.

ONNX Runtime ignores unknown provider options without a word, and the HTP backend accepts values that no
device has (``vtcm_mb=99``), so every name and value is checked here before the compiler sees it.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kokoro_npu.errors import KokoroNpuError

LEVELS = (1, 2, 3)
"""Finalize levels of HTP. 3 takes about three times as long as 2 (design §5)."""


@dataclass(frozen=True)
class Target:
    """The chip that a binary is for.

    Attributes:
        name: part number, e.g. ``sm8650``.
        chip: marketing name.
        soc_model: Qualcomm's SoC number (``QNN_SOC_MODEL_*``); the binary carries it.
        htp_arch: Hexagon version, 75 for V75.
        vtcm_mb: tightly coupled memory of the HTP in MB, the most a graph may ask for.
        source: where these numbers come from.
        device: names of AI Hub devices with this chip, one or several; only that backend reads them.
    """

    name: str
    chip: str
    soc_model: int
    htp_arch: int
    vtcm_mb: int
    source: str = ""
    device: str | Sequence[str] = ""


@dataclass(frozen=True)
class CompileSettings:
    """How to compile.

    Attributes:
        backend: name of a compile backend, see ``kokoro_npu.compile.backends.BACKENDS``.
        optimization_level: finalize level, 1 to 3. It changes the arithmetic, so it is part of what an audit
            certifies.
        graph_splitting: let the compiler split the graph: less memory, larger binary.
        long_buckets: compile buckets of more than ``memory.LONG_FRAMES`` too, many minutes each.
        options: further QNN provider options of the allow-list, name to value.
        memory_reserve_gib: memory in GiB that the compiler must leave to the rest of the machine.
        aihub: settings of the AI Hub backend, see ``kokoro_npu.aihub.settings.Settings``; no other reads them.
    """

    backend: str = "local"
    optimization_level: int = 2
    graph_splitting: bool = False
    long_buckets: bool = False
    options: Mapping[str, str | int | bool] = field(default_factory=dict)
    memory_reserve_gib: float = 1.5
    aihub: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """What a binary is to be.

    Attributes:
        precision: of its decoder: ``w8a16``, ``w8a8`` or ``fp16``.
        target: the chip.
        settings: backend, level and options.
    """

    precision: str
    target: Target
    settings: CompileSettings


_FLAG = ("0", "1")

# Options that may be added. A tuple holds the allowed values, None means any text.
_ALLOWED: dict[str, tuple[str, ...] | None] = {
    "dump_json_qnn_graph": _FLAG,
    "enable_block_quant_weight_optimization": _FLAG,
    "enable_framework_op_trace": _FLAG,
    "enable_htp_fp16_clamp_overflow": _FLAG,
    "enable_htp_monolithic_lstm": _FLAG,
    "enable_htp_prepare_only": _FLAG,
    "enable_htp_spill_fill_buffer": _FLAG,
    "framework_op_trace_dir": None,
    "htp_graph_splitting_num_prepare_threads": ("1", "2", "3", "4"),
    "json_qnn_graph_dir": None,
    "profiling_file_path": None,
    "profiling_level": ("off", "basic", "detailed", "optrace"),
    "qnn_context_priority": ("low", "normal", "normal_high", "high"),
    "vtcm_mb": None,  # checked against the target
}

# Options that follow from the target or the other settings: setting them twice would let the two disagree.
_OWNED = {
    "backend_path": "it is the HTP backend of the installed onnxruntime-qnn",
    "backend_type": "it is the HTP backend of the installed onnxruntime-qnn",
    "soc_model": "set target.soc_model",
    "htp_arch": "set target.htp_arch",
    "enable_htp_fp16_precision": "it is always 1: the float part of a graph runs in half precision",
    "htp_graph_finalization_optimization_mode": "set compile.optimization_level",
    "enable_htp_graph_splitting": "set compile.graph_splitting",
    "offload_graph_io_quantization": "it is always 0: with 1 the boundary Q/DQ nodes would run on the CPU",
    "dump_qnn_ir_dlc": "with it nothing is finalized and no binary comes out; the op audit uses it",
    "dump_qnn_ir_dlc_dir": "the op audit uses it",
    "qnn_ir_backend_path": "the op audit uses it",
}

# Measured with onnxruntime-qnn 2.7.0.
_REFUSED = {
    "extended_udma": "on V75 and older graphAddNode fails with 6007",
    "htp_bf16_enable": "bfloat16 needs soc_model 88 or newer",
    "skip_backend_op_validation": "it hides which nodes HTP refuses",
    "qnn_saver_path": "the saver records calls and compiles nothing",
    "op_packages": "custom op packages are not part of this build",
}
_BF16_SOC = 88
_UDMA_ARCH = 79
_UNREFUSED_FROM = {
    "htp_bf16_enable": lambda target: target.soc_model >= _BF16_SOC,
    "extended_udma": lambda target: target.htp_arch >= _UDMA_ARCH,
}

_SESSION_ENTRIES = frozenset(
    {
        "session.disable_cpu_ep_fallback",
        "session.record_ep_graph_assignment_info",
        "ep.context_enable",
        "ep.context_file_path",
        "ep.context_embed_mode",
    }
)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _suggest(name: str, known: set[str] | frozenset[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(sorted(known))}"


def _check_option(name: str, value: str, target: Target) -> None:
    permitted = name in _UNREFUSED_FROM and _UNREFUSED_FROM[name](target)
    if name in _REFUSED and not permitted:
        raise KokoroNpuError(f"compile.options: {name} is refused for {target.name}: {_REFUSED[name]}")
    if name in _OWNED:
        raise KokoroNpuError(f"compile.options: {name} cannot be set there: {_OWNED[name]}")
    if permitted:
        allowed: tuple[str, ...] | None = _FLAG
    elif name in _ALLOWED:
        allowed = _ALLOWED[name]
    else:
        raise KokoroNpuError(f"compile.options: unknown QNN option {name!r}; {_suggest(name, set(_ALLOWED))}")
    if allowed is not None and value not in allowed:
        raise KokoroNpuError(f"compile.options: {name}={value}: must be one of {', '.join(allowed)}")
    if name == "vtcm_mb" and not (value.isdecimal() and 1 <= int(value) <= target.vtcm_mb):
        raise KokoroNpuError(
            f"compile.options: vtcm_mb={value}: {target.name} has {target.vtcm_mb} MB; give 1 to {target.vtcm_mb}"
        )


def provider_options(target: Target, settings: CompileSettings, backend_path: str) -> dict[str, str]:
    """QNN provider options for one compile, all values as text.

    Args:
        target: the chip.
        settings: level, splitting and further options.
        backend_path: path of ``libQnnHtp.so``.

    Raises:
        KokoroNpuError: an option is unknown (with a suggestion), refused for this chip, or out of range.
    """
    for key in ("soc_model", "htp_arch", "vtcm_mb"):
        value = getattr(target, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise KokoroNpuError(f"target.{key}={value!r}: must be a positive integer")
    if settings.optimization_level not in LEVELS:
        raise KokoroNpuError(f"compile.optimization_level={settings.optimization_level}: must be 1, 2 or 3")
    extra = {name: _text(value) for name, value in settings.options.items()}
    for name, value in extra.items():
        _check_option(name, value, target)
    options = {
        "backend_path": backend_path,
        "soc_model": str(target.soc_model),
        "htp_arch": str(target.htp_arch),
        "vtcm_mb": str(target.vtcm_mb),
        "enable_htp_fp16_precision": "1",
        "htp_graph_finalization_optimization_mode": str(settings.optimization_level),
        "offload_graph_io_quantization": "0",
    }
    if settings.graph_splitting:
        options["enable_htp_graph_splitting"] = "1"
    return options | extra


def session_entries(**entries: str) -> dict[str, str]:
    """Session config entries with dots written as double underscores, checked against the allow-list.

    Raises:
        KokoroNpuError: an entry is not one that this project uses (ONNX Runtime would ignore a typo
            silently).
    """
    result = {name.replace("__", "."): value for name, value in entries.items()}
    for name in result:
        if name not in _SESSION_ENTRIES:
            raise KokoroNpuError(f"session entry {name!r} is unknown; {_suggest(name, _SESSION_ENTRIES)}")
    return result
