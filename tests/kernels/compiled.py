"""Compiling Triton kernels for an H100 on a machine without a GPU, and what the compiler made of them.

`compiled(code)` runs Python code in a process of its own, where every launch of a Triton kernel is compiled for sm_90
and not run. The code makes the launches that it would make on a GPU, with tensors on the CPU: their types, alignment
and sizes are what the compiler specialises on. All configurations of an autotuned kernel are compiled. Pointers into
`torch.empty` are aligned; `num_warps` and the like count as given. Of the tensors nothing is computed.

What was compiled is kept in build/triton, as Triton keeps it: by the kernel's source with all that it calls, the
target, the options, and the compiler's own version.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "triton"
USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
GLOBAL = re.compile(r"\b((?:ld|st)\.global(?:[.:\w]+)*)")
PER_LANE = re.compile(r"(?:\.v(\d))?\.b(\d+)")


@dataclass(frozen=True)
class Compiled:
    """One launch of one kernel, compiled."""

    kernel: str
    constants: dict[str, Any]
    num_warps: int
    registers: int  # of a thread
    stack_bytes: int  # of a thread: where registers are spilled to
    shared_bytes: int  # of a block
    ptx: str

    @property
    def accesses(self) -> Counter[str]:
        """How often each instruction that touches global memory stands in the code, such as "ld.global.v4.b32"."""
        return Counter(GLOBAL.findall(self.ptx))

    def widest_bytes(self, what: str) -> int:
        """Bytes that one thread moves in the widest of its global loads ("ld") or stores ("st"); 0 if it has none."""
        widths = [
            int(lanes or 1) * int(bits) // 8
            for instruction in self.accesses
            if instruction.startswith(f"{what}.global")
            for lanes, bits in PER_LANE.findall(instruction)
        ]
        return max(widths, default=0)


def compiled(code: str, *, timeout_s: float = 240) -> list[Compiled]:
    """What the launches of `code` compile to, in order."""
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(CACHE),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, __file__],
        input=code,
        env=environment,
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=timeout_s,
    )
    if done.returncode:
        raise AssertionError(f"the kernels do not compile:\n{done.stderr[-4000:]}")
    return [Compiled(**launch) for launch in json.loads(done.stdout.splitlines()[-1])]


def _main() -> None:
    """The process of its own: a driver that knows an H100's name and nothing else, launches that compile."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    from mlsys_lab.kernels import triton_launch

    target = GPUTarget("cuda", 90, 32)
    launches: list[dict[str, Any]] = []
    run = JITFunction.run

    class NoDevice:
        @staticmethod
        def get_current_target() -> GPUTarget:
            return target

        @staticmethod
        def get_current_device() -> int:
            return 0

        @staticmethod
        def get_current_stream(device: int) -> int:
            return 0

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = run(self, *args, grid=grid, warmup=True, **options)
        given = dict(zip(self.arg_names, args, strict=False)) | options
        constants = {p.name: given.get(p.name, p.default) for p in self.params if p.is_constexpr}
        launches.append(_launch(made, {name: str(value) for name, value in constants.items()}))
        return made

    def each_once(call: Any, quantiles: Any) -> list[float]:
        call()
        return [0.0] * len(quantiles)

    def without_device(kernel: Any, grid: Any, *args: Any, outputs: Any = (), **options: Any) -> None:
        kernel[grid](*args, **options)

    driver.set_active(NoDevice())
    JITFunction.run = compile_only
    Autotuner.do_bench = staticmethod(each_once)
    with triton_launch.replace_launches(without_device):
        exec(compile(sys.stdin.read(), "<launches>", "exec"), {"__name__": "__launches__"})
    print(json.dumps(launches))


def _launch(made: Any, constants: dict[str, str]) -> dict[str, Any]:
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        Path(binary.name).write_bytes(made.asm["cubin"])
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", binary.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = USAGE.search(said)
    assert used, f"cuobjdump says how many registers a kernel uses: {said}"
    return {
        "kernel": made.metadata.name,
        "constants": constants,
        "num_warps": made.metadata.num_warps,
        "registers": int(used[1]),
        "stack_bytes": int(used[2]),
        "shared_bytes": made.metadata.shared,
        "ptx": made.asm["ptx"],
    }


if __name__ == "__main__":
    _main()
