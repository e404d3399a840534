"""``python -m mlirfuse COMMAND``. A command is a module of this package with a function ``main(arguments)``, listed
below."""

from __future__ import annotations

import argparse
import importlib
import sys

from mlirfuse.core.errors import nearest
from mlirfuse.core.version import __version__
from mlirfuse.tools.command import command

COMMANDS = {  # the module, and its description
    "info": ("info", "what a bug report needs: versions, devices, settings, the cache"),
    "audit": ("audit", "run a script and compare each kernel with the device's limits"),
    "export": ("export", "compile a function ahead of time, as a C library or a file for Python"),
    "calibrate": ("calibrate", "measure this computer's GPU, for the choice of its schedules"),
    "clear-cache": ("clear_cache", "remove the compiled code in the disk cache"),
}


@command
def main(argv: list[str] | None = None) -> int:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name.ljust(width)}  {what}" for name, (_, what) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m mlirfuse",
        description=f"commands (each has --help):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mlirfuse {__version__}")
    parser.add_argument("command", metavar="COMMAND", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    if args.command not in COMMANDS:
        sys.stderr.write(f"python -m mlirfuse: error: no command '{args.command}'{nearest(args.command, COMMANDS)}\n")
        return 2
    return importlib.import_module(f"mlirfuse.tools.{COMMANDS[args.command][0]}").main(args.arguments)
