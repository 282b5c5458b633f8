"""Messages between the HTTP process and the worker of images, encoded as those of `server.messages`."""

from __future__ import annotations

import msgspec

from mlsys_lab.inference.server.messages import Message


class GenerateImages(Message):
    """Command: an image of a digit for each of `seeds`, with every pixel `zoom` × `zoom`."""

    request_id: int
    digit: int
    seeds: list[int]
    steps: int
    guidance: float
    sampler: str
    zoom: int


class ImagesGenerated(Message):
    """Event: the images of a request, as PNG in base64."""

    request_id: int
    images: list[str]


class ImagesRejected(Message):
    """Event: a request was rejected."""

    request_id: int
    reason: str


decode_command = msgspec.json.Decoder(GenerateImages).decode
decode_event = msgspec.json.Decoder(ImagesGenerated | ImagesRejected).decode
