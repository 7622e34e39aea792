"""``kokoro-npu bisect MODEL.onnx FEEDS``: the first op at which the HTP emulation leaves ONNX Runtime."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError
from safetensors.numpy import load_file

from kokoro_npu.compile.binary import model_io
from kokoro_npu.compile.chips import DEFAULT, read_chip
from kokoro_npu.compile.options import CompileSettings
from kokoro_npu.emulation.bisect import compare
from kokoro_npu.emulation.graph import Tensor
from kokoro_npu.emulation.htp import require_emulation
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.reading import read_model
from kokoro_npu.host.steps import pad_to_bucket


def _feeds(path: Path, model: Path) -> dict[str, Tensor]:
    """Inputs as they are; those of an utterance of the reference set are padded to the model's frames."""
    shapes = {name: shape for name, (shape, _) in model_io(model)[0].items()}
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise KokoroNpuError(f"{path}: not a safetensors file: {error}") from None
    if "aligned_features" in found and "frame_mask" not in found:
        found = pad_to_bucket(found, Bucket(shapes["frame_mask"][-1]))
    wrong = [name for name, shape in shapes.items() if name not in found or found[name].shape != shape]
    if wrong:
        raise KokoroNpuError(f"{path}: holds no {wrong[0]} of shape {shapes[wrong[0]]}, an input of the model")
    return {name: found[name] for name in shapes}


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("feeds", type=click.Path(path_type=Path))
@click.option("--scope", default="", help="Only ops whose names begin so, such as /decode.0/; all by default.")
@click.option("--target", default=DEFAULT, show_default=True, help="Chip, a file of conf/target.")
@click.option("--level", type=click.IntRange(1, 3), default=2, show_default=True, help="Finalize level.")
@click.option("--floor", default=40.0, show_default=True, help="An op departs below so many dB.")
def command(model: Path, feeds: Path, scope: str, target: str, level: int, floor: float) -> None:
    """Cut MODEL (.onnx) after one op after the other, up to the first at which the HTP emulation leaves ONNX Runtime.

    FEEDS is an utterance of the reference set (artifacts/reference_set/<id>.safetensors) or a safetensors file with the
    model's inputs. Inputs of the scope are ONNX Runtime's, so what departs departs within it. About a second a cut.
    """
    require_emulation()
    settings = CompileSettings(optimization_level=level)
    table = Table("dB", "op", "node", "tensor")
    verdict = f"no op departs: all are at or above {floor:g} dB at level {level}"
    for cut in compare(read_model(model), _feeds(feeds, model), read_chip(target), settings, scope):
        table.add_row("-" if cut.snr_db is None else f"{cut.snr_db:.1f}", cut.op, cut.node, cut.error or cut.tensor)
        if cut.departs(floor):
            what = cut.error or f"{cut.snr_db:.1f} dB, below {floor:g}"
            verdict = f"first op that departs: {cut.node} ({cut.op}) at level {level}: {what}"
            break
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    console.print(verdict)
