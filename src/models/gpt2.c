/* GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), as
 * transformers' GPT2Config and GPT2LMHeadModel have it. */
#include "models/family.h"

static const char *const dropouts[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop", NULL};

/* The first four as in `activation_of`. */
static const char *const activations[] = {"relu", "gelu", "gelu_new", "gelu_pytorch_tanh", NULL};
static const sl_activation activation_of[] = {SL_ACTIVATION_RELU, SL_ACTIVATION_GELU,
                                              SL_ACTIVATION_GELU_TANH, SL_ACTIVATION_GELU_TANH};

static sl_status refuse_others(const json_t *config)
{
    SL_TRY(sli_config_need_flag(config, "scale_attn_weights", true));
    SL_TRY(sli_config_need_flag(config, "scale_attn_by_inverse_layer_idx", false));
    SL_TRY(sli_config_need_flag(config, "add_cross_attention", false));
    return sli_config_need_none(config, "quantization_config");
}

static sl_status parse(const json_t *config, sl_model_options *out)
{
    int activation = 2; /* gelu_new */
    SL_TRY(refuse_others(config));
    SL_TRY(sli_config_integer(config, "vocab_size", INT32_MAX, &out->ntokens));
    SL_TRY(sli_config_integer(config, "n_embd", SL_MAX_WIDTH, &out->emsize));
    SL_TRY(sli_config_integer(config, "n_layer", SL_MAX_LAYERS, &out->nlayers));
    SL_TRY(sli_config_integer(config, "n_head", SL_MAX_WIDTH, &out->nhead));
    out->nhid = 4 * out->emsize;
    SL_TRY(sli_config_integer(config, "n_inner", SL_MAX_WIDTH, &out->nhid));
    out->decoder.positions = 1024;
    SL_TRY(sli_config_integer(config, "n_positions", INT32_MAX, &out->decoder.positions));
    out->decoder.norm_eps = 1e-5;
    SL_TRY(sli_config_number(config, "layer_norm_epsilon", 1e-30, &out->decoder.norm_eps));
    out->decoder.deviation = 0.02;
    SL_TRY(sli_config_number(config, "initializer_range", 0, &out->decoder.deviation));
    out->dropout = 0.1f;
    SL_TRY(sli_config_dropout(config, dropouts, &out->dropout));
    SL_TRY(sli_config_choice(config, "activation_function", activations, &activation));
    out->activation = activation_of[activation];
    out->tie = true;
    SL_TRY(sli_config_flag(config, "tie_word_embeddings", &out->tie));
    out->decoder.qkv_bias = out->decoder.output_bias = true;
    return SL_OK;
}

static json_t *print(const sl_model_options *model)
{
    const sl_decoder_options *decoder = &model->decoder;
    json_t *dropout = sli_config_float(model->dropout);
    json_t *json =
        json_pack("{s[s] ss sI sI sI sI sI sI sf sf sO sO so sb}", "architectures",
                  "GPT2LMHeadModel", "activation_function", activations[model->activation],
                  "vocab_size", (json_int_t)model->ntokens, "n_embd", (json_int_t)model->emsize,
                  "n_layer", (json_int_t)model->nlayers, "n_head", (json_int_t)model->nhead,
                  "n_inner", (json_int_t)model->nhid, "n_positions", (json_int_t)decoder->positions,
                  "layer_norm_epsilon", decoder->norm_eps, "initializer_range", decoder->deviation,
                  "resid_pdrop", dropout, "embd_pdrop", dropout, "attn_pdrop", dropout,
                  "tie_word_embeddings", model->tie);
    return json;
}

const sli_family sli_family_gpt2 = {parse, print};
