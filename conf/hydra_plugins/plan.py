"""What a valid plan is: the rules of params.yaml, and the resolver ``frames``.

Both ways into the pipeline check the same rules before anything is written:

* ``dvc exp run`` loads this module as a Hydra plugin (``hydra.plugins_path`` in .dvc/config) and composes
  conf/ into params.yaml; resolving ``buckets: ${frames:…}`` checks the whole composition.
* a stage reads params.yaml, which somebody may have edited by hand, and calls `check` (stages/_config.py).

The rules decide only whether a stage may run, never what it reads or writes. So this file is no dependency
of any stage, and a new rule reruns nothing.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kokoro_npu.build.labels import FP32, QUANTIZED, TORCH
from kokoro_npu.compile.chips import read_chip
from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.evaluate.gates import FIGURES, gate_names

_CONF = Path(__file__).resolve().parents[1]


class Rule(NamedTuple):
    """One value's rule: the words for an error line, and the test."""

    expected: str
    holds: Callable[[Any], bool]


class Each(NamedTuple):
    """A mapping of any names: the pattern that they match, the words for an error line, and the rule of the values."""

    pattern: str
    expected: str
    rule: Any


def _integer(low: int, high: int | None = None) -> Rule:
    words = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    # type(), because True is an int to isinstance, and 1.5 must not be rounded.
    return Rule(words, lambda v: type(v) is int and v >= low and (high is None or v <= high))


def _number(low: float, high: float = float("inf")) -> Rule:
    words = f"a number from {low:g} to {high:g}"
    return Rule(words, lambda v: type(v) in (int, float) and low <= v <= high)


def _one_of(*choices: Any) -> Rule:
    words = f"one of {', '.join(map(str, choices))}"
    return Rule(words, lambda v: any(v == c and type(v) is type(c) for c in choices))


_FEWEST_FRAMES = 2  # an instance norm over one column has no variance
_FRAMES = Rule(
    f"an integer of at least {_FEWEST_FRAMES} or a list of them, such as 120 or [120,400]",
    lambda v: bool(v) and all(type(n) is int and n >= _FEWEST_FRAMES for n in (v if isinstance(v, list) else [v])),
)
_TEXT = Rule("a text", lambda v: isinstance(v, str) and v != "")
_FLAG = Rule("true or false", lambda v: isinstance(v, bool))
_TEXTS = Rule("a list of texts", lambda v: isinstance(v, list) and all(isinstance(s, str) and s for s in v))
_WINDOWS = Rule(
    f"a list of integers of at least {_FEWEST_FRAMES}, such as [5,12]",
    lambda v: isinstance(v, list) and (not v or _FRAMES.holds(v)),
)
_BUCKETS = Rule(
    f"a list of integers of at least {_FEWEST_FRAMES}, such as [200,1000]",
    lambda v: isinstance(v, list) and _FRAMES.holds(v),
)
_TEXT_OR_NONE = Rule("a text, which may be empty (a number in quotes)", lambda v: isinstance(v, str))
_DEVICES = Rule(
    "a device's name or a list of them, such as Samsung Galaxy S24",
    lambda v: bool(v) and all(isinstance(n, str) and n for n in (v if isinstance(v, list) else [v])),
)
_PRECISIONS = Rule(
    "a list of quantized, fp32 or both",
    lambda v: isinstance(v, list) and bool(v) and len(set(v)) == len(v) and set(v) <= {"quantized", "fp32"},
)
_ANY = Rule("anything", lambda _: True)


def _gates(*variants: str) -> Each:
    figures = ", ".join(f"{figure}_{end}" for figure, end in FIGURES.items())
    words = f"a gate, <variant>_<figure>: variants {', '.join(variants)}; figures {figures}"
    return Each("|".join(gate_names(*variants)), words, Rule("a number", lambda v: type(v) in (int, float)))


_GATES = Each(
    r"[a-z0-9]+(_[a-z0-9]+)+_(min|max)", "a gate, <precision>_<figure>_min or _max, such as fp32_snr_db_min",
    Rule("a number", lambda v: type(v) in (int, float)),
)  # fmt: skip
_RUNTIMES_GATES = Each(r"[a-z][a-z0-9_]*", "the name of a runtime", _GATES)
_OPTIONS = Rule("a mapping of option names to texts", lambda v: isinstance(v, dict))

_QUANTIZE: dict[str, Any] = {
    "precision": _one_of(*sorted(path.stem for path in (_CONF / "quantize").glob("*.yaml"))),
    "float": _FLAG,
    "activation_bits": _one_of(8, 16),
    "weight_bits": _one_of(8, 16),
    "per_channel": _FLAG,
    "recipe": _TEXT,
    "calibration": {
        "frames": _BUCKETS,
        "short_windows": _WINDOWS,
        "headroom": _number(1, 8),
        "norm_headroom": _number(1, 8),
    },
    "gates": _gates(QUANTIZED),
}

