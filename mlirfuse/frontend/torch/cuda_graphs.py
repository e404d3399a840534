"""``mode="reduce-overhead"``: each graph on a GPU recorded as a CUDA graph by torch's own ``cudagraph_trees``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch._dynamo.backends import cudagraphs
from torch._inductor.cudagraph_utils import get_placeholder_info
from torch._inductor.utils import count_tangents, num_fw_fixed_arguments
from torch.fx import GraphModule

from mlirfuse.frontend.torch.execute import Boxed

log = logging.getLogger("mlirfuse")


class Recorder:
    """For the graphs of one of Dynamo's: what the forward does the backward follows. ``count``: of Dynamo's inputs."""

    def __init__(self, count: int):
        self.count = count
        self.on = True

    def recorded(self, run: Boxed, module: GraphModule, inputs: Sequence[Any], which: str) -> Boxed:
        """``run`` as a function that records and replays; itself, with a line in the log, for a graph that touches the
        CPU or has an op that no CUDA graph holds."""
        from torch._inductor.cudagraph_trees import cudagraphify_impl  # only with a GPU

        backward = which == "backward"
        fixed = count_tangents(module) if backward else num_fw_fixed_arguments(self.count, len(inputs))
        skip = cudagraphs.check_for_skip(module, fixed)
        if skip or not self.on:
            if skip:
                log.warning("the %s graph is not recorded: %s", which, skip)
            if not backward:
                self.on = False
            return self._running_backward(run, module) if backward and self.on else run
        found = cudagraphify_impl(
            run,
            list(inputs),
            range(fixed),
            device_index=cudagraphs.get_device_index(module),
            is_backward=backward,
            is_inference=which == "inference",
            stack_traces=cudagraphs.get_stack_traces(module),
            placeholders=get_placeholder_info(module.graph),
            mutated_input_idxs=cudagraphs.find_input_mutations(module.graph),
        )
        found._boxed_call = True
        return found

    @staticmethod
    def _running_backward(run: Boxed, module: GraphModule) -> Boxed:
        """A backward that runs as it is has to end the forward's generation of memory."""
        from torch._inductor.cudagraph_trees import get_manager

        device = cudagraphs.get_device_index(module)

        def told(args: list[Any]) -> list[Any]:
            manager = get_manager(device, create_if_none_exists=False)
            if manager is not None:
                manager.set_to_running_backward()
            return run(args)

        told._boxed_call = True  # type: ignore[attr-defined]
        return told
