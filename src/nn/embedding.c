/* Rows of a table that ids name: alone, as torch.nn.Embedding; as the tutorials' Encoder,
 * embedding * sqrt(D), plus the positional encoding, dropout; and as GPT-2 begins, with the rows of
 * a second table that positions name. Only the ids are saved for backward. */
#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static const float WEIGHT_BOUND = 0.1f, GPT2_DEVIATION = 0.02f;

typedef struct embedding {
    sl_embedding_options options;
    sl_parameter *weight; /* [ntokens, D] */
    sl_parameter *pe;     /* [max_len, 1, D], learned [max_len, D]; NULL: the table alone */
} embedding;

/* ---- Forward and backward --------------------------------------------------------------- */

static sl_status check_ids(const embedding *self, const sl_tensor *ids)
{
    SL_TRY(sli_check_dtype("the input", ids, SL_I32));
    int64_t time = sl_tensor_columns(ids), count = sl_tensor_count(ids);
    if (sli_tensor_is_below(ids, self->options.ntokens))
        return SL_OK;
    int32_t *host = malloc(sli_tensor_bytes(ids));
    if (!host)
        return sli_no_memory(NULL, "a copy of %" PRId64 " token ids", count);
    sl_status status = sl_tensor_read(ids, host);
    for (int64_t i = 0; i < count && status == SL_OK; i++)
        if (host[i] < 0 || host[i] >= self->options.ntokens)
            status = sl_error(SL_ERR_INVALID,
                              "token id %" PRId32 " at [%" PRId64 ", %" PRId64
                              "] is not in 0 .. %" PRId64,
                              host[i], i / time, i % time, self->options.ntokens - 1);
    free(host);
    return status;
}

static sli_dropout dropout_of(const sl_module *module, const sl_pass *pass, const sl_tensor *ids)
{
    const embedding *self = sl_module_state(module);
    return sli_pass_dropout(pass, module, 0, self->options.dropout, sl_tensor_columns(ids));
}

static float scale_of(const embedding *self)
{
    bool scales = self->pe && !self->options.learned_positions;
    return scales ? (float)sqrt((double)self->options.width) : 1;
}

/* Does backward add to a table? */
static bool is_trained(const embedding *self)
{
    return sli_parameter_is_trained(self->weight) ||
           (self->pe && sli_parameter_is_trained(self->pe));
}

static sl_status look_up_ids(const sl_module *module, const sl_pass *pass, const sl_tensor *ids,
                             sl_tensor *out)
{
    const embedding *self = sl_module_state(module);
    sl_device *device = sl_pass_device(pass);
    sli_embedding arguments = {
        .rows = sl_tensor_count(ids),
        .width = self->options.width,
        .table_rows = self->options.ntokens,
        .ids = sl_tensor_i32(ids),
        .scale = scale_of(self),
        .dropout = dropout_of(module, pass, ids),
        .out = sl_tensor_f32(out),
    };
    SL_TRY(
        sli_parameter_table_values(self->weight, device, &arguments.table, &arguments.table_bf16));
    if (self->pe) {
        SL_TRY(sli_parameter_values(self->pe, device, &arguments.positions));
        arguments.positions += pass->first_position * self->options.width;
    }
    return sli_embed(pass, &arguments);
}

static sl_status check_length(const embedding *self, int64_t time)
{
    if (self->pe && time > self->options.max_len)
        return sl_error(SL_ERR_INVALID,
                        "a sequence of %" PRId64 " tokens is longer than the %" PRId64
                        " positions that are encoded",
                        time, self->options.max_len);
    return SL_OK;
}

static sl_status embedding_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                   sl_tensor **out)
{
    sl_shape shape;
    const embedding *self = sl_module_state(module);
    SL_TRY(check_ids(self, in));
    for (int64_t row = 0; row < (pass->options.caches ? sl_tensor_shape(in)->size[0] : 1); row++)
        SL_TRY(check_length(self, sl_pass_position(pass, row) + sl_tensor_columns(in)));
    SL_TRY(sl_module_output_shape(module, sl_tensor_shape(in), &shape));
    SL_TRY(sli_pass_create_output(pass, &shape, out));
    SL_TRY(look_up_ids(module, pass, in, *out));
    return sl_pass_save_alias(pass, in);
}