RULES: dict[str, Any] = {
    "seed": _integer(0),
    "buckets": _FRAMES,
    "bucket": {"frames": _FRAMES},
    "chips": _TEXTS,
    "weights": {},  # see _weights_rules
    "export": {"opset": _integer(17)},
    "corpus": _TEXT,
    "quantize": _QUANTIZE,
    "target": {
        "name": _TEXT,
        "chip": _TEXT,
        "soc_model": _integer(1),
        "htp_arch": _integer(1),
        "vtcm_mb": _integer(1),
        "source": _TEXT,
        "device": _DEVICES,
    },
    "compile": {
        "backend": _one_of("local", "aihub"),
        "optimization_level": _integer(1, 3),
        "long_buckets": _FLAG,
        "options": _OPTIONS,
        "memory_reserve_gib": _number(0),
    },
    "audit": {"op_table": _TEXT},
    "parity": {
        "fill_min": _number(0, 1),
        "gates": _gates(TORCH, FP32, QUANTIZED),
    },
    "sensitivity": {"frames": _integer(_FEWEST_FRAMES), "windows": _integer(1), "weight_bits": _one_of(8, 16)},
    "derive": {
        "thresholds": {
            "weights_snr_db": _number(-200, 200),
            "weights_mel_distance": _number(0),
            "activations_snr_db": _number(-200, 200),
            "float_snr_db": _number(-200, 200),
        },
        "fixed_overrides": _TEXT,
    },
    "op_numerics": {
        "max_seconds": _number(0),
        "processes": _integer(1),
        "gates": {"fp16_snr_db_min": _number(-200, 200), "quantized_snr_db_min": _number(-200, 200)},
    },
    "htp_parity": {
        "frames": _integer(_FEWEST_FRAMES),
        "utterances": _integer(1),
        "processes": _integer(1),
        "gates": _gates("fp16", QUANTIZED),
    },
    "profile": {"warmup": _integer(0), "runs": _integer(2), "seconds": _number(0), "threads": _integer(1)},
    "listening": {
        "precisions": Each(r"\w+", "the name of a precision", _QUANTIZE),
        "phases": _integer(1, 240),
        "points_max": _number(0, 100),
        "control_points_min": _number(0, 100),
    },
    "report": {"baseline": _TEXT},
    "package": {"precisions": _PRECISIONS},
    "speech": {
        "sentences": _TEXT,
        "fp32_snr_db_min": _number(-200, 200),
        "timed_text": _TEXT,
        "runs": _integer(1),
    },
    "runtimes": {
        "threads": _integer(1),
        "runs": _integer(1),
        "utterances": _integer(1),
        "interpreted": _integer(1),
        "litert_parts": {"tokens": _integer(3, 512), "frames": _integer(_FEWEST_FRAMES)},
        "gates": _RUNTIMES_GATES,
    },
    "nnapi": {"frames": _BUCKETS},
    "variants": {"names": _TEXTS, "frames_max": _integer(_FEWEST_FRAMES), "runs": _integer(2)},
    "aihub": {
        "target_runtime": _one_of("qnn_context_binary", "precompiled_qnn_onnx"),
        "qairt_version": _TEXT_OR_NONE,
        "compile_options": _TEXT_OR_NONE,
        "inference_options": _TEXT_OR_NONE,
        "utterances": _integer(1),
        "retry_failed": _FLAG,
        "poll_seconds": _number(1, 3600),
        "patience_seconds": _number(0, 86400),
        "job_seconds": _number(1, 604800),
        "journal": _TEXT,
    },
}


def check(params: Mapping[str, Any]) -> None:
    """Require of ``params`` (plain dicts and lists) exactly the keys of `RULES`, with values that they allow.

    Raises:
        KokoroNpuError: the first problem: an unknown key (with the nearest known one), a missing key, a bad
            value, or ``buckets`` that do not follow from ``bucket.frames``.
    """
    rules = RULES | {"weights": _weights_rules(params.get("weights"))}
    _check(params, rules, "")
    _check_target(params["target"])
    for name in params["chips"]:
        read_chip(name, _CONF / "target")
    if params["buckets"] != _normal(params["bucket"]["frames"]):
        raise KokoroNpuError(
            f"params.yaml: buckets {params['buckets']} does not follow from bucket.frames "
            f"{params['bucket']['frames']}; use `dvc exp run -S bucket.frames=…`, or edit conf/ and make plan"
        )


def check_frames(frames: Any) -> None:
    """Require an integer of at least 2, the bucket that one stage of a matrix works on.

    Raises:
        KokoroNpuError: anything else.
    """
    _check(frames, _integer(_FEWEST_FRAMES), "frames")


