"""The learner's command, `mlsys-lab`: start, check, progress, estimate, plan, generate, serve and more."""

from __future__ import annotations

from mlsys_lab.cli.shell import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: dict[str, dict[str, str]] = {
    "Labs": {
        "list": "mlsys_lab.cli.listing",
        "start": "mlsys_lab.cli.start",
        "check": "",
        "progress": "mlsys_lab.cli.progress",
        "doctor": "mlsys_lab.cli.doctor",
    },
    "Plan a model": {
        "estimate": "mlsys_lab.cli.estimate",
        "plan": "mlsys_lab.cli.plan",
        "plan-serving": "mlsys_lab.cli.plan_serving",
        "simulate-serving": "mlsys_lab.cli.simulate_serving",
        "calibrate": "mlsys_lab.cli.calibrate",
    },
    "Run one": {
        "generate": "mlsys_lab.cli.generate",
        "serve": "mlsys_lab.cli.serve",
        "sample-digits": "mlsys_lab.cli.sample_digits",
        "bench-collectives": "mlsys_lab.cli.bench_collectives",
        "export": "mlsys_lab.cli.export",
        "compress": "mlsys_lab.cli.compress",
    },
    "Your own stack": {
        "capstone": "mlsys_lab.cli.capstone",
        "milestones": "mlsys_lab.cli.milestones",
    },
}
"""The module of each command, by the headings of the help; that of `check` is an entry point of `mlsys_checks`."""
EXTRAS = dict.fromkeys(
    ("starlette", "uvicorn", "msgspec", "sse_starlette", "prometheus_client", "tokenizers", "jinja2"), "serve"
)
"""Packages that a command needs and not everybody has, with the extra of mlsys-lab that installs each."""
DESCRIPTION = """\
Do the labs of the course on machine-learning systems.

A lab is a notebook. You start one, fill in its tasks, and every task has a check that tells you at once whether
it works. What you build in one lab is what the next lab runs on.
"""
EXAMPLES = """\
a first hour:
  mlsys-lab doctor             what this machine can run, and the fix for what is missing
  mlsys-lab list               the labs, their minutes and points
  mlsys-lab start autograd     put the notebook into ./01-autograd/, and make this folder your workspace
  jupyter lab 01-autograd      open it; fill in a task; run its check("…") cell
  mlsys-lab check autograd     run all checks on the saved notebook; when all pass, later labs use your code
  mlsys-lab progress           your points so far

what a model needs:
  mlsys-lab estimate llama3-8b --device H100 --data 8 --zero 3

how to divide its training among devices:
  mlsys-lab plan llama3-70b --device H100 --devices 512 --batch 512

what serves a load within an objective:
  mlsys-lab plan-serving llama3-70b --device H100 --slo-ttft 0.5 --slo-tpot 0.05 --rate 20

how long requests wait as more of them come, and whether prompts read elsewhere would help:
  mlsys-lab simulate-serving llama3-70b --tensor 8 --rate 60 80 --replicas 4 --readers 3

the same on the step times of this machine, from a trace that `mlsys-lab serve --trace-out` wrote:
  mlsys-lab calibrate trace.jsonl --out clock.json

what ranks cost each other:
  mlsys-lab bench-collectives --backend gloo --ranks 4

what a small language model writes, and how far from its bound:
  mlsys-lab generate --prompt "A cache" --speculative

the same model, or one of yours, behind an API like OpenAI's, for any number of clients:
  mlsys-lab serve --port 8000
  mlsys-lab export runs/first my-model && mlsys-lab serve --model my-model

what the same model loses and saves in 4 bits:
  mlsys-lab compress mlsys-lab-target small --bits 4 --group 32 && mlsys-lab serve --model small

what a small diffusion model draws, and what that costs:
  mlsys-lab sample-digits 7 --steps 20 --guidance 2

one model on the code of your labs, with every cost predicted first:
  mlsys-lab capstone plan && mlsys-lab capstone train && mlsys-lab capstone report

what papers from 1986 to 2023 printed, reproduced with the code of your labs:
  mlsys-lab milestones

exit codes: 0 done and passed, 1 a mistake or a check that did not pass, 2 a command line that is not understood
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, and prints a person's mistake as one line on stderr."""
    return run("mlsys-lab", _command, argv, extras=EXTRAS)


def _command(arguments: Sequence[str]) -> int:
    from mlsys_lab.checks import find
    from mlsys_lab.cli.app import App

    check = {"check": find("command").module}
    commands = {
        heading: {name: module or check[name] for name, module in modules.items()}
        for heading, modules in COMMANDS.items()
    }
    return App("mlsys-lab", DESCRIPTION, EXAMPLES, commands).run(arguments)
