"""Replicas against PyTorch's DistributedDataParallel over gloo, live, in double precision.

Two and four ranks, the same initial weights and data, dropout 0: every rank's losses,
the averaged gradients, their norm, and the weights after several clipped steps, with and without
pipelines inside and accumulation without sync. Over a module of two layers: forwards and backwards
in other orders, with and without sync, and layers that some or all ranks leave out.

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

torch.set_num_threads(1)  # ranks are forks, in which no other thread lives on


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
        for i, of_ranks in enumerate(accumulations):
            ids, targets = of_ranks[rank]
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


class Fork(nn.Module):
    """Two linear layers; the output is the sum of those that a forward uses."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, uses):
        return sum(layer(x) for i, layer in enumerate((self.a, self.b)) if uses >> i & 1)


def train_fork_rank(rank, options, state, given, folder):
    """What one rank of the plan in `options` sees, into FOLDER/RANK."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank,
                            world_size=options["ranks"])
    model = Fork(options["width"]).double()
    if rank == 0:
        model.load_state_dict(state)
    replica = nn.parallel.DistributedDataParallel(
        model, find_unused_parameters=bool(options["find_unused"]))
    rate = {"lr": options["lr"], "weight_decay": options["weight_decay"]}
    if options["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), momentum=options["momentum"],
                                    dampening=options["dampening"], **rate)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **rate)
    seen = {}
    for step in range(options["steps"]):
        optimizer.zero_grad(set_to_none=True)
        losses = []
        plans = options["plan"].split(",")
        for action in plans[step % len(plans)]:
            if action.isdigit():
                losses[int(action)].backward()
                continue
            x, g, uses = (given[f"{what}.{step}.{len(losses)}.{rank}"]
                          for what in ("x", "g", "uses"))
            with contextlib.nullcontext() if action == "s" else replica.no_sync():
                output = replica(torch.from_numpy(x).double(), int(uses[0]))
            losses.append((output * torch.from_numpy(g).double()).sum())
        optimizer.step()
        for name, value in model.named_parameters():
            seen[f"value.{step}.{rank}.{name}"] = value.detach().numpy().copy()
    torch.save(seen, os.path.join(folder, str(rank)))
    dist.barrier()
    dist.destroy_process_group()


def train(options, state, batches, rank_function=train_rank):
    """What all ranks see."""
    seen = {}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(rank_function, (options, state, batches, folder),
                                              options["ranks"], start_method="fork")
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
            "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "dampening": 0, "nesterov": 0,
            "weight_decay": 0, "decay": "all", "norm": "l2", "eps": 1e-8, "clip": 0.5, "steps": 4,
            "accumulate": 1, "dropout": 0, "freeze": -1, "evaluate": 0,
            "precision": "f32",
            "tie": self.random.choice([0, 1]),
        }
        options.update(fixed)
        return options

    def batches(self, options):
        """[step][accumulation][rank] of ids and targets; ranks may have different numbers of rows."""
        def batch():
            shape = (self.random.randint(1, 5), self.random.randint(2, 8))
            return tuple(torch.randint(options["ntokens"], shape) for _ in range(2))
        return [[[batch() for _ in range(options["ranks"])] for _ in range(options["accumulate"])]
                for _ in range(options["steps"])]

    def check(self, options):
        model, batches = build(options), self.batches(options)
        given = {name: value.detach().to(torch.float32).numpy()
                 for name, value in model.named_parameters()}
        state = {name: torch.from_numpy(given[name]).double() if name in given else value
                 for name, value in model.state_dict().items()}
        for step, accumulations in enumerate(batches):
            for i, of_ranks in enumerate(accumulations):
                for rank, (ids, targets) in enumerate(of_ranks):
                    given[f"ids.{step}.{i}.{rank}"] = ids.numpy().astype(numpy.int32)
                    given[f"targets.{step}.{i}.{rank}"] = targets.numpy().astype(numpy.int32)
        expected = train(options, state, batches)
        got = run_driver("training_driver", [f"{k}={v}" for k, v in options.items()], given)
        self.assertEqual(sorted(got), sorted(expected))
        farthest = 0.0
        for name, value in expected.items():
            off = distance(got[name], value)
            farthest = max(farthest, off)
            self.assertLessEqual(off, TOLERANCE, f"{name}, seed {SEED}, {options}")
        print(f"{options['ranks']} ranks, {options['stages']} stages: farthest {farthest:.2e}")

    def check_fork(self, plan, uses, **fixed):
        """Steps by the plans in turn; uses(step, rank): the layers of a step's forwards on a rank."""
        options = {"ranks": 2, "width": self.random.randint(1, 9), "plan": plan, "steps": 4,
                   "find_unused": 0, "optimizer": "sgd", "momentum": 0.9, "dampening": 0.5,
                   "weight_decay": 0.3, "lr": 0.1, "bucket_bytes": self.random.choice([1, 1000])}
        options.update(fixed)
        width, forwards = options["width"], 2
        state = {name: value.detach() for name, value in Fork(width).named_parameters()}
        given = {name: value.numpy() for name, value in state.items()}
        for step in range(options["steps"]):
            for forward in range(forwards):
                for rank in range(options["ranks"]):
                    key = f"{step}.{forward}.{rank}"
                    given["x." + key] = torch.randn(3, width).numpy()
                    given["g." + key] = torch.randn(3, width).numpy()
                    given["uses." + key] = numpy.array([uses(step, rank)], numpy.int32)
        expected = train(options, {name: value.double() for name, value in state.items()}, given,
                         train_fork_rank)
        got = run_driver("ddp_module_driver", [f"{k}={v}" for k, v in options.items()], given)
        self.assertEqual(sorted(got), sorted(expected))
        for name, value in expected.items():
            self.assertLessEqual(distance(got[name], value), TOLERANCE,
                                 f"{name}, seed {SEED}, {options}")

    def test_mode_at_forward_decides(self):
        self.check_fork("ns01,ns10,sn01,sn10,ss01,nn01,n0s1,s0n1,s0s1", lambda step, rank: 3,
                        steps=9)

    def test_unused_parameters(self):
        """Layer b: not at first, then on one rank, then on both, then on the other."""
        uses = [(1, 1), (1, 3), (3, 3), (2, 1)]
        for optimizer in ("sgd", "adamw"):
            with self.subTest(optimizer=optimizer):
                self.check_fork("s0", lambda step, rank: uses[step][rank], find_unused=1,
                                optimizer=optimizer, momentum=0.9 if optimizer == "sgd" else 0,
                                dampening=0.5 if optimizer == "sgd" else 0)

    def test_unused_parameters_of_accumulated_steps(self):
        uses = [(1, 1), (1, 3), (3, 3), (1, 1)]
        self.check_fork("n0s1", lambda step, rank: uses[step][rank], find_unused=1)

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
