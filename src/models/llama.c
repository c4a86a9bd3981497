/* Llama (Touvron et al., 2023) and the families that differ from it in a member or two, as
 * transformers' LlamaConfig, MistralConfig, Qwen2Config and SmolLM3Config have them:
 *
 *   mistral   no biases; a sliding window is refused
 *   qwen2     q, k and v have biases
 *   qwen3     each head of q and of k has a norm
 *   smollm3   every fourth layer has no rotary positions
 *
 * The rotary positions are spelled in two ways: "rope_theta" and "rope_scaling" beside it, or
 * "rope_parameters" with all of it. Both are read and written. */
#include "core/error.h"
#include "models/family.h"

#include <inttypes.h>
#include <string.h>

static const char *const architectures[] = {[SL_FAMILY_LLAMA] = "LlamaForCausalLM",
                                            [SL_FAMILY_MISTRAL] = "MistralForCausalLM",
                                            [SL_FAMILY_QWEN2] = "Qwen2ForCausalLM",
                                            [SL_FAMILY_QWEN3] = "Qwen3ForCausalLM",
                                            [SL_FAMILY_SMOLLM3] = "SmolLM3ForCausalLM"};
static const char *const dropouts[] = {"attention_dropout", NULL};
static const char *const activations[] = {"silu", NULL};

/* ---- Rotary positions ------------------------------------------------------------------- */

/* `scaling` is an object, or NULL. */
static sl_status parse_scaling(const json_t *scaling, sl_rotary_options *out)
{
    int type = 0;
    const char *key = json_object_get(scaling, "rope_type") ? "rope_type" : "type";
    if (scaling && !json_is_object(scaling))
        return sl_error(SL_ERR_FORMAT, "its rope_scaling or rope_parameters must be an object");
    SL_TRY(sli_config_choice(scaling, key, sl_rotary_names + SL_ROTARY_DEFAULT, &type));
    out->kind = (sl_rotary_kind)(SL_ROTARY_DEFAULT + type);
    if (out->kind == SL_ROTARY_DEFAULT)
        return SL_OK;
    SL_TRY(sli_config_number(scaling, "factor", 1e-30, &out->factor));
    if (out->kind == SL_ROTARY_LINEAR)
        return SL_OK;
    SL_TRY(sli_config_number(scaling, "low_freq_factor", 1e-30, &out->low_freq_factor));
    SL_TRY(sli_config_number(scaling, "high_freq_factor", 1e-30, &out->high_freq_factor));
    return sli_config_integer(scaling, "original_max_position_embeddings", INT32_MAX,
                              &out->original_positions);
}

static sl_status parse_rotary(const json_t *config, sl_rotary_options *out)
{
    const json_t *newer = json_object_get(config, "rope_parameters");
    const json_t *older = json_object_get(config, "rope_scaling");
    const json_t *theta = json_object_get(newer, "rope_theta") ? newer : config;
    if (!json_object_get(theta, "rope_theta"))
        return sl_error(SL_ERR_FORMAT,
                        "it has neither \"rope_theta\" nor \"rope_parameters\" with one, so that "
                        "the angles of its positions are not known");
    SL_TRY(sli_config_number(theta, "rope_theta", 1e-30, &out->theta));
    const json_t *scaling = json_is_null(newer) || !newer ? older : newer;
    return parse_scaling(json_is_null(scaling) ? NULL : scaling, out);
}

static json_t *print_scaling(const sl_rotary_options *rotary, bool with_theta)
{
    json_t *json = json_pack("{ss}", "rope_type", sl_rotary_names[rotary->kind]);
    int failed = !json;
    if (with_theta)
        failed |= json_object_set_new(json, "rope_theta", json_real(rotary->theta));
    if (rotary->kind != SL_ROTARY_DEFAULT)
        failed |= json_object_set_new(json, "factor", json_real(rotary->factor));
    if (rotary->kind == SL_ROTARY_LLAMA3) {
        failed |= json_object_set_new(json, "low_freq_factor", json_real(rotary->low_freq_factor));
        failed |=
            json_object_set_new(json, "high_freq_factor", json_real(rotary->high_freq_factor));
        failed |= json_object_set_new(json, "original_max_position_embeddings",
                                      json_integer(rotary->original_positions));
    }
    if (!failed)
        return json;
    json_decref(json);
    return NULL;
}

