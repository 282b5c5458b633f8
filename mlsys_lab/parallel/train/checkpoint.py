"""Checkpoints that resume in any layout, written so that a kill at any moment leaves the last complete one.

A checkpoint is a folder, `step-00000120`: one safetensors file per rank, with the shards of which that rank has the
primary copy, and a manifest. Ranks write to a temporary folder, which is renamed after everything is on the disk, so a
folder of the final name was complete when it got that name. Each saved shard says which elements of which parameter it
holds; a reader puts parameters together and reshards them for its own layout. Its folder `assets` has the tokenizer's
files, and of a fine-tuned model the config.json that it came with. All ranks must see the same folders. In torch:
`torch.distributed.checkpoint`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mlsys_lab.configs.transformer import Experts, LatentAttention, RotaryScaling, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.training import learning_rate
from mlsys_lab.parallel.train.trainer import Trainer

STATE_KEYS = ("weight", "exp_avg", "exp_avg_sq")
"""What is saved for each element of a parameter: its value and Adam's two moments."""
MANIFEST = "manifest.json"
ASSETS = "assets"
"""Folder of a checkpoint for the files that are exported with its model."""
NUM_KEPT = 2
"""How many checkpoints stay in a folder, the newest ones."""


class IncompleteCheckpointError(InputError):
    """A checkpoint with a missing, truncated or unreadable file."""

    def __init__(self, got: str, **more: str) -> None:
        super().__init__("incomplete checkpoint", got=got, **more)


@dataclass(frozen=True)
class CheckpointShard:
    """A run of flat elements, from `start` on, in a parameter's tensor-parallel shard.

    The shard is number `index` of `num_shards` along `dim`.
    """

    name: str
    dim: int
    index: int
    num_shards: int
    start: int


