"""Checkpoints that any layout can go on from, written so that a kill at any moment leaves the last whole one.

A checkpoint is a folder, `step-00000120`: a file of tensors from each rank, with what no rank before it has, and a
manifest. Ranks write into a folder of another name, which is renamed once everything is on the disk: there is a folder
of this name only if the checkpoint is whole. A tensor's pieces say which part of which parameter they are, so that a
reader puts parameters together again and cuts them as its own layout does. Every rank has to see the same folders. In
torch: `torch.distributed.checkpoint`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mlsys_lab.errors import InputError
from mlsys_lab.parallel.train.trainer import Trainer

KINDS = ("weight", "exp_avg", "exp_avg_sq")
"""What is kept of each element of a parameter: its value and Adam's two moments."""
MANIFEST = "manifest.json"
KEPT = 2
"""How many checkpoints stay in a folder, the newest ones."""


class IncompleteCheckpointError(InputError):
    """A checkpoint that is not whole."""

    def __init__(self, got: str, **more: str) -> None:
        super().__init__("no whole checkpoint", got=got, **more)


@dataclass(frozen=True)
class CheckpointShard:
    """Flat elements from `start` on of part `part` of `parts` of a parameter, which is divided along `dim`."""

    name: str
    dim: int
    part: int
    parts: int
    start: int


