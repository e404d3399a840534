"""FSDP2: every rank has a part of each parameter, which are gathered layer by layer; parameters in bfloat16, gradients
reduced in float32. Layers are compiled before they are sharded.

torchrun --nproc-per-node 2 examples/distributed/fsdp2.py
"""

import torch
import torch.distributed as dist
from gpt import GPT, batch, start, train
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

device = start()
rank, ranks = dist.get_rank(), dist.get_world_size()
mesh = dist.device_mesh.init_device_mesh(device, (ranks,))
model = GPT().to(device)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    layer.compile(backend="mlirfuse")
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
train(model, model.parameters(), (batch(step, device, rank, ranks) for step in range(5)))
