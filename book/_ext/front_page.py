"""Parts of the front page: ```{front} hero``` renders front/hero.html with numbers computed at build time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import readings
from docutils import nodes
from front_figure import roofline_svg
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from lab_header import duration
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.drawings import draw
from book.project import BOOK, LABS
from mlsys_lab import hardware
from mlsys_lab.flops.roofline import Bound, bound
from mlsys_lab.stack.labinfo import released_labs

TEMPLATES = Path(__file__).parent / "front"
PARAMETERS = 8e9  # the front page's example model
BYTES_PER_PARAMETER = 2  # bf16
DEVICE, PRECISION = "H100", "bf16"
BATCHES = (1, 32, 2048)  # one request, a busy server, a prompt
WORDS_PER_MINUTE = 200


@dataclass(frozen=True)
class Layer:
    """One layer of what the labs build, and the parts of the syllabus whose labs build it."""

    name: str
    what: str
    parts: tuple[str, ...]


STACK = (
    Layer("Serve", "prefill and decode, paged KV cache, continuous batching, diffusion", ("Inference", "Diffusion")),
    Layer("Scale out", "collectives, data, tensor and pipeline parallelism", ("Scale out",)),
    Layer("Plan", "FLOPs, bytes and memory of a transformer, scaling laws", ("Arithmetic",)),
    Layer("Kernels", "the GPU's memory hierarchy, CUDA, Triton", ("Hardware",)),
    Layer("Engine", "tensors, reverse-mode differentiation, checkpointing", ("Foundations",)),
)


@dataclass(frozen=True)
class Picture:
    """One drawing of something that the labs build, and the page of the lab."""

    drawn: str
    name: str
    what: str
    page: str

    @property
    def drawing(self) -> str:
        """The drawing as HTML."""
        return draw(self.drawn)


PICTURES = (
    Picture(
        "automatic_differentiation.graph",
        "An engine",
        "that computes gradients, and counts what each operation saves for them.",
        "labs/01-autograd",
    ),
    Picture(
        "cuda.grid",
        "Kernels",
        "whose every load and store you have counted before a GPU runs them.",
        "labs/03-cuda",
    ),
    Picture(
        "inference.pages",
        "A server",
        "that shares its KV cache among all requests, and answers over HTTP.",
        "labs/11-serving",
    ),
)


def decode(batch: int) -> Bound:
    """The least time of a forward pass of the example model for `batch` tokens, and what sets it.

    2 FLOPs for each parameter and token, and one read of all weights. Leaves out the KV cache, attention and
    activations, which only add to it.
    """
    device = hardware.device(DEVICE)
    return bound(
        2 * PARAMETERS * batch,
        BYTES_PER_PARAMETER * PARAMETERS,
        peak_flops_per_s=device.peak(PRECISION),
        bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
    )


def prose_minutes(markdown: str) -> int:
    """Minutes that a page's prose takes to read, without its front matter and code cells."""
    prose = re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.DOTALL)
    prose = re.sub(r"^(`{3,})\{code-cell\}.*?^\1$", "", prose, flags=re.DOTALL | re.MULTILINE)
    return max(1, round(len(prose.split()) / WORDS_PER_MINUTE))


def percent(fraction: float) -> str:
    """Format a fraction as a percentage with two significant digits.

    >>> percent(0.0033857), percent(0.2167), percent(1.0)
    ('0.34 %', '22 %', '100 %')
    """
    return f"{float(f'{100 * fraction:.2g}'):g} %"


def context() -> dict[str, Any]:
    """Values that the front page's templates may name."""
    labs = released_labs(LABS)
    chapters = sorted((BOOK / "chapters").glob("[0-9][0-9]-*.md"))
    device = hardware.device(DEVICE)
    peak, bandwidth = device.peak(PRECISION), device.memory_bandwidth_bytes_per_s
    bounds = {batch: decode(batch) for batch in BATCHES}
    chapters_of_labs = {f"chapters/{lab.chapter}" for lab in labs}
    begun = {p.title for p in readings.load_syllabus().parts for c in p.chapters if c.page in chapters_of_labs}
    return {
        "labs": labs,
        "lab_time": duration(sum(lab.minutes for lab in labs)),
        "chapters": [path.stem for path in chapters],
        "chapter_minutes": [prose_minutes(path.read_text(encoding="utf-8")) for path in chapters],
        "readings": len(readings.load()),
        "duration": duration,
        "device": device,
        "peak": peak,
        "bandwidth": bandwidth,
        "weights_bytes": PARAMETERS * BYTES_PER_PARAMETER,
        "bounds": bounds,
        "percent": percent,
        "figure": roofline_svg(peak, bandwidth, list(bounds.values())),
        "pictures": PICTURES,
        "stack": [(layer, not begun.isdisjoint(layer.parts)) for layer in STACK],
    }


def rendered(piece: str) -> str:
    """The HTML of one piece of the front page: "hero", "guess", "routes", "pictures" or "stack"."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=True)
    return environment.get_template(f"{piece}.html").render(context())


class Front(SphinxDirective):
    """Directive that renders one part of the front page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the template that the directive's argument names, as one raw HTML node."""
        pages = (BOOK / "chapters").glob("*.md")
        drawings = (BOOK / "drawings").glob("*.py")
        for path in (
            *TEMPLATES.iterdir(),
            *drawings,
            *LABS.glob("*/lab.toml"),
            *pages,
            readings.READINGS,
            readings.SYLLABUS,
        ):
            self.env.note_dependency(str(path))
        return [nodes.raw("", rendered(self.arguments[0]), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the handler with Sphinx."""
    app.add_directive("front", Front)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