/* ---- Layers without rotary positions ---------------------------------------------------- */

/* SmolLM3's list has a 0 for each of them. */
static sl_status check_list(const json_t *list, const sl_model_options *model)
{
    int64_t interval = model->decoder.no_rope_interval;
    size_t index;
    json_t *value;
    if (json_array_size(list) != (size_t)model->nlayers)
        return sl_error(SL_ERR_FORMAT,
                        "its no_rope_layers must be a list of its %" PRId64 " layers",
                        model->nlayers);
    json_array_foreach(list, index, value)
    {
        bool rotates = interval == 0 || ((int64_t)index + 1) % interval != 0;
        if (!json_is_integer(value) || (json_integer_value(value) != 0) != rotates)
            return sl_error(
                SL_ERR_UNSUPPORTED,
                "its no_rope_layers does not have a 0 for every layer of number %" PRId64
                " and its multiples alone, as its no_rope_layer_interval says",
                interval);
    }
    return SL_OK;
}

static sl_status parse_no_rope(const json_t *config, sl_model_options *out)
{
    const json_t *list = json_object_get(config, "no_rope_layers");
    int64_t *interval = &out->decoder.no_rope_interval;
    if (out->family != SL_FAMILY_SMOLLM3)
        return SL_OK;
    *interval = 4;
    SL_TRY(sli_config_integer(config, "no_rope_layer_interval", INT32_MAX, interval));
    return !list || json_is_null(list) ? SL_OK : check_list(list, out);
}

/* ---- All members ------------------------------------------------------------------------ */

static sl_status refuse_others(const json_t *config, const sl_model_options *model)
{
    size_t index;
    json_t *type;
    bool windows = model->family == SL_FAMILY_MISTRAL;
    double whole = 1;
    int silu = 0;
    SL_TRY(sli_config_need_none(config, "quantization_config"));
    SL_TRY(sli_config_choice(config, "hidden_act", activations, &silu));
    SL_TRY(sli_config_need_flag(config, "mlp_bias", false));
    if (!windows)
        SL_TRY(sli_config_need_flag(config, "use_sliding_window", false));
    else
        SL_TRY(sli_config_need_none(config, "sliding_window"));
    const json_t *places[] = {config, json_object_get(config, "rope_parameters")};
    for (int i = 0; i < 2; i++) {
        SL_TRY(sli_config_number(places[i], "partial_rotary_factor", 0, &whole));
        if (whole != 1)
            return sl_error(SL_ERR_UNSUPPORTED,
                            "its partial_rotary_factor is %g, and sluice serves 1 alone", whole);
    }
    json_array_foreach(json_object_get(config, "layer_types"), index, type) if (
        !json_is_string(type) ||
        strcmp(json_string_value(type), "full_attention") !=
            0) return sl_error(SL_ERR_UNSUPPORTED,
                               "its layer_types has another than \"full_attention\", which sluice "
                               "serves alone");
    return SL_OK;
}

