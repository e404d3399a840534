"""Runs mlirfuse.autotune over the rows of the GPU table and prints how far the model's choice is off: python benchmarks/autotune.py [name …]"""
import sys, os
sys.path.insert(0, os.path.dirname(__file__))
import torch, mlirfuse, workloads, gc
from mlirfuse.autotune import autotune
torch.set_grad_enabled(False)
only = sys.argv[1:]
for w in workloads.gpu_table(False):
    if only and not any(o.lower() in w.name.lower() for o in only): continue
    try:
        ins = [*w.make("cuda"), *w.extra]
        f = mlirfuse.jit(w.fused, fallback=False)
        for r in autotune(f, *ins, repeat=9, limit=36, keep=False):
            print(w.name, w.shape, r, flush=True)
        del ins, f
    except Exception as ex:
        print(w.name, 'FAILED', type(ex).__name__, str(ex)[:200], flush=True)
    gc.collect(); torch.cuda.empty_cache()
