"""How the check of lab 09's divided loss calls the learner's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlsys_checks.sandboxed.model_parallel.given import copy_tensors, go_back, refuse_change, require_tensor
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, number

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


def cross_entropy(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `cross_entropy`, and go back from it twice, `again` with another gradient where the case has one."""
    logits, targets = copy_tensors(arrays, "logits", "targets")
    logits.requires_grad_()
    loss = require_tensor("cross_entropy", artifact.cross_entropy(rank, logits, int(arrays["start"]), targets), ())
    answers = {"loss": number("loss", loss.detach())}
    go_back("cross_entropy", loss, arrays["gradient"], again=True)
    go_back("cross_entropy", loss, arrays.get("again", arrays["gradient"]))
    refuse_change("logits", logits, arrays["logits"], wants=True)
    refuse_change("targets", targets, arrays["targets"])
    return answers | {"logits.grad": array("logits.grad", logits.grad)}