static sl_status parse_sizes(const json_t *config, sl_model_options *out)
{
    sl_decoder_options *decoder = &out->decoder;
    SL_TRY(sli_config_integer(config, "vocab_size", INT32_MAX, &out->ntokens));
    SL_TRY(sli_config_integer(config, "hidden_size", SL_MAX_WIDTH, &out->emsize));
    SL_TRY(sli_config_integer(config, "intermediate_size", SL_MAX_WIDTH, &out->nhid));
    SL_TRY(sli_config_integer(config, "num_hidden_layers", SL_MAX_LAYERS, &out->nlayers));
    SL_TRY(sli_config_integer(config, "num_attention_heads", SL_MAX_WIDTH, &out->nhead));
    decoder->key_heads = out->nhead;
    SL_TRY(sli_config_integer(config, "num_key_value_heads", out->nhead, &decoder->key_heads));
    if (out->family == SL_FAMILY_QWEN3)
        decoder->head_width = 128; /* Qwen3Config's own */
    else if (out->emsize % out->nhead == 0)
        decoder->head_width = out->emsize / out->nhead;
    SL_TRY(sli_config_integer(config, "head_dim", SL_MAX_WIDTH, &decoder->head_width));
    return sli_config_integer(config, "max_position_embeddings", INT32_MAX, &decoder->positions);
}

static sl_status parse(const json_t *config, sl_model_options *out)
{
    sl_decoder_options *decoder = &out->decoder;
    bool has_bias_member = out->family == SL_FAMILY_LLAMA || out->family == SL_FAMILY_QWEN3 ||
                           out->family == SL_FAMILY_SMOLLM3;
    SL_TRY(refuse_others(config, out));
    SL_TRY(parse_sizes(config, out));
    decoder->norm_eps = 1e-6;
    SL_TRY(sli_config_number(config, "rms_norm_eps", 1e-30, &decoder->norm_eps));
    decoder->deviation = 0.02;
    SL_TRY(sli_config_number(config, "initializer_range", 0, &decoder->deviation));
    SL_TRY(sli_config_dropout(config, dropouts, &out->dropout));
    out->tie = out->family == SL_FAMILY_SMOLLM3;
    SL_TRY(sli_config_flag(config, "tie_word_embeddings", &out->tie));
    if (has_bias_member)
        SL_TRY(sli_config_flag(config, "attention_bias", &decoder->output_bias));
    decoder->qkv_bias = decoder->output_bias || out->family == SL_FAMILY_QWEN2;
    decoder->qk_norm = out->family == SL_FAMILY_QWEN3;
    SL_TRY(parse_rotary(config, &decoder->rotary));
    return parse_no_rope(config, out);
}

static json_t *print(const sl_model_options *model)
{
    const sl_decoder_options *decoder = &model->decoder;
    const sl_rotary_options *rotary = &decoder->rotary;
    bool is_scaled = rotary->kind != SL_ROTARY_DEFAULT;
    json_t *json =
        json_pack("{s[s] ss sI sI sI sI sI sI sI sI sf sf so sb sb sf so? so}", "architectures",
                  architectures[model->family], "hidden_act", "silu", "vocab_size",
                  (json_int_t)model->ntokens, "hidden_size", (json_int_t)model->emsize,
                  "intermediate_size", (json_int_t)model->nhid, "num_hidden_layers",
                  (json_int_t)model->nlayers, "num_attention_heads", (json_int_t)model->nhead,
                  "num_key_value_heads", (json_int_t)decoder->key_heads, "head_dim",
                  (json_int_t)decoder->head_width, "max_position_embeddings",
                  (json_int_t)decoder->positions, "rms_norm_eps", decoder->norm_eps,
                  "initializer_range", decoder->deviation, "attention_dropout",
                  sli_config_float(model->dropout), "tie_word_embeddings", model->tie,
                  "attention_bias", decoder->output_bias, "rope_theta", rotary->theta,
                  "rope_scaling", is_scaled ? print_scaling(rotary, false) : NULL,
                  "rope_parameters", print_scaling(rotary, true));
    int failed = !json || (is_scaled && json_is_null(json_object_get(json, "rope_scaling")));
    if (!failed && model->family == SL_FAMILY_SMOLLM3)
        failed = json_object_set_new(json, "no_rope_layer_interval",
                                     json_integer(decoder->no_rope_interval));
    if (!failed && model->family == SL_FAMILY_MISTRAL)
        failed = json_object_set_new(json, "sliding_window", json_null());
    if (!failed)
        return json;
    json_decref(json);
    return NULL;
}

const sli_family sli_family_llama = {parse, print};
