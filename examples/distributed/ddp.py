"""DDP: every rank has the model and a share of each batch; gradients are averaged while the backward runs.

torchrun --nproc-per-node 2 examples/distributed/ddp.py
"""

import torch
import torch.distributed as dist
from gpt import GPT, batch, start, train
from torch.nn.parallel import DistributedDataParallel

device = start()
model = DistributedDataParallel(GPT().to(device))
compiled = torch.compile(model, backend="mlirfuse")
rank, ranks = dist.get_rank(), dist.get_world_size()
train(compiled, model.parameters(), (batch(step, device, rank, ranks) for step in range(5)))
