"""The command ``blink`` and its verbs."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command

from blinkccl.cli import console, removed

HELP = """
Examples:

\b
  blink topo dgx-1v                                    what is connected to what
  blink plan allreduce --topo dgx-1v --gpus 1,4,5,6    trees, rate, and the proof that none are faster
  blink plan broadcast --topo dgx-1v -o plan.json
  blink check plan.json                                is a plan what it says it is?
  blink show plan.json -o plan.html                    the same as a page to look at and click through
  blink export plan.json --to cuda                     the code that GPUs would run
  blink sim allreduce --topo dgx-1v --size 500M        how long it would take, beside NCCL
  blink explain allreduce --topo dgx-1v --size 64M     what runs it, and why
  blink bench allreduce -g 2 -b 4K -e 16M              between processes of this machine, every result checked
  blink tune -g 2                                      which choices are the fastest here: -g processes, or its GPUs
  blink lab broadcast --topo dgx-1v --gpus 1,4,5,6     on links that are shaped like the machine's
  blink run -- torchrun --nproc-per-node 4 train.py    an unchanged NCCL program, with trees where they are faster
  blink calibrate x.json                               latency and bandwidth from what bench or nccl-tests wrote
  blink doctor run.log node7.xml                       what is slow or wrong, why, and what to try
  blink dump 4711                                      what does a live job wait for?
  blink pick -k 3 --topo dgx-1v --free 0,1,4,6,7       which GPUs to ask for
  blink --version --json                               what is installed here
  blink --install-completion                           completes verbs and options in bash, zsh, fish

Collective communication planned from the links a job really has.

\b
SPEC is a machine (dgx-1v, dgx-a100, hgx-h100, dgx-b200, gb200-nvl72, mi300x, ...: blink topo --list),
a file ("nvidia-smi topo -m", "rocm-smi --showtopo" or "amd-smi topology" text, lstopo or NCCL XML,
our JSON; "node7.txt @ nvlink=50GB/s, nic=400Gbps" adds what it does not say), a rule (ring:8, torus:4x4,
random:12:seed=3), or several servers ("2x dgx-1v @ 40Gbps"). Without it: this machine.

\b
Exit codes: 0 ok; 1 a check failed; 2 usage or unreadable input; 3 hardware or driver missing;
4 timeout or lost peer.
"""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


#: The class above BadParameter, of click, which typer has inside or beside it and does not export.
_CLICK_USAGE_ERROR: Any = typer.BadParameter.__base__


class _Verbs(TyperGroup):
    """The verbs, whose usage errors name replacements and do not quote an argument of a hundred thousand characters."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            removed.refuse_removed(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _CLICK_USAGE_ERROR as error:
            if error.ctx is not None:
                removed.refuse_removed(f"{error.ctx.info_name} {getattr(error, 'option_name', '')}")
            error.message = console.shortened(error.message)
            raise


app = typer.Typer(
    name="blink",
    cls=_Verbs,
    help=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=SETTINGS,
)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[bool, Option("--version", help="Print what is installed here, and exit.")] = False,
    man: Annotated[bool, Option("--man", help="Print the manual page, for man -l -, and exit.")] = False,
    json: Annotated[bool, Option("--json", help="--version as one JSON object.")] = False,
) -> None:
    """Options of ``blink`` itself; the verbs follow."""
    if man:
        from blinkccl.cli.manual import manual

        console.emit(manual(ctx.command))
        raise typer.Exit
    if version:
        from blinkccl.cli.version import print_version

        print_version(json)
        raise typer.Exit
    if json:
        raise typer.BadParameter("--json in front of the verb is for --version: give it behind the verb")


#: The verbs in the order of the help, each a file beside this one, and what it is in a line.
VERBS = {
    "topo": "What is connected to what, how fast, and who says so.",
    "plan": "Trees for a collective, their rate, and the proof of the best.",
    "check": "Is a plan what it says it is, and does it run?",
    "show": "A picture and a page of a machine, a plan or a result.",
    "export": "A plan as code, or in the format of another tool.",
    "sim": "How long would it take, on calibrated links, and what would NCCL get?",
    "explain": "What will run a call, and why?",
    "bench": "Run a collective on this machine; every result checked.",
    "tune": "Which choices are the fastest here, on GPUs or between processes?",
    "lab": "Run plans on shaped links, between network namespaces of this machine.",
    "run": "Run an unchanged NCCL program, with trees where they are faster.",
    "calibrate": "Which latency and bandwidth explain what was measured?",
    "doctor": "What is wrong, with this machine or in these logs?",
    "dump": "What does a live job on this host wait for?",
    "pick": "Which GPUs to ask for.",
}
for _name, _about in VERBS.items():
    _file = import_module(f"blinkccl.cli.{_name}")
    app.command(_name, help=_file.HELP, short_help=_about, context_settings=SETTINGS | getattr(_file, "CONTEXT", {}))(
        getattr(_file, _name)
    )

#: Made once: typer would read the annotations of all verbs again at every call.
command: Any = get_command(app)
