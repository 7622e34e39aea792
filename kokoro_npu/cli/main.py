"""The command ``kokoro-npu``: one module of this package a subcommand, imported only when it is called.

A module ``kokoro_npu.cli.<name>`` holds one ``click`` command named ``command``; `COMMANDS` lists it with the line
that ``kokoro-npu --help`` shows, so that the help does not import torch.
"""

import importlib
import sys

import click

from kokoro_npu.errors import KokoroNpuError

COMMANDS: dict[str, str] = {
    "say": "Text to speech, to a WAV file or the loudspeaker",
    "doctor": "What this machine lacks for the pipeline, and what to do",
    "check-bundle": "Check an SDK bundle to the byte",
    "inspect": "What an HTP context binary is: chip, build, graphs, inputs and outputs, memory",
    "qnn-cost": "What a decoder costs on HTP: ops by kind, MACs, memory, the stages of its compile",
    "bisect": "The first op at which the HTP emulation leaves ONNX Runtime",
    "count": "Count a model's nodes, or the bytes of its weights, by operator, type or place",
    "diff": "List the operations added and removed between two models",
    "estimate-size": "Estimate a model's size after quantization, from a sensitivity analysis and thresholds",
    "verify": "Speak a text with a model and with PyTorch: two WAV files and the metrics",
}
"""Subcommand to its line of help; its module is the name with underscores for hyphens."""


class _Subcommands(click.Group):
    """Subcommands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None  # click's own error follows, with suggestions
        module = importlib.import_module(f"kokoro_npu.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Subcommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kokoro-npu")
def cli() -> None:
    """Kokoro-82M text-to-speech on phone NPUs."""


def main() -> None:
    """Entry point: a `KokoroNpuError` is one line and exit code 1, any other exception is a defect."""
    try:
        cli(prog_name="kokoro-npu")
    except KokoroNpuError as error:
        sys.exit(f"error: {error}")
