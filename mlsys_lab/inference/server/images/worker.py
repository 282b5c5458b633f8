"""The process of images: commands arrive on standard input, events leave on standard output.

It ends when its input does, and runs at a lower priority than the engine of tokens, whose streams it must not delay.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator

from mlsys_lab.diffusion.digits import encode_png, sheet
from mlsys_lab.diffusion.engine import Engine, Request
from mlsys_lab.diffusion.pretrained import default_grid, load_digits_model, read_config
from mlsys_lab.diffusion.samplers import find_sampler
from mlsys_lab.errors import InputError
from mlsys_lab.inference.server.images.messages import GenerateImages, ImagesGenerated, ImagesRejected, decode_command
from mlsys_lab.inference.server.messages import encode
from mlsys_lab.models.training import one_thread

NICENESS, SLOTS = 10, 16


class ImageWorker:
    """An engine of the digit model, driven by commands and reporting by events."""

    def __init__(self) -> None:
        config = read_config()
        shape = (config.channels, config.size, config.size)
        self.engine = Engine(load_digits_model(), shape, classes=config.classes, null=config.classes, slots=SLOTS)
        self._commands: dict[int, GenerateImages] = {}  # by request id
        self._images: dict[int, dict[int, str]] = {}  # by request id and number of the image in the engine
        self._owners: dict[int, int] = {}  # request id by the number in the engine

    @property
    def is_idle(self) -> bool:
        """Whether no image is waiting or being generated."""
        return not self._owners

    def add(self, command: GenerateImages) -> Iterator[ImagesRejected]:
        """Queue the images of a request, all or none of them."""
        try:
            sampler, grid = find_sampler(command.sampler), default_grid(command.steps)
            requests = [Request(command.digit, grid, seed, sampler, command.guidance) for seed in command.seeds]
            numbers = [self.engine.submit(one) for one in requests]
        except InputError as error:
            yield ImagesRejected(command.request_id, str(error))
            return
        self._commands[command.request_id], self._images[command.request_id] = command, {}
        self._owners |= dict.fromkeys(numbers, command.request_id)

    def step(self) -> Iterator[ImagesGenerated]:
        """Run the network once for all running images; yield the requests whose last image is done."""
        for number, image in self.engine.step().items():
            request_id = self._owners.pop(number)
            command, images = self._commands[request_id], self._images[request_id]
            images[number] = b64encode(encode_png(sheet(image[None], columns=1, zoom=command.zoom, gap=0))).decode()
            if len(images) == len(command.seeds):
                del self._commands[request_id], self._images[request_id]
                yield ImagesGenerated(request_id, [images[number] for number in sorted(images)])


def main() -> None:
    """Generate images until standard input ends."""
    os.nice(NICENESS)
    with os.fdopen(os.dup(1), "wb") as out, one_thread():
        os.dup2(sys.stderr.fileno(), 1)
        commands: queue.SimpleQueue[GenerateImages | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(commands,), daemon=True).start()
        worker = ImageWorker()
        try:
            while True:
                while worker.is_idle or not commands.empty():
                    command = commands.get()
                    if command is None:
                        return
                    out.writelines(map(encode, worker.add(command)))
                    out.flush()
                out.writelines(map(encode, worker.step()))
                out.flush()
        except BrokenPipeError:
            os._exit(0)  # the other process has gone; do not flush `out`


def _read(commands: queue.SimpleQueue[GenerateImages | None]) -> None:
    with open(0, "rb", closefd=False) as lines:
        for line in lines:
            commands.put(decode_command(line))
    commands.put(None)


if __name__ == "__main__":
    main()
