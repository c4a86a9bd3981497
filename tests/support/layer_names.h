/* The names that PyTorch gives the parameters of an nn.TransformerEncoderLayer, in its order. */
#ifndef TESTS_SUPPORT_LAYER_NAMES_H
#define TESTS_SUPPORT_LAYER_NAMES_H

static const char *const layer_names[] = {
    "self_attn.in_proj_weight",
    "self_attn.in_proj_bias",
    "self_attn.out_proj.weight",
    "self_attn.out_proj.bias",
    "linear1.weight",
    "linear1.bias",
    "linear2.weight",
    "linear2.bias",
    "norm1.weight",
    "norm1.bias",
    "norm2.weight",
    "norm2.bias",
};

enum { LAYER_NAMES = sizeof layer_names / sizeof *layer_names };

#endif