def save(trainer: Trainer, folder: Path) -> Path:
    """Write a checkpoint of a run into a folder, which all ranks call with the same; returns its path.

    Older ones than the last two are removed.
    """
    world, path = trainer.mesh.world, folder / f"step-{trainer.done:08d}"
    temporary = folder / f"{path.name}.part"
    if world.rank == 0:
        for left_over in folder.glob("step-*.part"):
            shutil.rmtree(left_over)
        temporary.mkdir(parents=True)
    world.barrier()
    _write_pieces(trainer, temporary / _file_name(world.rank))
    world.barrier()
    if world.rank == 0:
        manifest = _describe(trainer) | {
            "files": [(temporary / _file_name(rank)).stat().st_size for rank in range(world.size)]
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        _flush(temporary / MANIFEST)
        _flush(temporary)
        if _is_whole(path):
            shutil.rmtree(temporary)
        else:
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
            _flush(folder)
        earlier = [one for one in list_checkpoints(folder) if one.name <= path.name]  # later ones are damaged
        for old in earlier[:-KEPT]:
            shutil.rmtree(old)
    world.barrier()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest last. Each was whole when it got its name."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".part")


def restore_latest(trainer: Trainer, folder: Path, say: Callable[[str], object]) -> None:
    """Let a new trainer go on from the newest whole checkpoint in a folder, if it has any; `say` gets a line for each.

    A damaged one is skipped. Raises InputError for one of another model or run, and where all are damaged.
    """
    problem = None
    for path in reversed(list_checkpoints(folder)):
        try:
            restore(trainer, path)
        except IncompleteCheckpointError as error:
            problem = problem or error
            say(f"skipping {path}: {error}")
        else:
            say(f"going on from {path}")
            return
    if problem:
        raise problem


def restore(trainer: Trainer, path: Path) -> None:
    """Let a new trainer go on from a checkpoint that a run of this model and plan wrote, in this or another layout.

    In the layout of the checkpoint all that follows is as it would have been without a break, bit for bit. A finished
    run may go on with a plan of more steps, whose learning rates it then follows. Raises InputError for a checkpoint of
    another model or run, and IncompleteCheckpointError, before the trainer is changed, for one that is not whole.
    """
    checkpoint = Checkpoint(path)
    checkpoint.require(_describe(trainer))
    place, size = trainer.mesh.place, trainer.mesh.tensor.size
    for replica, share in trainer.shares():
        flats = {}
        for kind in KINDS:
            parts = []
            for parameter in share.flat.parameters:
                whole = checkpoint.read(trainer.names[parameter], kind)
                dim = trainer.sharded_dim(parameter)
                parts.append(whole if dim is None else whole.chunk(size, dim)[place["tensor"]])
            flats[kind] = torch.cat([part.reshape(-1) for part in parts])
        if replica.keeps_weights:
            share.flat.write_values(flats["weight"])
        share.shard.data.copy_(share.cut(flats["weight"]))
        moments = {kind: share.cut(flats[kind]).to(share.shard.device).clone() for kind in KINDS[1:]}
        replica.optimizer.state[share.shard] = {"step": torch.tensor(float(checkpoint.manifest["done"])), **moments}
    trainer.done, trainer.batches.state = checkpoint.manifest["done"], checkpoint.manifest["position"]
    if checkpoint.manifest["layout"] == asdict(trainer.layout):
        torch.set_rng_state(checkpoint.random_state(trainer.mesh.world.rank))


class Checkpoint:
    """A checkpoint on the disk, whose parameters can be read whole; IncompleteCheckpointError for one that is not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            files = list(self.manifest["files"])
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise IncompleteCheckpointError(f"{path} without a readable {MANIFEST}") from problem
        self._pieces: dict[str, list[tuple[CheckpointShard, int, int]]] = {}
        for rank, size_bytes in enumerate(files):
            file = path / _file_name(rank)
            found = file.stat().st_size if file.exists() else 0
            if found != size_bytes:
                got = f"{found} bytes of {file}"
                raise IncompleteCheckpointError(got, expected=f"{size_bytes} bytes", help="go on from another one")
            with self._open(rank) as tensors:
                for number, piece in enumerate(json.loads(tensors.metadata()["pieces"])):
                    self._pieces.setdefault(piece["name"], []).append((CheckpointShard(**piece), rank, number))

    def require(self, run: dict[str, Any]) -> None:
        """Raise InputError unless the checkpoint is of this model, dtype and plan; the layout may be another."""
        is_extended = self.manifest["done"] == self.manifest["plan"].get("steps", 0) < run["plan"]["steps"]
        for key, words in (("model", "another model"), ("plan", "another run")):
            wrong = [name for name, value in run[key].items() if self.manifest[key].get(name) != value]
            if is_extended and key == "plan":
                wrong.remove("steps")
            if wrong:
                got, expected = (
                    ", ".join(f"{name}={one[key].get(name)}" for name in wrong) for one in (self.manifest, run)
                )
                raise InputError(f"the checkpoint is of {words}", got=got, expected=expected)

    def read(self, name: str, kind: str = "weight") -> torch.Tensor:
        """Put a whole parameter together from all ranks' pieces, or one of Adam's moments of it."""
        pieces = self._pieces[name]
        dim, parts = pieces[0][0].dim, pieces[0][0].parts
        shape = list(self.manifest["shapes"][name])
        shape[dim] //= parts
        divided = []
        for part in range(parts):
            own = sorted((one for one in pieces if one[0].part == part), key=lambda one: one[0].start)
            flat = [self._read_tensor(rank, f"{kind} {number}") for _, rank, number in own]
            divided.append(torch.cat(flat).view(shape))
        return torch.cat(divided, dim)

    def random_state(self, rank: int) -> torch.Tensor:
        """State of torch's generator on a rank of the run that wrote the checkpoint."""
        return self._read_tensor(rank, "random")

    def _read_tensor(self, rank: int, key: str) -> torch.Tensor:
        with self._open(rank) as tensors:
            tensor: torch.Tensor = tensors.get_tensor(key)
        return tensor

    def _open(self, rank: int) -> Any:
        file = self.path / _file_name(rank)
        try:
            return safe_open(file, framework="pt")
        except SafetensorError as problem:
            raise IncompleteCheckpointError(f"{file}: {problem}", help="go on from another one") from None


def _is_whole(path: Path) -> bool:
    """Whether a path leads to a whole checkpoint."""
    try:
        Checkpoint(path)
    except IncompleteCheckpointError:
        return False
    return True


def _write_pieces(trainer: Trainer, file: Path) -> None:
    """Write what this rank counts of all parameters, and its random state."""
    pieces: list[CheckpointShard] = []
    tensors = {"random": torch.get_rng_state()}
    for replica, share in trainer.shares():
        state = replica.optimizer.state[share.shard]
        none_yet = torch.zeros_like(share.shard)  # before the first step
        kept = {"weight": share.shard.detach(), **{kind: state.get(kind, none_yet) for kind in KINDS[1:]}}
        offset, end = -share.start, share.shard.numel()
        for parameter in share.flat.parameters:
            first, last = max(0, offset), min(end, offset + parameter.numel())
            if trainer.is_primary_copy(parameter) and first < last:
                dim = trainer.sharded_dim(parameter)
                part, parts = (0, 1) if dim is None else (trainer.mesh.tensor.rank, trainer.mesh.tensor.size)
                for kind, values in kept.items():
                    tensors[f"{kind} {len(pieces)}"] = values.reshape(-1)[first:last].cpu().clone()
                pieces.append(CheckpointShard(trainer.names[parameter], dim or 0, part, parts, first - offset))
            offset += parameter.numel()
    save_file(tensors, file, metadata={"pieces": json.dumps([asdict(piece) for piece in pieces])})
    _flush(file)


def _describe(trainer: Trainer) -> dict[str, Any]:
    """What a manifest says about a run, as it comes back from JSON."""
    dtype = str(next(iter(trainer.names)).dtype).removeprefix("torch.")
    run = {
        "model": asdict(trainer.config) | {"dtype": dtype},
        "plan": asdict(trainer.plan),
        "layout": asdict(trainer.layout),
        "done": trainer.done,
        "position": trainer.batches.state,
        "shapes": {name: list(shape) for name, shape in trainer.shapes.items()},
    }
    described: dict[str, Any] = json.loads(json.dumps(run))
    return described


def _file_name(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