def _weights_rules(weights: Any) -> dict[str, Rule]:
    """Exactly the keys of conf/weights/<source>.yaml, as the sources' options differ.

    So ``weights=hub`` (the group, which brings its options along) passes and ``weights.source=hub`` alone
    does not. The values are checked by kokoro_npu.weights.
    """
    known = _one_of(*sorted(path.stem for path in (_CONF / "weights").glob("*.yaml")))
    if not isinstance(weights, Mapping) or "source" not in weights:
        return {"source": known}
    _check(weights["source"], known, "weights.source")
    option = yaml.safe_load((_CONF / "weights" / f"{weights['source']}.yaml").read_text(encoding="utf-8"))
    for key in weights:
        if key not in option:
            raise KokoroNpuError(
                f"weights.{key} is no option of source {weights['source']} (known: {', '.join(option)}); "
                f"to change the source, choose it with its options: weights={weights['source']}"
            )
    return dict.fromkeys(option, _ANY)


def _check_target(target: Mapping[str, Any]) -> None:
    """Require a chip of the table conf/target, with its own numbers, and no more VTCM than it has."""
    chip = read_chip(target["name"], _CONF / "target")
    for key in ("soc_model", "htp_arch"):
        if target[key] != getattr(chip, key):
            raise KokoroNpuError(
                f"target.{key} is {target[key]}; {chip.name} has {getattr(chip, key)} (conf/target/{chip.name}.yaml): "
                "choose a chip by target=<name>, or describe a new one by a file there"
            )
    if target["vtcm_mb"] > chip.vtcm_mb:
        raise KokoroNpuError(f"target.vtcm_mb is {target['vtcm_mb']}; {chip.name} has {chip.vtcm_mb} MB")


def _check(value: Any, rule: Any, path: str) -> None:
    if isinstance(rule, Rule):
        if not rule.holds(value):
            raise KokoroNpuError(f"{path} is {value!r}; it must be {rule.expected}")
        return
    prefix = f"{path}." if path else ""
    if isinstance(rule, Each):
        if not isinstance(value, Mapping):
            raise KokoroNpuError(f"{path} is {value!r}; it must be a mapping of names to values")
        for key, inner in value.items():
            if not re.fullmatch(rule.pattern, str(key)):
                raise KokoroNpuError(f"{prefix}{key}: {key} is not {rule.expected}")
            _check(inner, rule.rule, f"{prefix}{key}")
        return
    if not isinstance(value, Mapping):
        raise KokoroNpuError(f"{path or 'params.yaml'} is {value!r}; it must hold {', '.join(rule)}")
    for key in value:
        if key not in rule:
            raise KokoroNpuError(f"{prefix}{key} is not a parameter; {did_you_mean(key, rule)}")
    for key, inner in rule.items():
        if key not in value:
            raise KokoroNpuError(f"{prefix}{key} is missing from the parameters")
        _check(value[key], inner, f"{prefix}{key}")


def _normal(frames: Any) -> list[int]:
    return sorted(set(frames if isinstance(frames, list) else [frames]))


def frames(value: Any, *, _root_: DictConfig) -> ListConfig:
    """Resolver of ``buckets``: ``bucket.frames``, an integer or a list, as a sorted list without repetitions.

    Every composition resolves it exactly once, so it also checks the rest of the plan.

    Raises:
        KokoroNpuError: a value that is no bucket, or any other problem of the composition (see `check`).
    """
    value = OmegaConf.to_container(value) if isinstance(value, ListConfig) else value
    _check(value, _FRAMES, "bucket.frames")
    buckets = _normal(value)
    rest = OmegaConf.create(OmegaConf.to_container(_root_, resolve=False))
    rest.buckets = buckets
    check(OmegaConf.to_container(rest, resolve=True))  # type: ignore[arg-type]  # a DictConfig gives a dict
    return OmegaConf.create(buckets)


def one_line(error: BaseException) -> str:
    """Message of a failed composition as one line: ours where we raised it, else Hydra's or OmegaConf's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KokoroNpuError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    # Both end their message with lines for developers.
    message = str(error).split("\nConfig search path:")[0].split("\n    full_key:")[0]
    return " ".join(message.split())


def _exit_with_one_line(error: BaseException, **_: Any) -> NoReturn:
    """What DVC calls to print an exception that has ``__pretty_exc__``; else it prints a page and a footer.

    DVC has closed its locks and restored the workspace before it gets here, so leaving is safe.
    """
    raise SystemExit(f"error: {one_line(error)}")


OmegaConf.register_new_resolver("frames", frames, replace=True)
for _base in (HydraException, OmegaConfBaseException):
    _base.__pretty_exc__ = _exit_with_one_line  # type: ignore[union-attr]  # DVC's hook, unknown to Hydra
