/* Models by name, with the sizes that were published; weights are drawn. */
#include "core/error.h"
#include "models/family.h"

#include <stdio.h>
#include <string.h>

/* Llama's families; GPT-2 is below. Epsilons are 1e-5, Qwen3's 1e-6. */
static const struct {
    const char *name;
    int64_t ntokens, emsize, nhid, nlayers, nhead, key_heads, head_width, positions;
    double theta, deviation;
    double factor; /* of llama3's scaling; 0: none */
    sl_family family;
    bool tie;
    int bos, eos; /* the tokens that begin and end a text */
} llamas[] = {
    {"smollm2-135m", 49152, 576, 1536, 30, 9, 3, 64, 8192, 1e5, 1.0 / 24, 0, SL_FAMILY_LLAMA, true,
     0, 0},
    {"smollm2-360m", 49152, 960, 2560, 32, 15, 5, 64, 8192, 1e5, 0.02, 0, SL_FAMILY_LLAMA, true, 0,
     0},
    {"qwen3-0.6b", 151936, 1024, 3072, 28, 16, 8, 128, 40960, 1e6, 0.02, 0, SL_FAMILY_QWEN3, true,
     151643, 151645},
    {"tinyllama-1.1b", 32000, 2048, 5632, 22, 32, 4, 64, 2048, 1e4, 0.02, 0, SL_FAMILY_LLAMA, false,
     1, 2},
    {"llama-3.2-1b", 128256, 2048, 8192, 16, 32, 8, 64, 131072, 5e5, 0.02, 32, SL_FAMILY_LLAMA,
     true, 128000, 128001},
    {"llama-3-8b", 128256, 4096, 14336, 32, 32, 8, 128, 8192, 5e5, 0.02, 0, SL_FAMILY_LLAMA, false,
     128000, 128001},
};
enum { LLAMAS = sizeof llamas / sizeof *llamas };

const char *const sl_model_names[] = {"gpt2",           "smollm2-135m",
                                      "smollm2-360m",   "qwen3-0.6b",
                                      "tinyllama-1.1b", "llama-3.2-1b",
                                      "llama-3-8b",     NULL};

static sl_model_options gpt2(void)
{
    return (sl_model_options){.family = SL_FAMILY_GPT2,
                              .ntokens = 50257,
                              .emsize = 768,
                              .nhid = 3072,
                              .nlayers = 12,
                              .nhead = 12,
                              .dropout = 0.1f,
                              .activation = SL_ACTIVATION_GELU_TANH,
                              .tie = true,
                              .decoder = {.positions = 1024,
                                          .norm_eps = 1e-5,
                                          .deviation = 0.02,
                                          .qkv_bias = true,
                                          .output_bias = true}};
}

static sl_model_options llama(int index)
{
    bool is_qwen3 = llamas[index].family == SL_FAMILY_QWEN3;
    sl_model_options model = {.family = llamas[index].family,
                              .ntokens = llamas[index].ntokens,
                              .emsize = llamas[index].emsize,
                              .nhid = llamas[index].nhid,
                              .nlayers = llamas[index].nlayers,
                              .nhead = llamas[index].nhead,
                              .tie = llamas[index].tie,
                              .decoder = {.key_heads = llamas[index].key_heads,
                                          .head_width = llamas[index].head_width,
                                          .positions = llamas[index].positions,
                                          .norm_eps = is_qwen3 ? 1e-6 : 1e-5,
                                          .qk_norm = is_qwen3,
                                          .deviation = llamas[index].deviation,
                                          .rotary = {.kind = SL_ROTARY_DEFAULT,
                                                     .theta = llamas[index].theta}}};
    if (llamas[index].factor > 0)
        model.decoder.rotary = (sl_rotary_options){.kind = SL_ROTARY_LLAMA3,
                                                   .theta = llamas[index].theta,
                                                   .factor = llamas[index].factor,
                                                   .low_freq_factor = 1,
                                                   .high_freq_factor = 4,
                                                   .original_positions = 8192};
    return model;
}

static void set_token_ids(int bos, int eos, sl_decoder_options *out)
{
    snprintf(out->token_ids, sizeof out->token_ids, "{\"bos_token_id\":%d,\"eos_token_id\":%d}",
             bos, eos);
}

sl_status sl_model_options_named(const char *name, sl_model_options *out)
{
    int index = 0;
    *out = (sl_model_options){0};
    while (index < LLAMAS && strcmp(llamas[index].name, name) != 0)
        index++;
    if (index == LLAMAS && strcmp(name, "gpt2") != 0)
        return sl_error(SL_ERR_NOT_FOUND, "there is no model of the name \"%s\"", name);
    *out = index < LLAMAS ? llama(index) : gpt2();
    set_token_ids(index < LLAMAS ? llamas[index].bos : 50256,
                  index < LLAMAS ? llamas[index].eos : 50256, &out->decoder);
    out->pre_norm = true;
    out->context = sli_decoder_context(out);
    return SL_OK;
}
