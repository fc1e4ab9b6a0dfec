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
  blink topo dgx-1v                                    GPUs, links and their rates
  blink plan allreduce --topo dgx-1v --gpus 1,4,5,6    trees, rate, and a proof that none are faster
  blink plan broadcast --topo dgx-1v -o plan.json
  blink check plan.json                                verify a plan
  blink show plan.json -o plan.html                    the plan as a page to click through
  blink export plan.json --to cuda                     the code that GPUs would run
  blink sim allreduce --topo dgx-1v --size 500M        predicted time, beside NCCL
  blink explain allreduce --topo dgx-1v --size 64M     which algorithm runs, and why
  blink bench allreduce -g 2 -b 4K -e 16M              between processes of this machine, every result checked
  blink tune -g 2                                      measures the fastest choices; without -g on all GPUs
  blink lab broadcast --topo dgx-1v --gpus 1,4,5,6     on emulated links with the machine's ratios
  blink run -- torchrun --nproc-per-node 4 train.py    an unchanged NCCL program, with trees where they are faster
  blink doctor run.log node7.xml                       problems, their causes, and a command to try
  blink dump 4711                                      the calls that a live job waits for
  blink pick -k 3 --topo dgx-1v --free 0,1,4,6,7       which GPUs to ask for
  blink --version --json                               versions of everything installed here
  blink --install-completion                           completes verbs and options in bash, zsh, fish

Collective communication planned from the links that a job really has.

\b
SPEC is a machine (dgx-1v, hgx-h100, mi300x), a file ("nvidia-smi topo -m", NCCL XML;
"node7.txt @ nvlink=50GB/s, nic=400Gbps" adds rates that the file lacks), a rule (ring:8, torus:4x4), or
several servers ("2x dgx-1v @ 40Gbps"); blink topo --list has all. Without it: this machine.

\b
Exit codes: 0 ok; 1 a check failed; 2 usage or unreadable input; 3 hardware or driver missing;
4 timeout or lost peer.
"""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


#: The base class of BadParameter, from click: typer bundles click or depends on it, and does not export the class.
_CLICK_USAGE_ERROR: Any = typer.BadParameter.__base__


class _Verbs(TyperGroup):
    """The verbs; their usage errors name replacements of removed words, and shorten long arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args and not ctx.resilient_parsing:
            removed.refuse_removed(args[0])
        return super().parse_args(ctx, args)

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
    version: Annotated[bool, Option("--version", help="Print the versions installed here, and exit.")] = False,
    json: Annotated[bool, Option("--json", help="With --version: print one JSON object.")] = False,
) -> None:
    """Options of ``blink`` itself; the verbs follow."""
    if version:
        from blinkccl.cli.version import print_version

        print_version(json)
        raise typer.Exit
    if json:
        raise typer.BadParameter("--json before the verb belongs to --version: put it behind the verb")


#: The verbs in the order of the help, each a file beside this one, and a line on each.
VERBS = {
    "topo": "Show the links of a machine, their rates, and the source of each.",
    "plan": "Find trees for a collective, their rate, and a proof that none are faster.",
    "check": "Verify every statement of a plan, and its program.",
    "show": "Draw a machine or a plan, as a picture or a page.",
    "export": "Write a plan as code, or in the format of another tool.",
    "sim": "Predict times on calibrated links, beside NCCL.",
    "explain": "Explain which algorithm runs a call, and why.",
    "bench": "Run a collective on this machine, and check every result.",
    "tune": "Measure the fastest choices here, on GPUs or between processes.",
    "lab": "Run plans on emulated links between network namespaces of this machine.",
    "run": "Run an unchanged NCCL program, with trees where they are faster.",
    "doctor": "Diagnose this machine, or the logs of a job.",
    "dump": "Show the calls that a live job on this host waits for.",
    "pick": "Rank sets of free GPUs by the rate of their best plan.",
}
for _name, _about in VERBS.items():
    _file = import_module(f"blinkccl.cli.{_name}")
    app.command(_name, help=_file.HELP, short_help=_about, context_settings=SETTINGS | getattr(_file, "CONTEXT", {}))(
        getattr(_file, _name)
    )

#: Built once, because typer reads the annotations of all verbs at every build.
command: Any = get_command(app)
