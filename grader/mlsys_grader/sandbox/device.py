"""The interface of a device that jobs in a sandbox may use."""

from __future__ import annotations

from typing import Protocol


class Device(Protocol):
    """A device, such as a GPU, that the sandbox lets in. Its jobs are timed: kernels are compiled, not traced."""

    def bubblewrap_arguments(self) -> list[str]:
        """bubblewrap arguments that bind the device; they follow the binding of /usr and the mount of /proc."""

    def container_arguments(self, program: str) -> list[str]:
        """Arguments for `docker run` or `podman run`, depending on `program`."""