/* The kernel adds to the few rows of `table` that the ids name; sl_parameter_grad makes the others
 * 0. */
static sl_status add_to_rows(const sl_module *module, const sl_pass *pass, sl_parameter *table,
                             const sl_tensor *ids, const sl_tensor *grad_out)
{
    const embedding *self = sl_module_state(module);
    sl_tensor *grad;
    float beta;
    sli_embedding_backward arguments = {
        .rows = sl_tensor_count(ids),
        .width = self->options.width,
        .table_rows = sl_parameter_shape(table)->size[0],
        .ids = sl_tensor_i32(ids),
        .scale = scale_of(self),
        .grad_out = sl_tensor_f32(grad_out),
        .dropout = dropout_of(module, pass, ids),
    };
    SL_TRY(sl_parameter_grad(table, &grad));
    SL_TRY(sli_parameter_gradient(table, &beta, &arguments.grad_table));
    return sli_embed_backward(pass, &arguments, self->pe != NULL);
}

/* The positions of each sample or document in the place of its ids. */
static sl_status create_positions(const sl_pass *pass, const sl_tensor *ids, sl_tensor **out)
{
    const sl_tensor *numbers;
    if (pass->documents) {
        SL_TRY(sl_pass_input(pass, SL_DOCUMENTS_INPUT, &numbers));
        return sl_tensor_alias(numbers, out);
    }
    SL_TRY(sl_tensor_create(sl_tensor_device(ids), SL_MEMORY_WORKSPACE, SL_I32,
                            sl_tensor_shape(ids), out));
    int64_t count = sl_tensor_count(ids), time = sl_tensor_columns(ids);
    int32_t *host = malloc((size_t)count * sizeof *host);
    if (!host)
        return sli_no_memory(NULL, "%" PRId64 " positions", count);
    for (int64_t i = 0; i < count; i++)
        host[i] = (int32_t)(pass->first_position + i % time);
    sl_status status = sl_tensor_write(*out, host);
    free(host);
    return status;
}

static sl_status add_to_positions(const sl_module *module, const sl_pass *pass,
                                  const sl_tensor *ids, const sl_tensor *grad_out)
{
    const embedding *self = sl_module_state(module);
    sl_tensor *positions = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(create_positions(pass, ids, &positions));
    status = add_to_rows(module, pass, self->pe, positions, grad_out);
fail:
    sl_tensor_destroy(&positions);
    return status;
}

static sl_status add_gradient(const sl_module *module, const sl_pass *pass, const sl_tensor *ids,
                              const sl_tensor *grad_out)
{
    const embedding *self = sl_module_state(module);
    sl_shape output;
    SL_TRY(sl_module_output_shape(module, sl_tensor_shape(ids), &output));
    SL_TRY(sli_check_grad(grad_out, &output));
    if (sli_parameter_is_trained(self->weight))
        SL_TRY(add_to_rows(module, pass, self->weight, ids, grad_out));
    bool learns = self->pe && sli_parameter_is_trained(self->pe);
    return learns ? add_to_positions(module, pass, ids, grad_out) : SL_OK;
}

static sl_status check_no_grad_in(sl_tensor *const *grad_in)
{
    if (grad_in)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "token ids have no gradient: ask for none (grad_in NULL)");
    return SL_OK;
}

static sl_status embedding_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                    sl_tensor **grad_in)
{
    sl_tensor *ids;
    SL_TRY(check_no_grad_in(grad_in));
    SL_TRY(sl_pass_pop(pass, &ids));
    sl_status status = add_gradient(module, pass, ids, grad_out);
    sl_tensor_destroy(&ids);
    return status;
}

/* All of it is left to backward_weight. */
static sl_status embedding_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                          sl_tensor **grad_in)
{
    const embedding *self = sl_module_state(module);
    sl_tensor *ids;
    if (!is_trained(self))
        return embedding_backward(module, pass, grad_out, grad_in);
    SL_TRY(check_no_grad_in(grad_in));
    SL_TRY(sl_pass_pop(pass, &ids));
    SL_TRY(sl_pass_defer(pass, &ids));
    return sl_pass_defer_alias(pass, grad_out);
}

