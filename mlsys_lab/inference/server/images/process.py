"""The worker of images as the HTTP side sees it: started by the first request, and after a crash by the next one."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from asyncio.subprocess import PIPE, Process
from http import HTTPStatus

from msgspec import structs

from mlsys_lab.inference.server.errors import RETRY_AFTER, ApiError, bad_request
from mlsys_lab.inference.server.images.messages import GenerateImages, ImagesGenerated, decode_event
from mlsys_lab.inference.server.messages import encode
from mlsys_lab.inference.server.metrics import Metrics

WORKER_COMMAND = (sys.executable, "-P", "-m", "mlsys_lab.inference.server.images.worker")
MAX_LINE_BYTES = 2**26
"""Longest message: ten images of the largest size that do not compress."""
MAX_OPEN_IMAGES = 64


class ImageProcess:
    """A worker in a process of its own, with at most `MAX_OPEN_IMAGES` images open, apart from those of one request."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.process: Process | None = None
        self._request_ids = itertools.count()
        self._open: dict[int, asyncio.Future[list[str]]] = {}
        self._num_open_images = 0
        self._starting = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateImages, timeout_s: float) -> list[str]:
        """Images of a request as PNG in base64.

        ApiError if it is rejected, if too many images are open, if the worker crashes, and at the timeout.
        """
        num_images = len(request.seeds)
        if self._open and self._num_open_images + num_images > MAX_OPEN_IMAGES:
            text = f"the queue is full: got {self._num_open_images} open images, expected at most {MAX_OPEN_IMAGES}"
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, text, code="queue_full", headers=RETRY_AFTER)
        request = structs.replace(request, request_id=next(self._request_ids))
        images: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = images
        self._count_open(num_images)
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(request)
                generated = await images
        except TimeoutError:
            text = f"no answer within {timeout_s:g} s"
            raise ApiError(HTTPStatus.GATEWAY_TIMEOUT, text, code="timeout") from None
        finally:
            del self._open[request.request_id]
            self._count_open(-num_images)
        self.metrics.image_latency.observe(time.monotonic() - started_s)
        self.metrics.generated_images.inc(num_images)
        return generated

    async def drain(self) -> None:
        """Wait until the open requests have been answered."""
        await asyncio.gather(*self._open.values(), return_exceptions=True)

    async def stop(self) -> None:
        """End the worker, if it was started."""
        if self._reader:
            self._reader.cancel()
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    def _count_open(self, added: int) -> None:
        self._num_open_images += added
        self.metrics.num_images_open.set(self._num_open_images)

    async def _send(self, request: GenerateImages) -> None:
        async with self._starting:
            if self.process is None:
                # In a session of its own, because Ctrl-C in a terminal goes to all processes of one.
                self.process = await asyncio.create_subprocess_exec(
                    *WORKER_COMMAND, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=MAX_LINE_BYTES
                )
                self._reader = asyncio.create_task(self._read(self.process))
        assert self.process.stdin
        self.process.stdin.write(encode(request))

    async def _read(self, process: Process) -> None:
        """Answer requests as long as the worker lives; then fail those that are open."""
        assert process.stdout
        while (line := await process.stdout.readline()).endswith(b"\n"):
            event = decode_event(line)
            if (images := self._open.get(event.request_id)) and not images.done():
                if isinstance(event, ImagesGenerated):
                    images.set_result(event.images)
                else:
                    images.set_exception(bad_request(event.reason))
        self.process = None
        await process.wait()
        for images in self._open.values():
            if not images.done():
                text = "the worker of images crashed while it worked on this request"
                images.set_exception(ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, text, code="engine_crashed"))
