"""The roofline on the front page: three uses of one model, as inline SVG that follows the theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from mlsys_lab.flops.roofline import Bound

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 14, 406, 40, 246
LOW, HIGH = 0.3, 5000.0  # FLOP/B, the width of the picture
LABELS = ("one request", "32 at once", "a prompt\nof 2,048 tokens")


@dataclass(frozen=True)
class Scale:
    """Logarithmic axes: FLOP/B across, FLOP/s upward from what memory allows at the left edge to the peak."""

    peak: float
    bandwidth: float

    def x(self, intensity: float) -> float:
        """Pixels from the left edge at an arithmetic intensity in FLOP/B."""
        return LEFT + (RIGHT - LEFT) * math.log(intensity / LOW) / math.log(HIGH / LOW)

    def y(self, flops_per_s: float) -> float:
        """Pixels from the top edge at a rate in FLOP/s."""
        floor = LOW * self.bandwidth
        return BOTTOM - (BOTTOM - TOP) * math.log(flops_per_s / floor) / math.log(self.peak / floor)


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """SVG text element at (x, y) in pixels, with its content escaped."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def path(kind: str, data: str) -> str:
    """SVG path element of the class `kind`."""
    return f'<path class="{kind}" d="{data}"/>'


def share(bound: Bound) -> str:
    """Attainable share of the peak, to two significant digits."""
    return f"{float(f'{100 * bound.fraction:.2g}'):g} % of peak"


def limits(scale: Scale) -> list[str]:
    """SVG elements of the two limits, the area under them, and their rates."""
    ridge = scale.x(scale.peak / scale.bandwidth)
    middle = (LEFT + ridge) / 2 + 12
    slope = math.degrees(math.atan2(TOP - BOTTOM, ridge - LEFT))
    rise = (BOTTOM - TOP) * (middle - LEFT) / (ridge - LEFT)
    turn = f"translate({middle - 8:.1f} {BOTTOM - rise - 9:.1f}) rotate({slope:.1f})"
    return [
        path("under", f"M{LEFT} {BOTTOM}L{ridge:.1f} {TOP}H{RIGHT}V{BOTTOM}Z"),
        path("memory", f"M{LEFT} {BOTTOM}L{ridge:.1f} {TOP}"),
        path("compute", f"M{ridge:.1f} {TOP}H{RIGHT}"),
        text(RIGHT, TOP - 13, f"{scale.peak / 1e12:,.0f} TFLOP/s", "compute-text", "end"),
        f'<g transform="{turn}">{text(0, 0, f"{scale.bandwidth / 1e12:.2f} TB/s", "memory-text", "middle")}</g>',
    ]


def axis(scale: Scale) -> list[str]:
    """SVG elements of the lower axis with its ticks."""
    parts = [path("axis", f"M{LEFT} {BOTTOM}H{RIGHT}")]
    for tick in (1, 10, 100, 1000):
        parts.append(path("axis", f"M{scale.x(tick):.1f} {BOTTOM}v5"))
        parts.append(text(scale.x(tick), BOTTOM + 20, f"{tick:,}", "small", "middle"))
    return [*parts, text((LEFT + RIGHT) / 2, HEIGHT - 14, "FLOPs per byte moved", "small", "middle")]


def point(scale: Scale, bound: Bound, label: str) -> list[str]:
    """SVG elements of one use of the model: text goes right of the slope, under the roof it ends at the edge."""
    x, y = scale.x(bound.intensity), scale.y(bound.flops_per_s)
    drop = f"M{x:.1f} {y:.1f}V{BOTTOM}"
    if bound.limit == "memory":
        texts = [text(x + 14, y + 3, share(bound), "strong"), text(x + 14, y + 19, label)]
    else:
        lines = label.split("\n")
        drop = f"M{x:.1f} {y:.1f}v12m0 {24 + 16 * len(lines)}V{BOTTOM}"  # not through its text
        texts = [text(RIGHT, y + 28, share(bound), "strong", "end")]
        texts += [text(RIGHT, y + 44 + 16 * i, line, "", "end") for i, line in enumerate(lines)]
    return [path("drop", drop), f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6"/>', *texts]


def roofline_svg(peak_flops_per_s: float, bandwidth_bytes_per_s: float, bounds: Sequence[Bound]) -> Markup:
    """Draw a device's roofline and three bounds on it, named by LABELS, as one SVG element."""
    scale = Scale(peak_flops_per_s, bandwidth_bytes_per_s)
    parts = [*limits(scale), *axis(scale)]
    for label, bound in zip(LABELS, bounds, strict=True):
        parts += point(scale, bound, label)
    said = "; ".join(f"{' '.join(label.split())}: {share(bound)}" for label, bound in zip(LABELS, bounds, strict=True))
    head = f'<svg class="front-roofline" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="A roofline. {said}.">'
    return Markup(head + "".join(parts) + "</svg>")