def save(trainer: Trainer, folder: Path, assets: Sequence[Path] = ()) -> Path:
    """Write a checkpoint of a run into a folder and return its path; all ranks call it with the same folder.

    assets: files that are copied into it, such as the tokenizer's. Keeps the last two checkpoints and removes older
    ones. Raises InputError if the folder has a checkpoint of another run at this step or a later one.
    """
    world, path = trainer.mesh.world, folder / f"step-{trainer.steps_done:08d}"
    temporary = folder / f"{path.name}.part"
    if world.rank == 0:
        _check_same_run(trainer, [one for one in list_checkpoints(folder) if one.name >= path.name])
        for left_over in folder.glob("step-*.part"):
            shutil.rmtree(left_over)
        temporary.mkdir(parents=True)
        _copy_assets(assets, temporary / ASSETS)
    world.barrier()
    _write_shards(trainer, temporary / file_name(world.rank))
    world.barrier()
    if world.rank == 0:
        manifest = _describe(trainer) | {
            "files": [(temporary / file_name(rank)).stat().st_size for rank in range(world.size)]
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        _fsync(temporary / MANIFEST)
        _fsync(temporary)
        if _is_complete(path):  # of the same run
            shutil.rmtree(temporary)
        else:
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
            _fsync(folder)
        earlier = [
            one for one in list_checkpoints(folder) if one.name <= path.name
        ]  # this run may go on from an old one
        for old in earlier[:-NUM_KEPT]:
            shutil.rmtree(old)
    world.barrier()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest last. Each was complete when it got its name."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".part")


def restore_latest(trainer: Trainer, folder: Path, log: Callable[[str], object]) -> None:
    """Resume a new trainer from the newest complete checkpoint in a folder, if any.

    `log` is called with one line per checkpoint tried.

    Incomplete checkpoints are skipped. Raises InputError for a checkpoint of another model or run, and if all are
    incomplete.
    """
    problem = None
    for path in reversed(list_checkpoints(folder)):
        try:
            planned = restore(trainer, path)
        except IncompleteCheckpointError as error:
            problem = problem or error
            log(f"skipping {path}: {error}")
        else:
            log(f"resuming from {path}")
            if planned < (steps := trainer.config.steps):
                lr = learning_rate(trainer.steps_done + 1, steps, trainer.config.lr)
                log(f"extending the finished run of {planned} steps to {steps}: the learning rate goes on at {lr:.2g}")
            return
    if problem:
        raise problem


def restore(trainer: Trainer, path: Path) -> int:
    """Resume a new trainer from a checkpoint of the same model and configuration, in the same or another layout.

    Returns how many steps the checkpoint's run was to take. In the checkpoint's layout everything that follows equals
    an uninterrupted run, bit for bit. A finished run may be extended by a configuration with more steps. Its learning
    rates then apply: the rate, which had fallen to zero, continues where a run of that many steps would be. Raises
    InputError for a checkpoint of another model or run, and IncompleteCheckpointError for an incomplete one, before the
    trainer is changed.
    """
    checkpoint = Checkpoint(path)
    checkpoint.check_compatible(_describe(trainer))
    tensor_group = trainer.mesh.tensor_group
    for strategy, shard in trainer.shards():
        flats = {}
        for kind in STATE_KEYS:
            local = []
            for parameter in shard.bucket.parameters:
                full = checkpoint.read(trainer.names[parameter], kind)
                dim = trainer.sharded_dim(parameter)
                local.append(full if dim is None else full.chunk(tensor_group.size, dim)[tensor_group.rank])
            flats[kind] = torch.cat([one.reshape(-1) for one in local])
        if strategy.keeps_full_weights:
            shard.bucket.write_values(flats["weight"])
        shard.parameter.data.copy_(shard.local_slice(flats["weight"]))
        moments = {kind: shard.local_slice(flats[kind]).to(shard.parameter.device).clone() for kind in STATE_KEYS[1:]}
        step = torch.tensor(float(checkpoint.manifest["steps_done"]))
        strategy.optimizer.state[shard.parameter] = {"step": step, **moments}
    trainer.steps_done, trainer.batches.state = checkpoint.manifest["steps_done"], checkpoint.manifest["position"]
    if checkpoint.manifest["layout"] == asdict(trainer.layout):
        torch.set_rng_state(checkpoint.random_state(trainer.mesh.world.rank))
    return int(checkpoint.manifest["config"]["steps"])


def newest(path: Path, log: Callable[[str], object]) -> Path:
    """The newest complete checkpoint of a folder; a checkpoint itself is returned as it is.

    `log` is called with one line per incomplete checkpoint that is skipped.

    Raises:
        InputError: there is none.
    """
    if (path / MANIFEST).is_file():
        return path
    for found in reversed(list_checkpoints(path)):
        try:
            Checkpoint(found)
        except IncompleteCheckpointError as error:
            log(f"skipping {found}: {error}")
        else:
            return found
    raise InputError("no complete checkpoint", got=path, help="train with --checkpoints FOLDER")


def load_model(path: Path) -> Transformer:
    """The whole model of a checkpoint, of whatever layout, in the dtype that it was trained in.

    Raises:
        IncompleteCheckpointError: a file is missing or damaged.
    """
    checkpoint = Checkpoint(path)
    fields = dict(checkpoint.manifest["model"])
    dtype = getattr(torch, fields.pop("dtype"))
    for name, kind in (("experts", Experts), ("latent", LatentAttention), ("rope_scaling", RotaryScaling)):
        if fields.get(name) is not None:
            fields[name] = kind(**fields[name])
    window = fields.pop("window", None)
    model = Transformer(TransformerConfig(**fields), window=window).to(dtype)
    model.load_state_dict({name: checkpoint.read(name) for name, _ in model.named_parameters()})
    return model.eval()


class Checkpoint:
    """A checkpoint on disk, whose full parameters can be read. Raises IncompleteCheckpointError if it is incomplete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            files = list(self.manifest["files"])
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise IncompleteCheckpointError(f"{path} without a readable {MANIFEST}") from problem
        self._shards: dict[str, list[tuple[CheckpointShard, int, int]]] = {}  # with rank and number in its file
        for rank, size_bytes in enumerate(files):
            file = path / file_name(rank)
            found = file.stat().st_size if file.exists() else 0
            if found != size_bytes:
                got = f"{found} bytes of {file}"
                raise IncompleteCheckpointError(
                    got, expected=f"{size_bytes} bytes", help="resume from another checkpoint"
                )
            with self._open(rank) as tensors:
                for number, shard in enumerate(json.loads(tensors.metadata()["shards"])):
                    self._shards.setdefault(shard["name"], []).append((CheckpointShard(**shard), rank, number))

    def check_compatible(self, run: dict[str, Any]) -> None:
        """Raise InputError unless model, dtype, configuration and data are those of `run`; the layout may differ."""
        manifest = self.manifest
        is_extension = manifest["steps_done"] == manifest["config"].get("steps", 0) < run["config"]["steps"]
        for key, words in (("model", "another model"), ("config", "another run"), ("data", "other training data")):
            found = manifest.get(key, {})
            differing = [name for name, value in run[key].items() if found.get(name) != value]
            if is_extension and key == "config":
                differing.remove("steps")
            if differing:
                got, expected = (
                    ", ".join(f"{name}={one.get(name)}" for name in differing) for one in (found, run[key])
                )
                raise InputError(f"the checkpoint is of {words}", got=got, expected=expected)

    def read(self, name: str, kind: str = "weight") -> torch.Tensor:
        """A full parameter, or one of its Adam moments, put together from all ranks' shards."""
        shards = self._shards[name]
        dim, num_shards = shards[0][0].dim, shards[0][0].num_shards
        shape = list(self.manifest["shapes"][name])
        shape[dim] //= num_shards
        local = []
        for index in range(num_shards):
            own = sorted((one for one in shards if one[0].index == index), key=lambda one: one[0].start)
            flat = [self._read_tensor(rank, f"{kind} {number}") for _, rank, number in own]
            local.append(torch.cat(flat).view(shape))
        return torch.cat(local, dim)

    def random_state(self, rank: int) -> torch.Tensor:
        """State of torch's random generator on a rank of the run that wrote the checkpoint."""
        return self._read_tensor(rank, "random")

    def _read_tensor(self, rank: int, key: str) -> torch.Tensor:
        with self._open(rank) as tensors:
            tensor: torch.Tensor = tensors.get_tensor(key)
            return tensor

    def _open(self, rank: int) -> Any:
        file = self.path / file_name(rank)
        try:
            return safe_open(file, framework="pt")
        except SafetensorError as problem:
            help_ = "resume from another checkpoint"
            raise IncompleteCheckpointError(f"{file}: {problem}", help=help_) from None


def _is_complete(path: Path) -> bool:
    try:
        Checkpoint(path)
    except IncompleteCheckpointError:
        return False
    return True


def _check_same_run(trainer: Trainer, paths: list[Path]) -> None:
    for path in paths:
        try:
            Checkpoint(path).check_compatible(_describe(trainer))
        except IncompleteCheckpointError:
            continue


def _write_shards(trainer: Trainer, file: Path) -> None:
    """Write the elements of which this rank has the primary copy, and its random state."""
    shards: list[CheckpointShard] = []
    tensors = {"random": torch.get_rng_state()}
    for strategy, shard in trainer.shards():
        state = strategy.optimizer.state[shard.parameter]
        zeros = torch.zeros_like(shard.parameter)  # moments before the first step
        saved = {"weight": shard.parameter.detach(), **{kind: state.get(kind, zeros) for kind in STATE_KEYS[1:]}}
        offset, end = -shard.start, shard.parameter.numel()
        for parameter in shard.bucket.parameters:
            first, last = max(0, offset), min(end, offset + parameter.numel())
            if trainer.is_primary_copy(parameter) and first < last:
                dim, group = trainer.sharded_dim(parameter), trainer.mesh.tensor_group
                index, num_shards = (0, 1) if dim is None else (group.rank, group.size)
                for kind, values in saved.items():
                    tensors[f"{kind} {len(shards)}"] = values.reshape(-1)[first:last].cpu().clone()
                name = trainer.names[parameter]
                shards.append(CheckpointShard(name, dim or 0, index, num_shards, first - offset))
            offset += parameter.numel()
    save_file(tensors, file, metadata={"shards": json.dumps([asdict(shard) for shard in shards])})
    _fsync(file)


def _copy_assets(assets: Sequence[Path], folder: Path) -> None:
    if assets:
        folder.mkdir()
        for asset in assets:
            _fsync(Path(shutil.copy(asset, folder)))
        _fsync(folder)


def _describe(trainer: Trainer) -> dict[str, Any]:
    """What a manifest says about a run, as it comes back from JSON."""
    dtype = str(next(iter(trainer.names)).dtype).removeprefix("torch.")
    run = {
        "model": asdict(trainer.model_config) | {"dtype": dtype, "window": trainer.window},
        "config": asdict(trainer.config),
        "data": {"items": len(trainer.data), "digest": trainer.data_digest},
        "layout": asdict(trainer.layout),
        "steps_done": trainer.steps_done,
        "position": trainer.batches.state,
        "shapes": {name: list(shape) for name, shape in trainer.shapes.items()},
    }
    described: dict[str, Any] = json.loads(json.dumps(run))
    return described


def file_name(rank: int) -> str:
    """Name of a rank's file in a checkpoint."""
    return f"rank-{rank}.safetensors"


def _fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
