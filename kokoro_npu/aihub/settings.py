"""How the service is used, and the option texts of its jobs."""

import shlex
from dataclasses import dataclass

from kokoro_npu.errors import KokoroNpuError

# Options that follow from other settings: given twice, the two could disagree.
_OWNED = {"--target_runtime": "aihub.target_runtime", "--qairt_version": "aihub.qairt_version"}
_QNN_OPTIONS = "--qnn_options"


@dataclass(frozen=True)
class ServiceSettings:
    """How the service is used. Times in seconds.

    Attributes:
        journal: directory of the journal and of the outputs that came back.
        target_runtime: route of the compile job, ``qnn_context_binary`` (the bare binary) or ``precompiled_qnn_onnx``
            (an archive that holds it beside its EPContext model).
        qairt_version: QAIRT for both jobs, e.g. ``2.45``; empty for the service's default.
        compile_options: further options of the compile job, as the service documents them. Keys in its
            ``--qnn_options`` win over those that follow from the target.
        inference_options: further options of the inference job.
        utterances: at most so many evaluation utterances, the longest that fit, are sent to each device.
        retry_failed: submit a job again that the service has failed.
        poll_seconds: between two looks at the jobs.
        patience_seconds: how long a failing service is tried before giving up.
        connect_seconds: the same, for the first contact.
        job_seconds: how long to wait for a job; it is not lost, the next run goes on waiting.
        call_seconds: limit of one call; transfers get a second more for each ``transfer_bytes``.
        transfer_bytes: slowest rate at which a transfer is still waited for, bytes a second.
        backoff_seconds: first pause after a failure; it doubles up to a minute.
        settle_seconds: how long after a lost reply the job may take to show up in the service's list. The service ends
            a request after 26 s (``qai_hub.util.session``), so none can come to be later.
    """

    journal: str = "artifacts/aihub"
    target_runtime: str = "qnn_context_binary"
    qairt_version: str = ""
    compile_options: str = ""
    inference_options: str = ""
    utterances: int = 3
    retry_failed: bool = False
    poll_seconds: float = 10.0
    patience_seconds: float = 300.0
    connect_seconds: float = 30.0
    job_seconds: float = 6 * 3600.0
    call_seconds: float = 120.0
    transfer_bytes: float = 64 * 1024.0
    backoff_seconds: float = 1.0
    settle_seconds: float = 30.0


def compile_options(settings: ServiceSettings, optimization_level: int, vtcm_mb: int) -> str:
    """Options of the compile job: route, QAIRT version, finalize level, half precision for floats, and VTCM in MB.

    Raises:
        KokoroNpuError: ``aihub.compile_options`` sets what another setting owns, or cannot be read.
    """
    qnn = {
        "default_graph_htp_optimizations": f"O={optimization_level}",
        "default_graph_htp_precision": "FLOAT16",
        "default_graph_htp_vtcm_size": str(vtcm_mb),
    }
    rest, extra = _take_qnn_options(_words(settings.compile_options, "aihub.compile_options"))
    parts = ["--target_runtime", settings.target_runtime]
    parts += [_QNN_OPTIONS, ";".join(f"{key}={value}" for key, value in (qnn | extra).items())]
    return " ".join([*parts, *_version(settings), *rest])


def inference_options(settings: ServiceSettings) -> str:
    """Options of the inference job."""
    return " ".join([*_version(settings), *_words(settings.inference_options, "aihub.inference_options")])


def _version(settings: ServiceSettings) -> list[str]:
    return ["--qairt_version", settings.qairt_version] if settings.qairt_version else []


def _words(text: str, where: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise KokoroNpuError(f"{where}: {text!r} cannot be read: {error}") from None
    for word in words:
        if owner := _OWNED.get(word.partition("=")[0]):
            raise KokoroNpuError(f"{where}: {word} cannot be set there; set {owner}")
    return words


def _take_qnn_options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words without ``--qnn_options a=1;b=2``, and those options."""
    rest: list[str] = []
    found: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != _QNN_OPTIONS:
            rest.append(word)
            continue
        for option in (value if equals else next(remaining, "")).split(";"):
            key, equals, value = option.partition("=")
            if not (key and equals and value):
                raise KokoroNpuError(f"aihub.compile_options: {_QNN_OPTIONS} {option!r} is no key=value")
            found[key] = value
    return rest, found