static sl_status embedding_backward_weight(sl_module *module, sl_pass *pass)
{
    const embedding *self = sl_module_state(module);
    sl_tensor *ids, *grad_out;
    if (!is_trained(self))
        return SL_OK;
    SL_TRY(sli_pass_take_pair(pass, &ids, &grad_out));
    sl_status status = add_gradient(module, pass, ids, grad_out);
    sl_tensor_destroy(&ids);
    sl_tensor_destroy(&grad_out);
    return status;
}

/* ---- The module ------------------------------------------------------------------------- */

static sl_status embedding_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const embedding *self = sl_module_state(module);
    char text[SL_SHAPE_TEXT_BYTES];
    if (in->dims != 2 || in->size[0] < 1 || in->size[1] < 1)
        return sl_error(SL_ERR_INVALID, "the input must be token ids [N, T], got %s",
                        sl_shape_text(in, text));
    SL_TRY(check_length(self, in->size[1]));
    *out = sl_shape_3d(in->size[0], in->size[1], self->options.width);
    return SL_OK;
}

static void embedding_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const embedding *self = sl_module_state(module);
    (void)in; /* token ids */
    *out = self->options.width;
}

static int64_t embedding_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    const embedding *self = sl_module_state(module);
    if (!is_trained(self))
        return 0;
    return sl_shape_count(in) *
           ((int64_t)sizeof(int32_t) + self->options.width * (int64_t)sizeof(float));
}

static int64_t embedding_saved_bytes(const sl_module *module, const sl_shape *in)
{
    (void)module;
    return sl_shape_count(in) * (int64_t)sizeof(int32_t);
}

#define EMBEDDING_FUNCTIONS                                                                        \
    .forward = embedding_forward, .backward = embedding_backward,                                  \
    .backward_input = embedding_backward_input, .backward_weight = embedding_backward_weight,      \
    .output_shape = embedding_output_shape, .widths = embedding_widths,                            \
    .saved_bytes = embedding_saved_bytes, .deferred_bytes = embedding_deferred_bytes,              \
    .can_continue = sli_always_continues

static const sl_module_ops encoder_ops = {.type = "Encoder", EMBEDDING_FUNCTIONS};

static const sl_module_ops table_alone_ops = {.type = "Embedding", EMBEDDING_FUNCTIONS};

/* They give the parameters their PyTorch names; the Encoder runs them. */
static const sl_module_ops table_ops = {.type = "Embedding"};
static const sl_module_ops position_ops = {.type = "PositionalEncoding"};

/* Row t: sin(t w_0), cos(t w_0), sin(t w_1), … with w_i = 10000^(-2 i / D). */
static void fill_positions(const sl_module *module, float *values, int64_t count)
{
    const sl_parameter *pe = module->parameters[0];
    int64_t width = sl_parameter_shape(pe)->size[2];
    for (int64_t column = 0; column < width; column += 2) {
        double frequency = pow(10000.0, -(double)column / (double)width);
        for (int64_t i = column; i < count; i += width) {
            int64_t position = i / width;
            double angle = (double)position * frequency;
            values[i] = (float)sin(angle);
            values[i + 1] = (float)cos(angle);
        }
    }
}

/* Adds a child under `name` that holds one parameter. */
static sl_status add_holder(sl_module *module, const sl_module_ops *ops, const char *name,
                            const sl_parameter_spec *spec, sl_parameter **out)
{
    sl_module *child;
    SL_TRY(sl_module_create(ops, NULL, &child));
    sl_status status = sl_module_add_parameter(child, spec, out);
    if (status != SL_OK) {
        sl_module_destroy(&child);
        return status;
    }
    return sli_module_add_child(module, name, child);
}

static sl_parameter_spec weight_spec(const sl_embedding_options *options)
{
    return (sl_parameter_spec){
        .name = "weight",
        .shape = sl_shape_2d(options->ntokens, options->width),
        .low = -WEIGHT_BOUND,
        .high = WEIGHT_BOUND,
    };
}

