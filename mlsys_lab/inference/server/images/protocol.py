"""Requests for images in OpenAI's format."""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Literal

from msgspec import Meta, Struct

from mlsys_lab.inference.server.errors import bad_request
from mlsys_lab.inference.server.images.messages import GenerateImages
from mlsys_lab.inference.server.protocol import shorten

IMAGE_MODEL = "mlsys-lab-digits"
"""Name of the diffusion model that comes with the course."""
NUM_PIXELS, MAX_SIZE = 8, 1024
"""Pixels along a side of the model's images, and of the largest image into which they are enlarged."""
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PROMPT = re.compile(
    rf"(?:(?:a|the)\s+)?(?:(?:digit|number)\s+)?({'|'.join(DIGITS)}|[0-9])\.?", re.ASCII | re.IGNORECASE
)
MAX_N, MAX_STEPS, MAX_GUIDANCE = 10, 100, 99


class ImageRequest(Struct, frozen=True, kw_only=True):
    """Body of `/v1/images/generations`; `seed`, `steps`, `guidance` and `sampler` are our additions.

    Image i has the seed `seed` + i: it does not depend on what else is generated, up to rounding.
    """

    prompt: Annotated[str, Meta(description="a digit: '7', 'seven' or 'the digit 7'")]
    model: Annotated[str, Meta(description="the name of a model")] = IMAGE_MODEL
    n: Annotated[int, Meta(ge=1, le=MAX_N, description=f"1 to {MAX_N}")] = 1
    size: Annotated[str, Meta(description="a text such as '256x256'")] = "256x256"
    response_format: Annotated[Literal["b64_json"], Meta(description="'b64_json'")] = "b64_json"
    seed: Annotated[int, Meta(ge=0, le=2**32, description="a whole number from 0 to 2**32")] | None = None
    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS, description=f"1 to {MAX_STEPS}")] = 20
    guidance: Annotated[float, Meta(ge=0, le=MAX_GUIDANCE, description=f"0 to {MAX_GUIDANCE}; 1 is none")] = 2.0
    sampler: Annotated[str, Meta(description="the name of a sampler")] = "heun"

    def to_worker(self) -> GenerateImages:
        """Command for the worker, without an id; ApiError for a prompt that is no digit, and another size."""
        found = PROMPT.fullmatch(self.prompt.strip())
        if found is None:
            expected = "a digit: '7', 'seven' or 'the digit 7'"
            raise bad_request(f"prompt: got {shorten(self.prompt)}, expected {expected}", "prompt")
        word = found[1].lower()
        sizes = {f"{side}x{side}": side for side in range(NUM_PIXELS, MAX_SIZE + 1, NUM_PIXELS)}
        if self.size not in sizes:
            expected = f"NxN, N a multiple of {NUM_PIXELS} up to {MAX_SIZE}"
            raise bad_request(f"size: got {shorten(self.size)}, expected {expected}", "size")
        first = secrets.randbits(32) if self.seed is None else self.seed
        return GenerateImages(
            0,
            DIGITS.index(word) if word in DIGITS else int(word),
            [first + i for i in range(self.n)],
            self.steps,
            self.guidance,
            self.sampler,
            sizes[self.size] // NUM_PIXELS,
        )
