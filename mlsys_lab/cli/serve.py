"""Serve a language model over HTTP, with an API compatible with OpenAI's.

The model is the small one that comes with the course, or with --model a Hugging Face folder: config.json, safetensors,
tokenizer.json and, for chats, its chat template. Supported are GPT-2, BLOOM, OPT, LLaMA, Mistral, Mixtral, Qwen 2 and 3
(with experts too), Gemma 1, OLMo 1 and 2, and Phi 1 to 3. Weights in 2 to 8 bits, as `mlsys-lab compress` saves them,
stay packed in memory. With --draft a smaller model with the same vocabulary drafts tokens, which the model verifies; in
a checkout `python book/distil_draft.py FOLDER` distils one from the small model.

Outputs can be limited to a JSON schema (`response_format`), a choice or a regular expression (`structured_outputs`, as
in vLLM), and chats take `tools` and `tool_choice`: calls are in Hermes' format, which Qwen's chat template describes.

/v1/images/generations draws digits, as `mlsys-lab sample-digits` does: the prompt is "7", "seven" or "the digit 7", the
size a square such as 64x64, and `seed`, `steps`, `guidance` and `sampler` are fields too. The diffusion model starts
with the first such request, in a process of its own at a lower priority.

The engine of `mlsys_lab.inference` serves many requests at once, on a paged KV cache. The server prints its address
once it is ready: open it in a browser to chat, and to watch the scheduler, the blocks and the queue. Any client of
OpenAI's API can use the address with /v1, and the model name that /v1/models lists. Ctrl-C and SIGTERM finish running
requests and reject new ones; a second one stops at once. /health and /metrics (Prometheus) report the server's state.
Prompts are not logged, unless --trace-out names a file, and watchers do not see them. With --api-key every route needs
the key, except for the page. Sampling parameters that a request leaves out have OpenAI's defaults (temperature 1), not
those of generation_config.json.

Requests must name localhost, the address of --host or a name given with --allow-host in their Host header: a page on
another site could otherwise point its own name at this machine and talk to the server (DNS rebinding).

With --engine ray there are several replicas of the engine, deployed by Ray Serve on this machine; --blocks and
--sequences hold for each. Prompts with a common prefix go to the same replica, which has it in its prefix cache, unless
that replica is full. /metrics then counts requests and tokens; blocks and steps are the replicas' own.

With --adapter NAME=FOLDER, which may be repeated, requests whose model is NAME are served under that LoRA adapter (in
PEFT's format: `mlsys_lab.inference.adapters` trains and saves them), in one batch with all others. Adapters take memory
of their own, not from the --blocks of the cache: /metrics reports their bytes.

examples:
  mlsys-lab serve
  mlsys-lab serve --port 9000 --blocks 64 --queue 8
  mlsys-lab serve --model qwen2.5-0.5b-instruct --blocks 512
  mlsys-lab serve --engine ray --replicas 2
  mlsys-lab serve --adapter poet=adapters/poet --adapter clerk=adapters/clerk
  curl localhost:8000/v1/images/generations -H 'Content-Type: application/json' -d '{"prompt": "seven"}'
  curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "mlsys-lab-target", "prompt": "The memory of a GPU", "max_tokens": 40}'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mlsys_lab.cli.app import option
from mlsys_lab.errors import InputError


@dataclass(kw_only=True)
class Arguments:
    """Where the server listens, which clients it accepts, and its limits."""

    model: Annotated[str | None, option("a checkpoint in Hugging Face's format", "FOLDER")] = None
    draft: Annotated[str | None, option("a smaller checkpoint that drafts tokens", "FOLDER")] = None
    host: Annotated[str, option("address to listen at", "NAME")] = "127.0.0.1"
    port: Annotated[int, option("0 takes a free one", "N")] = 8000
    allow_host: Annotated[
        list[str] | None, option("another name by which clients may call the server; may be repeated", "NAME")
    ] = None
    api_key: Annotated[str | None, option("key that clients must send; visible in the list of processes", "KEY")] = None
    blocks: Annotated[int, option("blocks of 16 tokens in the KV cache", "N")] = 256
    sequences: Annotated[int, option("maximum number of sequences per step", "N")] = 16
    queue: Annotated[int, option("sequences that may wait; further ones get 429", "N")] = 64
    scheduler: Annotated[
        str | None, option("Python file with a function build(num_blocks, block_size, config)", "FILE")
    ] = None
    adapter: Annotated[list[str] | None, option("serve a LoRA adapter as another model", "NAME=FOLDER")] = None
    trace_out: Annotated[
        str | None, option("write steps and requests, token ids included, for `mlsys-lab calibrate`", "FILE")
    ] = None
    timeout: Annotated[float, option("seconds per request", "S")] = 120.0
    client_timeout: Annotated[int, option("seconds that a client may take to send its request or to read on", "S")] = 10
    engine: Annotated[Literal["process", "ray"], option("one engine, or replicas of it")] = "process"
    replicas: Annotated[int | None, option("replicas of --engine ray (2 by default)", "N")] = None


def run(args: Arguments) -> int:
    """Serve until a signal; returns exit code 0."""
    import asyncio

    from mlsys_lab.inference.server.serve import ServerConfig, serve

    if args.replicas is not None and args.engine != "ray":
        raise InputError("--replicas is of --engine ray", got=args.replicas, help="add --engine ray")
    config = ServerConfig(
        host=args.host,
        port=args.port,
        api_key=args.api_key,
        model=args.model,
        draft=args.draft,
        trace=args.trace_out,
        num_blocks=args.blocks,
        max_num_seqs=args.sequences,
        max_queued_seqs=args.queue,
        client_timeout_s=args.client_timeout,
        request_timeout_s=args.timeout,
        num_replicas=(2 if args.replicas is None else args.replicas) if args.engine == "ray" else None,
        scheduler=args.scheduler,
        adapters=_read_adapters(args.adapter or []),
        allowed_hosts=args.allow_host or (),
    )
    asyncio.run(serve(config, lambda address: print(f"Serving at {address} (API: /v1); Ctrl-C ends it.", flush=True)))
    return 0


def _read_adapters(given: list[str]) -> dict[str, str]:
    """Folders by name; InputError for what is not NAME=FOLDER, and for a name given twice."""
    adapters: dict[str, str] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not (name and equals and folder) or name in adapters:
            expected = "NAME=FOLDER, each name once"
            raise InputError("--adapter", got=one, expected=expected)
        adapters[name] = folder
    return adapters