static sl_status declare_parameters(sl_module *module, embedding *self)
{
    const sl_embedding_options *options = &self->options;
    sl_parameter_spec pe = {
        .name = "pe",
        .kind = options->position_is_parameter ? SL_PARAMETER_FROZEN : SL_PARAMETER_BUFFER,
        .shape = sl_shape_3d(options->max_len, 1, options->width),
        .fill = fill_positions,
    };
    sl_parameter_spec weight = weight_spec(options);
    SL_TRY(add_holder(module, &position_ops, "pos_encoder", &pe, &self->pe));
    SL_TRY(add_holder(module, &table_ops, "encoder", &weight, &self->weight));
    self->weight->is_table = true;
    return SL_OK;
}

static sl_status declare_learned(sl_module *module, embedding *self)
{
    const sl_embedding_options *options = &self->options;
    sl_parameter_spec tokens = {
        .name = "weight",
        .shape = sl_shape_2d(options->ntokens, options->width),
        .deviation = GPT2_DEVIATION,
    };
    sl_parameter_spec positions = {
        .name = "weight",
        .shape = sl_shape_2d(options->max_len, options->width),
        .deviation = GPT2_DEVIATION,
    };
    SL_TRY(add_holder(module, &table_ops, "wte", &tokens, &self->weight));
    self->weight->is_table = true;
    return add_holder(module, &table_ops, "wpe", &positions, &self->pe);
}

static sl_status check_tokens(const char *who, int64_t ntokens)
{
    if (ntokens >= 1 && ntokens <= INT32_MAX)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s: ntokens must be 1 to %" PRId32 ", got %" PRId64, who,
                    INT32_MAX, ntokens);
}

static sl_status check_options(const sl_embedding_options *options)
{
    SL_TRY(check_tokens("sl_embedding_create", options->ntokens));
    if (options->learned_positions && options->width < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_embedding_create: the width must be at least 1, got %" PRId64,
                        options->width);
    if (!options->learned_positions && (options->width < 2 || options->width % 2))
        return sl_error(SL_ERR_INVALID,
                        "sl_embedding_create: the width must be even (sines and cosines of the "
                        "position take turns), got %" PRId64,
                        options->width);
    if (options->max_len < 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_embedding_create: max_len must not be negative, got %" PRId64,
                        options->max_len);
    return sli_check_dropout("sl_embedding_create", options->dropout);
}

static sl_status create(const sl_module_ops *ops, const sl_embedding_options *options,
                        sl_module **out, embedding **state)
{
    *out = NULL;
    *state = calloc(1, sizeof **state);
    if (!*state)
        return sli_no_memory(NULL, "an embedding");
    (*state)->options = *options;
    return sl_module_create(ops, *state, out); /* takes the state */
}

sl_status sl_embedding_create(const sl_embedding_options *options, sl_module **out)
{
    embedding *self;
    *out = NULL;
    SL_TRY(check_options(options));
    SL_TRY(create(&encoder_ops, options, out, &self));
    if (self->options.max_len == 0)
        self->options.max_len = SL_MAX_POSITIONS;
    sl_status status =
        options->learned_positions ? declare_learned(*out, self) : declare_parameters(*out, self);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}

sl_status sl_token_embedding_create(int64_t ntokens, int64_t width, sl_module **out)
{
    return sli_token_embedding_create(ntokens, width, 0.0f, out);
}

sl_status sli_token_embedding_create(int64_t ntokens, int64_t width, float deviation,
                                     sl_module **out)
{
    embedding *self;
    const sl_embedding_options options = {.ntokens = ntokens, .width = width};
    *out = NULL;
    SL_TRY(check_tokens("sl_token_embedding_create", ntokens));
    if (width < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_token_embedding_create: the width must be at least 1, got %" PRId64,
                        width);
    SL_TRY(create(&table_alone_ops, &options, out, &self));
    sl_parameter_spec weight = weight_spec(&options);
    if (deviation > 0) {
        weight.low = 0;
        weight.deviation = deviation;
    }
    sl_status status;
    SL_TRY_OR_FAIL(sl_module_add_parameter(*out, &weight, &self->weight));
    self->weight->is_table = true;
    return SL_OK;
fail:
    sl_module_destroy(out);
    return status;
}
