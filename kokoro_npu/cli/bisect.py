"""``kokoro-npu cuts MODEL.onnx FEEDS``: the first op at which the HTP emulation leaves ONNX Runtime."""

from pathlib import Path

import click
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs installed
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.emulation.bisect import compare
from kokoro_npu.emulation.graph import Tensor
from kokoro_npu.emulation.htp import require_emulation
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Bucket
from kokoro_npu.host.steps import pad_to_bucket


def _model(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path)
    except (OSError, DecodeError, onnx.checker.ValidationError) as error:
        raise KokoroNpuError(f"{path}: cannot be read as an ONNX model: {' '.join(str(error).split())}") from None


def _feeds(path: Path, model: onnx.ModelProto) -> dict[str, Tensor]:
    """Inputs as they are (.npz), or a recorded utterance (.safetensors) padded to the model's frames."""
    constants = {tensor.name for tensor in model.graph.initializer}
    shapes = {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in model.graph.input
        if info.name not in constants
    }
    try:
        if path.suffix == ".npz":
            with np.load(path) as stored:
                found = dict(stored)
        else:
            found = dict(load_file(path))
    except Exception as error:  # three libraries, each with its own
        raise KokoroNpuError(f"{path}: neither .npz nor .safetensors: {' '.join(str(error).split())}") from None
    if path.suffix != ".npz" and "frame_mask" in shapes:
        found = pad_to_bucket(found, Bucket(shapes["frame_mask"][-1]))
    wrong = [name for name, shape in shapes.items() if name not in found or list(found[name].shape) != shape]
    if wrong:
        raise KokoroNpuError(f"{path}: holds no {wrong[0]} of shape {shapes[wrong[0]]}, an input of the model")
    return {name: found[name] for name in shapes}


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("feeds", type=click.Path(path_type=Path))
@click.option("--scope", default="", help="Only ops whose names begin so, such as /decode.0/; all by default.")
@click.option("--level", type=click.IntRange(1, 3), default=2, show_default=True, help="Finalize level.")
@click.option("--floor", default=40.0, show_default=True, help="An op departs below so many dB.")
@click.option("--stop", is_flag=True, help="Stop at the first op that departs.")
@click.option("--soc-model", default=57, show_default=True, help="Chip (57: Snapdragon 8 Gen 3).")
@click.option("--htp-arch", default=75, show_default=True, help="Hexagon version.")
@click.option("--vtcm-mb", default=8, show_default=True, help="The chip's VTCM.")
def command(
    model: Path,
    feeds: Path,
    scope: str,
    level: int,
    floor: float,
    stop: bool,
    soc_model: int,
    htp_arch: int,
    vtcm_mb: int,
) -> None:
    """Cut MODEL (.onnx) at every tensor, and name the first op at which the HTP emulation leaves ONNX Runtime.

    FEEDS is a recorded utterance (artifacts/reference_set/<id>.safetensors) or an .npz with the model's inputs. Inputs
    of the scope are ONNX Runtime's, so what departs departs within it. About a second a cut.
    """
    require_emulation()
    loaded = _model(model)
    target = Target("the chip", "", soc_model, htp_arch, vtcm_mb)
    table = Table("dB", "op", "node", "tensor")
    first = None
    found = compare(loaded, _feeds(feeds, loaded), target, CompileSettings(optimization_level=level), scope)
    for cut in found:
        table.add_row("-" if cut.snr_db is None else f"{cut.snr_db:.1f}", cut.op, cut.node, cut.error or cut.tensor)
        if first is None and cut.departs(floor):
            first = cut
            if stop:
                found.close()  # type: ignore[attr-defined]  # a generator
                break
    console = Console(soft_wrap=True)
    console.print(table)
    if first is None:
        console.print(f"no op departs: all are at or above {floor:g} dB at level {level}", highlight=False)
    else:
        what = first.error or f"{first.snr_db:.1f} dB, below {floor:g}"
        console.print(f"first op that departs: {first.node} ({first.op}) at level {level}: {what}", highlight=False)
