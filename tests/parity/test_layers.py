"""Every layer, forward and backward, against PyTorch in double precision, over random shapes, in f32
and in bf16.

SLUICE_TEST_SEED draws other shapes and numbers.
"""

import os
import random
import sys
import unittest

try:
    import numpy
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from records import distance, run_driver

TOLERANCE = 1e-5
# A number of bf16 is off by 2^-9 at most; a layer rounds several times: outputs are off by 0.004 at
# most, gradients by 0.016.
BF16_TOLERANCE = 0.02
# In f32 a product is off by some 1e-7: what is as near as that was not made in bf16. In bf16 16
# numbers and more are off by 6e-4 at least.
BF16_LEAST = 1e-4
HAVE_PRODUCTS = ("linear", "self_attention", "encoder_layer", "decoder", "u_net")
SEED = int(os.environ.get("SLUICE_TEST_SEED", 7))


def randomize(module):
    """Float32 values, so that both sides start from the same numbers; norms' weights near 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.rand(parameter.shape) - 0.5
            scale = 1 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.5
            parameter.copy_((1.0 if parameter.dim() == 1 else 0.0) + 2 * scale * noise)
    return module.double()


def float_array(tensor):
    return tensor.detach().to(torch.float32).numpy()


def random_tensor(*shape):
    return (2 * torch.rand(shape) - 1).double()


class Layers(unittest.TestCase):
    precision = "f32"

    def setUp(self):
        torch.manual_seed(SEED)
        self.random = random.Random(SEED)

    def between(self, low, high):
        return self.random.randint(low, high)

    def compare(self, what, got, expected):
        """`what` begins with the layer's kind."""
        for name, value in expected.items():
            off = distance(got[name], value)
            self.check_distance(off, what, name)
            if self.precision == "bf16" and is_product(what.split()[0], name, numpy.asarray(value)):
                self.assertGreater(off, BF16_LEAST, f"{name} of {what}, seed {SEED}")
        self.assertEqual(sorted(got), sorted(expected), what)

    def check_distance(self, off, what, name):
        tolerance = TOLERANCE
        if self.precision == "bf16":
            tolerance = BF16_TOLERANCE
        self.assertLessEqual(off, tolerance, f"{name} of {what}, seed {SEED}")

    def check(self, kind, options, module, run, x, ids=False):
        """Compares the driver's layer with `run`, PyTorch's, at x."""
        arguments = [kind, f"precision={self.precision}", *(f"{key}={value}" for key, value in options.items())]
        given = {name: float_array(value) for name, value in module.named_parameters()}
        x = x if ids else x.requires_grad_()
        out = run(x)
        grad_out = random_tensor(*out.shape)
        out.backward(grad_out)
        got = run_driver(
            "layer_driver",
            arguments,
            {
                "in": x.numpy().astype(numpy.int32) if ids else float_array(x),
                "grad_out": float_array(grad_out),
                **given,
            },
        )
        expected = {"out": out.detach().numpy()}
        if out.dim() == 3 and options.get("mask") != "none":
            expected["continued"] = expected["out"]
        if not ids:
            expected["grad_in"] = x.grad.numpy()
        for name, value in module.named_parameters():
            expected["grad." + name] = value.grad.numpy()
        for name, value in module.named_buffers():
            expected["value." + name] = value.numpy()
        self.compare(" ".join(arguments) + f" in {tuple(x.shape)}", got, expected)

    def test_linear(self):
        for _ in range(8):
            width, out, no_bias = self.between(1, 300), self.between(1, 300), self.between(0, 1)
            module = randomize(torch.nn.Linear(width, out, bias=not no_bias))
            x = random_tensor(*[self.between(1, 9) for _ in range(self.between(0, 2))], width)
            options = {"in": width, "out": out, "no_bias": no_bias}
            self.check("linear", options, module, module, x)

    def test_layer_norm(self):
        for _ in range(8):
            width = self.between(8, 500)
            module = randomize(torch.nn.LayerNorm(width))
            x = random_tensor(self.between(1, 9), self.between(1, 9), width)
            self.check("layer_norm", {"width": width}, module, module, x)

    def test_rms_norm(self):
        # At 5e-4 eps is most of what the root is taken of.
        for scale in (1, 5e-4):
            for eps in (0, 1e-5):
                for width in (33, 64, self.between(8, 500)):
                    module = randomize(RMSNorm(width, eps or 1e-6))
                    x = scale * random_tensor(self.between(1, 9), self.between(1, 9), width)
                    self.check("rms_norm", {"width": width, "eps": eps}, module, module, x)

    def test_activation(self):
        for name, module in (("relu", torch.nn.ReLU()), ("gelu", torch.nn.GELU()),
                             ("gelu_tanh", torch.nn.GELU(approximate="tanh"))):
            x = 4 * random_tensor(self.between(1, 9), self.between(1, 300))
            self.check("activation", {"activation": name}, module, module, x)

    def test_softmax(self):
        for factor in (1, 4):
            x = factor * random_tensor(self.between(1, 9), self.between(1, 9), self.between(2, 300))
            self.check("softmax", {}, torch.nn.Softmax(dim=-1), torch.nn.Softmax(dim=-1), x)

    def test_swiglu(self):
        for _ in range(6):
            width, hidden = self.between(1, 200), self.between(1, 500)
            module = randomize(SwiGLU(width, hidden))
            x = random_tensor(self.between(1, 9), self.between(1, 9), width)
            self.check("swiglu", {"width": width, "hidden": hidden}, module, module, x)

    def attention_shape(self):
        """Samples, time, heads, width: wide enough that a norm's gradient does not cancel out."""
        heads, most = self.between(1, 4), self.random.choice([40, 256])
        return self.between(1, 4), self.between(1, 40), heads, heads * self.between(16 // heads, most)

    def test_self_attention(self):
        for mask in ["causal", "none"] * 4:
            samples, time, heads, width = self.attention_shape()
            module = randomize(torch.nn.MultiheadAttention(width, heads, batch_first=True))
            blocked = causal_mask(time) if mask == "causal" else None
            self.check(
                "self_attention",
                {"width": width, "heads": heads, "mask": mask},
                module,
                lambda x: module(x, x, x, attn_mask=blocked)[0],
                random_tensor(samples, time, width),
            )

    def encoder_layer(self, mask, activation, pre_norm):
        samples, time, heads, width = self.attention_shape()
        feed_forward = self.between(1, 200)
        tanh = torch.nn.GELU(approximate="tanh")
        function = tanh if activation == "gelu_tanh" else activation
        module = randomize(
            torch.nn.TransformerEncoderLayer(
                width, heads, feed_forward, 0.0, function, batch_first=True, norm_first=pre_norm
            )
        )
        blocked = causal_mask(time) if mask == "causal" else None
        x = random_tensor(samples, time, width)
        if activation == "relu" and self.precision == "bf16":
            clear_kinks(module, x, blocked)
        if activation == "relu" and has_kink(module, x, blocked):
            return False
        options = {"width": width, "heads": heads, "feed_forward": feed_forward, "mask": mask}
        options.update(activation=activation, pre_norm=int(pre_norm))
        self.check("encoder_layer", options, module, lambda x: module(x, blocked), x)
        return True

    def test_encoder_layer(self):
        for mask in ("causal", "none"):
            for activation in ("relu", "gelu", "gelu_tanh"):
                for pre_norm in (False, True):
                    for _ in range(2):
                        while not self.encoder_layer(mask, activation, pre_norm):
                            pass

    def test_encoder(self):
        for _ in range(6):
            ntokens, width = self.between(1, 200), 2 * self.between(1, 100)
            max_len = self.between(1, 50)
            module = randomize(Encoder(ntokens, width, max_len))
            ids = torch.randint(ntokens, (self.between(1, 9), self.between(1, max_len)))
            options = {"ntokens": ntokens, "width": width, "max_len": max_len}
            self.check("encoder", options, module, module, ids, ids=True)

    def test_learned_positions(self):
        for _ in range(4):
            ntokens, width, max_len = self.between(1, 200), self.between(1, 200), self.between(1, 50)
            module = randomize(LearnedPositions(ntokens, width, max_len))
            ids = torch.randint(ntokens, (self.between(1, 9), self.between(1, max_len)))
            options = {"ntokens": ntokens, "width": width, "max_len": max_len}
            self.check("learned_positions", options, module, module, ids, ids=True)

    def test_decoder(self):
        for _ in range(4):
            width, ntokens = self.between(1, 200), self.between(1, 500)
            module = randomize(Decoder(width, ntokens))
            x = random_tensor(self.between(1, 9), self.between(1, 9), width)
            options = {"width": width, "ntokens": ntokens}
            self.check("decoder", options, module, module, x)

    def test_decoder_under_cross_entropy(self):
        # The last has more logits than fit in one panel.
        shapes = [(self.between(1, 9), self.between(1, 30), 500) for _ in range(5)] + [(20, 35, 16000)]
        for samples, time, most in shapes:
            width, ntokens = self.between(1, 100), self.between(most // 2, most)
            module = randomize(Decoder(width, ntokens))
            x = random_tensor(samples, time, width).requires_grad_()
            targets = torch.randint(ntokens, (samples, time))
            targets[torch.rand(samples, time) < 0.2] = -100
            targets[0, 0] = 0
            given = {name: float_array(value) for name, value in module.named_parameters()}
            given.update({"in": float_array(x), "targets": targets.numpy().astype(numpy.int32)})
            options = ["decoder", f"precision={self.precision}", f"width={width}",
                       f"ntokens={ntokens}"]
            got = run_driver("layer_driver", options, given)

            rows = torch.nn.functional.cross_entropy(
                module(x).flatten(0, 1), targets.flatten(), reduction="none"
            )
            (rows.sum() / (targets != -100).sum()).backward()
            expected = {"row_losses": rows.detach().numpy(), "grad_in": x.grad.numpy()}
            for name, value in module.named_parameters():
                expected["grad." + name] = value.grad.numpy()
            self.compare(f"{' '.join(options)} in {tuple(x.shape)}", got, expected)

    def test_u_net(self):
        for schedule in ("gpipe", "1f1b", "zb-h1"):
            width, chunks = 4 * self.between(1, 30), self.between(1, 4)
            model = randomize(UNet(width))
            x = random_tensor(self.between(chunks, 20), width)
            targets = random_tensor(*x.shape)
            out = model(x)
            loss = torch.nn.functional.mse_loss(out, targets)
            loss.backward()
            expected = {"out": out.detach().numpy(), "loss": loss.item()}
            given = {"in": float_array(x), "targets": float_array(targets)}
            for name, value in model.named_parameters():
                name = name.removeprefix("layers.")
                given[name] = float_array(value)
                expected["grad." + name] = value.grad.numpy()
            alone = None
            for stages in (1, 2, 3, 4, 13):
                options = [f"width={width}", f"chunks={chunks}", f"stages={stages}",
                           f"precision={self.precision}"]
                got = run_driver("layer_driver", ["u_net", f"schedule={schedule}", *options], given)
                self.compare(f"u_net {' '.join(options)}", got, expected)
                alone = alone or got
                for name in got:
                    self.assertTrue(numpy.array_equal(got[name], alone[name]), (name, options))


class LayersInBf16(Layers):
    precision = "bf16"


def is_product(kind, name, value):
    """Is it a product's result, of so many numbers that not all can be near by chance?"""
    is_weights = name.startswith("grad.") and value.ndim == 2
    is_one = name in ("out", "continued", "grad_in") or is_weights
    return kind in HAVE_PRODUCTS and is_one and value.size >= 16


def causal_mask(time):
    """True blocks."""
    return torch.ones(time, time).triu(1).bool()


def relu_inputs(layer, x, blocked):
    seen = []
    hook = layer.linear1.register_forward_hook(lambda module, x, out: seen.append(out))
    with torch.no_grad():
        layer.train()(x, blocked)
    hook.remove()
    return seen[0].flatten(0, -2)


def has_kink(layer, x, blocked):
    """Is some ReLU so close to 0 that single precision may see it on the other side?"""
    return relu_inputs(layer, x, blocked).abs().min() < 3e-6


def clear_kinks(layer, x, blocked):
    """Moves every second ReLU's inputs above 0 and the others below, all so far that bf16 sees them
    there as well: elsewhere a whole gradient comes or goes."""
    inputs = relu_inputs(layer, x, blocked)
    low, high = inputs.amin(0), inputs.amax(0)
    margin = 0.05 * inputs.abs().max()
    with torch.no_grad():
        layer.linear1.bias[::2] += (margin - low)[::2]
        layer.linear1.bias[1::2] -= (margin + high)[1::2]


class UNet(torch.nn.Module):
    """That of examples/u_net.h. A layer's name is its index in that sequence, which has a Stash at 0
    and 3, a Concat at 8 and 11."""

    def __init__(self, width):
        super().__init__()
        half, quarter = width // 2, width // 4
        sizes = {1: (width, half), 4: (half, quarter), 6: (quarter, half), 9: (width, width),
                 12: (2 * width, width)}
        self.layers = torch.nn.ModuleDict(
            {str(i): torch.nn.Linear(*size) for i, size in sizes.items()})

    def forward(self, x):
        gelu, layers = torch.nn.functional.gelu, self.layers
        half = gelu(layers["1"](x))
        up = gelu(layers["6"](gelu(layers["4"](half))))
        up = gelu(layers["9"](torch.cat((up, half), -1)))
        return layers["12"](torch.cat((up, x), -1))


class PositionalEncoding(torch.nn.Module):
    def __init__(self, width, max_len):
        super().__init__()
        position = torch.arange(max_len).double().unsqueeze(1)
        frequency = torch.exp(torch.arange(0, width, 2).double() * (-numpy.log(10000.0) / width))
        pe = torch.zeros(max_len, 1, width).double()
        pe[:, 0, 0::2] = torch.sin(position * frequency)
        pe[:, 0, 1::2] = torch.cos(position * frequency)
        self.register_buffer("pe", pe)


class Encoder(torch.nn.Module):
    """The tutorials', with the batch first."""

    def __init__(self, ntokens, width, max_len):
        super().__init__()
        self.pos_encoder = PositionalEncoding(width, max_len)
        self.encoder = torch.nn.Embedding(ntokens, width)
        self.width = width

    def forward(self, ids):
        pe = self.pos_encoder.pe[: ids.shape[1], 0]
        return self.encoder(ids) * self.width**0.5 + pe


class RMSNorm(torch.nn.Module):
    """LlamaRMSNorm of transformers."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class SwiGLU(torch.nn.Module):
    """LlamaMLP of transformers."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj = torch.nn.Linear(width, hidden, bias=False)
        self.up_proj = torch.nn.Linear(width, hidden, bias=False)
        self.down_proj = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LearnedPositions(torch.nn.Module):
    """How GPT-2 begins."""

    def __init__(self, ntokens, width, max_len):
        super().__init__()
        self.wte = torch.nn.Embedding(ntokens, width)
        self.wpe = torch.nn.Embedding(max_len, width)

    def forward(self, ids):
        return self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))


class Decoder(torch.nn.Module):
    def __init__(self, width, ntokens):
        super().__init__()
        self.decoder = torch.nn.Linear(width, ntokens)

    def forward(self, x):
        return self.decoder(x)


if __name__ == "__main__":
    print(f"seed {SEED}", flush=True)
    unittest.main()
