"""Images over HTTP: those of the model alone, whatever else is generated; bad input in one line."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch

from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
from mlsys_lab.diffusion.pretrained import default_grid, load_digits_model
from mlsys_lab.diffusion.samplers import find_sampler
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.inference.server.images.messages import GenerateImages, ImagesRejected
from mlsys_lab.inference.server.images.worker import SLOTS, ImageWorker
from mlsys_lab.inference.server.protocol import MODEL
from tests.inference.server.serving import Served, serving


def decode_png(data: str) -> torch.Tensor:
    """Grey pixels (S, S) of a PNG in base64, whose rows are not filtered."""
    png = base64.b64decode(data)
    start = png.index(b"IDAT")
    length = int.from_bytes(png[start - 4 : start], "big")
    side = int.from_bytes(png[16:20], "big")
    rows = torch.frombuffer(bytearray(zlib.decompress(png[start + 4 : start + 4 + length])), dtype=torch.uint8)
    return rows.reshape(side, side + 1)[:, 1:].int()


def expected(digit: int, seed: int, *, steps: int = 20, sampler: str = "heun", guidance: float = 2.0) -> torch.Tensor:
    """Grey pixels (8, 8) of the model's sampler by itself."""
    guided = ClassifierFreeGuidance(load_digits_model(), guidance, 10)
    noise, label = Noise((1, 1, 8, 8), seed), torch.tensor([digit])
    image = Sampling(guided, default_grid(steps), noise, label, find_sampler(sampler)).run()[0, 0]
    return ((1 - image.clamp(-1, 1)) * 127.5).round().int()


def test_images_are_the_model_s_own_next_to_other_requests(served: Served) -> None:
    options = [{}, {"steps": 7, "sampler": "ddim", "guidance": 1.0}, {"steps": 5, "sampler": "dpm++"}]
    with served.client() as client, ThreadPoolExecutor(8) as pool:

        def generate(i: int) -> list[str]:
            body = {"seed": 10 * i, **options[i % 3]}
            answer = client.images.generate(prompt=f"The digit {i}", n=2, size="16x16", extra_body=body)
            return [one.b64_json for one in answer.data]

        before = served.metrics()
        for i, images in enumerate(pool.map(generate, range(8))):
            for number, data in enumerate(images):
                pixels = decode_png(data)
                assert torch.equal(pixels, pixels[::2, ::2].repeat_interleave(2, 0).repeat_interleave(2, 1))
                alone = expected(i, 10 * i + number, **options[i % 3])
                assert (pixels[::2, ::2] - alone).abs().max() <= 1
        assert client.models.retrieve("mlsys-lab-digits").object == "model"
        drawn = [client.images.generate(prompt="seven", model="mlsys-lab-digits") for _ in range(2)]
        assert drawn[0].data[0].b64_json != drawn[1].data[0].b64_json
    rise = {
        name: value - before[name] for name, value in served.metrics().items() if "image" in name and name in before
    }
    assert rise["mlsys_generated_images_total"] == 18 and rise["mlsys_image_request_latency_seconds_count"] == 10


def test_requests_share_the_network_s_calls() -> None:
    worker, commands = ImageWorker(), [GenerateImages(i, i, [1, 2], 4, 2.0, "heun", 1) for i in range(SLOTS // 2)]
    assert not [event for command in commands for event in worker.add(command)]
    (rejected,) = worker.add(GenerateImages(99, 1, [1], 4, 2.0, "huen", 1))
    assert isinstance(rejected, ImagesRejected) and "did you mean 'heun'?" in rejected.reason
    events = []
    while not worker.is_idle:
        events += worker.step()
    assert [(one.request_id, len(one.images)) for one in events] == [(i, 2) for i in range(SLOTS // 2)]
    assert worker.engine.calls == 2 * 4 - 1  # Heun: two of each step, but one of the last


def test_a_crashed_worker_fails_its_requests_and_starts_again() -> None:
    with serving() as served, served.client() as client, ThreadPoolExecutor(1) as pool:
        children = ["pgrep", "-P", str(served.process.pid)]
        engine = served.find_engine()
        client.images.generate(prompt="1", extra_body={"steps": 1})
        pids = {int(pid) for pid in subprocess.run(children, capture_output=True, text=True, check=True).stdout.split()}
        (worker,) = pids - {engine}
        os.kill(worker, signal.SIGSTOP)
        open_request = pool.submit(client.images.generate, prompt="2")
        while not served.metrics().get("mlsys_num_images_open"):
            pass
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(openai.InternalServerError, match="the worker of images crashed"):
            open_request.result()
        assert len(client.images.generate(prompt="2", n=3).data) == 3
        assert served.end() == 0 and served.log.read_text() == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": "a cat"}, "prompt: got 'a cat', expected a digit: '7', 'seven' or 'the digit 7'"),
        ({"prompt": "10"}, "prompt: got '10', expected a digit"),
        ({"size": "100x100"}, "size: got '100x100', expected NxN, N a multiple of 8 up to 1024"),
        ({"size": "8x16"}, "size: got '8x16'"),
        ({"n": 11}, "n: got 11, expected 1 to 10"),
        ({"response_format": "url"}, "response_format: got 'url', expected 'b64_json'"),
        ({"model": MODEL}, "no such model: got 'mlsys-lab-target', expected 'mlsys-lab-digits'"),
        ({"extra_body": {"steps": 101}}, "steps: got 101, expected 1 to 100"),
        ({"extra_body": {"sampler": "huen"}}, "unknown sampler: got 'huen', expected one of ddpm"),
        ({"quality": "hd"}, "unknown field: got 'quality'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(served: Served, fields: dict[str, object], said: str) -> None:
    with served.client() as client, pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        client.images.generate(**{"prompt": "7"} | fields)
    assert caught.value.body["message"].startswith(said) and "\n" not in caught.value.body["message"]
