"""Makes the files of a small Qwen3: what transformers computes (eager, f32), in the form of the other families' files.

Arguments: the directory to make, and one of a golden whose rows it takes. Needs torch, transformers and safetensors.
"""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

out, other = sys.argv[1:]
torch.manual_seed(7)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=97, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=12, max_position_embeddings=48, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True, bos_token_id=1,
    eos_token_id=2, attn_implementation="eager"))
for name, parameter in model.named_parameters():  # weights that matter, and norms that are not 1
    torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1 if "norm" in name else 0.15)
model.save_pretrained(out)
rows = load_file(os.path.join(other, "golden.safetensors"))
golden = {name: rows[name] for name in ("input_ids", "labels")}
start = {name: value.clone() for name, value in model.state_dict().items()}


def run():
    model.zero_grad()
    result = model(**{name: golden[name] for name in ("input_ids", "labels")})
    result.loss.backward()
    return result


def train(optimizer):
    losses = []
    for _ in range(10):
        losses.append(run().loss.item())
        optimizer.step()
    return torch.tensor(losses)


result = run()
golden["logits"] = result.logits.detach()
golden["loss"] = result.loss.detach().reshape(1)
golden |= {f"grad.{name}": parameter.grad.clone() for name, parameter in model.named_parameters()}
golden["adamw_losses"] = train(torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1))
golden |= {f"after.{name}": parameter.detach().clone() for name, parameter in model.named_parameters()}
model.load_state_dict(start)
golden["sgd_losses"] = train(torch.optim.SGD(model.parameters(), lr=0.1))
save_file({name: value.contiguous() for name, value in golden.items()}, os.path.join(out, "golden.safetensors"))
shutil.copy(os.path.join(other, "rows.jsonl"), out)
with open(os.path.join(out, "config.json")) as file:
    print("qwen3", *golden["adamw_losses"].tolist(), json.load(file)["transformers_version"])
