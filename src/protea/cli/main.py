"""The program `protea`: finds the command, runs it, and turns whatever goes wrong into one line and an exit status.

0 done, 1 our fault, 2 the user's, 130 interrupted, 141 nobody reads the output any more, 143 terminated.
"""

import contextlib
import importlib
import os
import signal
import sys
import traceback
import warnings
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from protea.cli.output import clean, say
from protea.errors import ProteaError

COMMANDS = {
    "load": ("load", "Load annotations, an ontology, proteins, embeddings, and the inputs of more features."),
    "embed": ("embed", "Compute embeddings from the sequences of a loaded protein set."),
    "inspect": ("inspect", "Say what a file holds and what is wrong with it, loading nothing."),
    "list": ("listing", "List what is loaded, and the datasets."),
    "export": ("export", "Plan, run and explain exports."),
    "job": ("job", "Queue exports for workers, look at them, end them, try them again."),
    "worker": ("worker", "Work off queued jobs; `worker status` says who does."),
    "dataset": ("dataset", "Look at published datasets."),
    "gc": ("upkeep:gc_app", "Remove what nothing refers to any more."),
    "doctor": ("upkeep:doctor_app", "Check the home: database, files, versions, disk."),
    "features": ("features", "Say what every column is, and what it needs."),
    "demo": ("demo", "Run the whole job on a small generated proteome."),
    "db": ("db", "Look after the catalogue's database."),
}
"""Command -> the module that has its `app` (or the typer named after a colon), and its line in the help."""

# Found by looking: some releases of typer use click's class, others one of their own.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class _Commands(TyperGroup):
    """The commands; the module of one is imported when it is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            module, _, attribute = COMMANDS[name][0].partition(":")
            found = getattr(importlib.import_module(f"protea.cli.{module}"), attribute or "app")
            command = typer.main.get_command(found)
        return name, command, rest


app = typer.Typer(
    name="protea",
    cls=_Commands,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"protea {version('protea')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Tracebacks instead of one-line errors; goes anywhere.")
    ] = False,
) -> None:
    """Temporal hold-out datasets for training rerankers of Gene Ontology predictions."""


def _stub() -> None:
    """Stands for a command in the list of commands."""


for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_stub)


def main(argv: list[str] | None = None) -> int:
    """Run the command line of this process, or `argv`; gives the exit status."""
    args = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in args or os.environ.get("PROTEA_DEBUG", "").lower() not in ("", "0", "false", "no", "off")
    if argv is None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _terminated)
    if not debug and not sys.warnoptions:
        warnings.simplefilter("ignore")
    try:
        code = _run([a for a in args if a != "--debug"])
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _mute()
        return 141
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted: nothing half-done is left and what was finished is kept; the same command goes on")
        return 130
    except ProteaError as e:
        return _failed(str(e), e.exit_code, debug)
    except UsageError as e:
        return _misused(e, debug)
    except OSError as e:
        what = f"{e.filename}: " if e.filename else ""
        return _failed(f"{what}{e.strerror or e}", 1, debug)
    except MemoryError:
        return _failed("there is not enough memory for this", 1, debug)
    except Exception as e:
        said = "; ".join(line.strip() for line in str(e).splitlines() if line.strip())
        name = type(e).__name__
        advice = "" if debug else "; this should not happen: run it again with --debug to see where"
        return _failed(f"{name}: {said}{advice}" if said else f"{name}{advice}", 1, debug)


def _run(args: list[str]) -> int:
    command = typer.main.get_command(app)
    if "_PROTEA_COMPLETE" in os.environ:
        command.main(prog_name="protea")
    try:
        with command.make_context("protea", args) as context:
            command.invoke(context)
    except typer.Exit as e:
        return int(e.exit_code)
    return 0


def _misused(e: Any, debug: bool) -> int:
    """What typer has to say of a command line."""
    if type(e).__name__ == "NoArgsIsHelpError":
        print(e.ctx.get_help())
        return 2
    path = e.ctx.command_path if e.ctx is not None else "protea"
    text = e.format_message().replace(": Value error, ", ": ").rstrip(".")
    return _failed(f"{text} (see `{path} --help`)", 2, debug)


def _failed(text: str, code: int, debug: bool) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _mute()
    with contextlib.suppress(OSError):
        if debug:
            traceback.print_exc()
        print(f"protea: error: {clean(text)}", file=sys.stderr, flush=True)
    return code


def _mute() -> None:
    """Let what is left of an output that cannot be written go nowhere, or Python says so when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminated(number: int, frame: FrameType | None) -> None:
    """Leave like after an exception, so that the embedded server does not stay behind."""
    raise SystemExit(128 + number)
