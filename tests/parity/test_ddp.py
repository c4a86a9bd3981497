"""Replicas against PyTorch's DistributedDataParallel over gloo, live, in double precision.

Two and four ranks, the same initial weights and shares of the data, dropout 0: every rank's losses,
the averaged gradients, their norm, and the weights after several clipped steps, with and without
pipelines inside and accumulation without sync.

SLUICE_TEST_SEED draws others than the usual models.
"""

import contextlib
import os
import random
import sys
import tempfile
import unittest

try:
    import numpy
    import torch
    import torch.distributed as dist
    from torch import nn
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from records import distance, run_driver
from test_training import SEED, TOLERANCE, build


def train_rank(rank, options, state, batches, folder):
    """What one rank sees, into FOLDER/RANK."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank,
                            world_size=options["ranks"])
    torch.manual_seed(rank)  # as many different models as ranks: rank 0's must win
    model = build(options)
    if rank == 0:
        model.load_state_dict(state)
    replica = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), options["lr"], momentum=0.9)
    seen = {}
    for step, accumulations in enumerate(batches):
        optimizer.zero_grad()
        for i, shares in enumerate(accumulations):
            ids, targets = shares[rank]
            last = i + 1 == len(accumulations)
            with contextlib.nullcontext() if last else replica.no_sync():
                loss = nn.functional.cross_entropy(
                    replica(ids).reshape(-1, options["ntokens"]), targets.reshape(-1))
                loss.backward()
            seen[f"loss.{step}.{i}.{rank}"] = loss.item()
        if step == 0 and rank == 0:
            for name, value in model.named_parameters():
                seen["grad." + name] = value.grad.numpy().copy()
        norm = nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()
        if rank == 0:
            seen[f"norm.{step}"] = norm.item()
    if rank == 0:
        for name, value in model.named_parameters():
            seen["value." + name] = value.detach().numpy()
    torch.save(seen, os.path.join(folder, str(rank)))
    dist.barrier()
    dist.destroy_process_group()


def train(options, state, batches):
    """What all ranks see."""
    seen = {}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train_rank, (options, state, batches, folder),
                                    options["ranks"])
        for rank in range(options["ranks"]):
            seen.update(torch.load(os.path.join(folder, str(rank))))
    return seen


class DistributedDataParallel(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        self.random = random.Random(SEED)

    def draw(self, **fixed):
        nhead = self.random.choice([1, 2])
        options = {
            "ntokens": self.random.randint(5, 40), "emsize": nhead * 2 * self.random.randint(2, 6),
            "nhid": self.random.randint(3, 20), "nlayers": 2, "nhead": nhead, "mask": "causal",
            "activation": "relu", "pre_norm": self.random.choice([0, 1]),
            "chunks": self.random.randint(1, 3), "stages": 1,
            "checkpoint": self.random.choice(["never", "except_last", "always"]),
            "schedule": self.random.choice(["gpipe", "1f1b"]),
            "bucket_bytes": self.random.choice([1, 1000, 1 << 20]),
            "lr": 0.1, "clip": 0.5, "steps": 4, "accumulate": 1,
        }
        options.update(fixed)
        return options

    def batches(self, options):
        """[step][accumulation][rank] of ids and targets; ranks may have different numbers of rows."""
        def share():
            shape = (self.random.randint(1, 5), self.random.randint(2, 8))
            return tuple(torch.randint(options["ntokens"], shape) for _ in range(2))
        return [[[share() for _ in range(options["ranks"])] for _ in range(options["accumulate"])]
                for _ in range(options["steps"])]

    def check(self, options):
        model, batches = build(options), self.batches(options)
        given = {name: value.detach().to(torch.float32).numpy()
                 for name, value in model.named_parameters()}
        state = {name: torch.from_numpy(given[name]).double() if name in given else value
                 for name, value in model.state_dict().items()}
        for step, accumulations in enumerate(batches):
            for i, shares in enumerate(accumulations):
                for rank, (ids, targets) in enumerate(shares):
                    given[f"ids.{step}.{i}.{rank}"] = ids.numpy().astype(numpy.int32)
                    given[f"targets.{step}.{i}.{rank}"] = targets.numpy().astype(numpy.int32)
        expected = train(options, state, batches)
        got = run_driver("ddp_driver", [f"{k}={v}" for k, v in options.items()], given)
        self.assertEqual(sorted(got), sorted(expected))
        farthest = 0.0
        for name, value in expected.items():
            off = distance(got[name], value)
            farthest = max(farthest, off)
            self.assertLessEqual(off, TOLERANCE, f"{name}, seed {SEED}, {options}")
        print(f"{options['ranks']} ranks, {options['stages']} stages: farthest {farthest:.2e}")

    def test_replicas(self):
        for ranks in (2, 4):
            self.check(self.draw(ranks=ranks))

    def test_replicas_of_pipes(self):
        for ranks in (2, 4):
            self.check(self.draw(ranks=ranks, stages=2))

    def test_accumulation_without_sync(self):
        self.check(self.draw(ranks=2, stages=2, accumulate=2))


if __name__ == "__main__":
    print(f"seed {SEED}")
    unittest.main(verbosity=2)
