"""What the QNN compiler is asked for: chip, level, and an allow-list of options.

ONNX Runtime ignores unknown provider options without a word, and the HTP backend accepts values that no device has
(``vtcm_mb=99``), so every name and value of a user is checked here before the compiler sees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kokoro_npu.errors import KokoroNpuError, did_you_mean


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
        long_buckets: compile buckets of more than ``memory.LONG_FRAMES`` too, many minutes each.
        options: further QNN provider options of the allow-list, name to value.
        memory_reserve_gib: memory in GiB that the compiler must leave to the rest of the machine.
        aihub: fields of ``kokoro_npu.aihub.settings.ServiceSettings``; only the backend ``aihub`` reads them.
    """

    backend: str = "local"
    optimization_level: int = 2
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
    "enable_htp_graph_splitting": _FLAG,
    "enable_htp_monolithic_lstm": _FLAG,
    "enable_htp_prepare_only": _FLAG,
    "enable_htp_spill_fill_buffer": _FLAG,
    "extended_udma": _FLAG,
    "framework_op_trace_dir": None,
    "htp_bf16_enable": _FLAG,
    "htp_graph_splitting_num_prepare_threads": ("1", "2", "3", "4"),
    "json_qnn_graph_dir": None,
    "profiling_file_path": None,
    "profiling_level": ("off", "basic", "detailed", "optrace"),
    "qnn_context_priority": ("low", "normal", "normal_high", "high"),
    "vtcm_mb": None,  # checked against the target
}

# Of these, what needs a newer chip: field of the target, its first value, and why. Measured with onnxruntime-qnn 2.7.0.
_NEWER = {
    "extended_udma": ("htp_arch", 79, "on V75 and older graphAddNode fails with 6007"),
    "htp_bf16_enable": ("soc_model", 88, "bfloat16 needs soc_model 88 or newer"),
}

# Options that follow from the target or the other settings (set twice, the two could disagree), or that would leave no
# binary to trust.
_REFUSED = {
    "backend_path": "it is the HTP backend of the installed onnxruntime-qnn",
    "backend_type": "it is the HTP backend of the installed onnxruntime-qnn",
    "soc_model": "set target.soc_model",
    "htp_arch": "set target.htp_arch",
    "enable_htp_fp16_precision": "it is always 1: the float part of a graph runs in half precision",
    "htp_graph_finalization_optimization_mode": "set compile.optimization_level",
    "offload_graph_io_quantization": "it is always 0: with 1 the boundary Q/DQ nodes would run on the CPU",
    "dump_qnn_ir_dlc": "with it nothing is finalized and no binary comes out; the op audit uses it",
    "dump_qnn_ir_dlc_dir": "the op audit uses it",
    "qnn_ir_backend_path": "the op audit uses it",
    "skip_backend_op_validation": "it hides which nodes HTP refuses",
    "qnn_saver_path": "the saver records calls and compiles nothing",
    "op_packages": "custom op packages are not part of this build",
}


def _check_option(name: str, value: str, target: Target) -> None:
    if name in _REFUSED:
        raise KokoroNpuError(f"compile.options: {name} cannot be set there: {_REFUSED[name]}")
    if name not in _ALLOWED:
        raise KokoroNpuError(f"compile.options: unknown QNN option {name!r}; {did_you_mean(name, _ALLOWED)}")
    key, first, why = _NEWER.get(name, ("soc_model", 0, ""))
    if getattr(target, key) < first:
        raise KokoroNpuError(f"compile.options: {name} is refused for {target.name}: {why}")
    allowed = _ALLOWED[name]
    if allowed is not None and value not in allowed:
        raise KokoroNpuError(f"compile.options: {name}={value}: must be one of {', '.join(allowed)}")
    if name == "vtcm_mb" and not (value.isdecimal() and 1 <= int(value) <= target.vtcm_mb):
        raise KokoroNpuError(
            f"compile.options: vtcm_mb={value}: {target.name} has {target.vtcm_mb} MB; give 1 to {target.vtcm_mb}"
        )


def provider_options(target: Target, settings: CompileSettings) -> dict[str, str]:
    """QNN provider options of one session, all values as text; the worker adds where the backend lies.

    Raises:
        KokoroNpuError: an option is unknown (with a suggestion), refused for this chip, or out of range.
    """
    extra = {
        name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in settings.options.items()
    }
    for name, value in extra.items():
        _check_option(name, value, target)
    return {
        "soc_model": str(target.soc_model),
        "htp_arch": str(target.htp_arch),
        "vtcm_mb": str(target.vtcm_mb),
        "enable_htp_fp16_precision": "1",
        "htp_graph_finalization_optimization_mode": str(settings.optimization_level),
        "offload_graph_io_quantization": "0",
        **extra,
    }
