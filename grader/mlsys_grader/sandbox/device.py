"""What a device of the machine must say of itself so that jobs in a sandbox may use it."""

from __future__ import annotations

from typing import Protocol


class Device(Protocol):
    """A device that the sandbox lets in, a GPU for one. Its jobs are timed: their kernels are compiled, not traced."""

    def bubblewrap_arguments(self) -> list[str]:
        """Arguments for bubblewrap that bind the device; they follow the binding of /usr and the mount of /proc."""

    def container_arguments(self, program: str) -> list[str]:
        """Arguments for `docker run` or `podman run`, whichever `program` is."""
