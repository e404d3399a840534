"""Tensor parallel: every rank has a part of each layer's columns or rows, and of the sequence between them. The
collectives stand in the compiled graphs: explain shows them, and what runs meanwhile.

torchrun --nproc-per-node 2 examples/distributed/tensor_parallel.py
"""

import torch
import torch.distributed as dist
from gpt import GPT, batch, start, train
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import mlirfuse.torch

device = start()
mesh = dist.device_mesh.init_device_mesh(device, (dist.get_world_size(),))
model = GPT().to(device)
for layer in model.layers:
    columns = {name: ColwiseParallel(input_layouts=Shard(1)) for name in ("query", "key", "value", "up")}
    rows = {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("out", "down")}
    norms = {name: SequenceParallel() for name in ("first", "second")}
    parallelize_module(layer, mesh, columns | rows | norms)
parts = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True)
parallelize_module(model.layers[0], mesh, parts)
parallelize_module(model.norm, mesh, SequenceParallel())
parallelize_module(model.out, mesh, ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()))

told = mlirfuse.torch.explain(model, batch(0, device)[0])  # on every rank: it runs the model once
if dist.get_rank() == 0:
    print(told)
compiled = torch.compile(model, backend="mlirfuse")
train(compiled, model.parameters(), (batch(step, device) for step in range(5)))
