/* One layer, forward and backward, for test_layers.py:
 *
 *   layer_driver KIND precision=f32|bf16 key=value... < records > records
 *
 * Reads `in`, a parameter under each name that it should not initialize itself, and `grad_out` (or
 * `targets`, for a layer that cross entropy takes over). Writes `out` (or `row_losses`), `grad_in`,
 * and `grad.NAME` of each trained parameter or `value.NAME` of each other. Where the layer can run
 * on a pass with a cache, it also writes `continued`: the outputs of one position after the other.
 *
 * KIND u_net is the model of examples/u_net.h under the mean squared error, in a pipe: reads `in`
 * and `targets`, and writes `out`, `loss` and the gradients. */
#include "driver.h"
#include "nn/loss.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include "../../examples/u_net.h"

#include "sluice/layers.h"
#include "sluice/loss.h"
#include "sluice/pipe.h"

#include <stdlib.h>
#include <string.h>

/* ---- Options ---------------------------------------------------------------------------- */

static sl_mask mask_option(char **arguments)
{
    return strcmp(option_text(arguments, "mask"), "causal") ? SL_MASK_NONE : SL_MASK_CAUSAL;
}

static sl_activation activation_option(char **arguments)
{
    const char *name = option_text(arguments, "activation");
    int i = 0;
    while (strcmp(sl_activation_names[i], name) != 0)
        i++;
    return (sl_activation)i;
}

static sl_precision precision_option(char **arguments)
{
    return option_is(arguments, "precision", "bf16") ? SL_PRECISION_BF16 : SL_PRECISION_F32;
}

static sl_status create_encoder_layer(char **o, sl_module **out)
{
    sl_encoder_layer_options options = {.width = option_count(o, "width"),
                                        .heads = option_count(o, "heads"),
                                        .feed_forward = option_count(o, "feed_forward"),
                                        .mask = mask_option(o),
                                        .activation = activation_option(o),
                                        .pre_norm = option_count(o, "pre_norm")};
    return sl_encoder_layer_create(&options, out);
}

static sl_status create_embedding(char **o, bool learned_positions, sl_module **out)
{
    sl_embedding_options options = {.ntokens = option_count(o, "ntokens"),
                                    .width = option_count(o, "width"),
                                    .max_len = option_count(o, "max_len"),
                                    .learned_positions = learned_positions};
    return sl_embedding_create(&options, out);
}

static sl_status create(const char *kind, char **o, sl_module **out)
{
    if (strcmp(kind, "linear") == 0)
        return sl_linear_create(option_count(o, "in"), option_count(o, "out"),
                                option_count(o, "no_bias"), out);
    if (strcmp(kind, "layer_norm") == 0)
        return sl_layer_norm_create(option_count(o, "width"), 0.0f, out);
    if (strcmp(kind, "rms_norm") == 0)
        return sl_rms_norm_create(option_count(o, "width"), (float)option_number(o, "eps"), out);
    if (strcmp(kind, "activation") == 0)
        return sl_activation_create(activation_option(o), out);
    if (strcmp(kind, "softmax") == 0)
        return sl_softmax_create(out);
    if (strcmp(kind, "swiglu") == 0)
        return sl_swiglu_create(option_count(o, "width"), option_count(o, "hidden"), out);
    if (strcmp(kind, "self_attention") == 0)
        return sl_self_attention_create(option_count(o, "width"), option_count(o, "heads"), 0.0f,
                                        mask_option(o), out);
    if (strcmp(kind, "encoder_layer") == 0)
        return create_encoder_layer(o, out);
    if (strcmp(kind, "encoder") == 0)
        return create_embedding(o, false, out);
    if (strcmp(kind, "learned_positions") == 0)
        return create_embedding(o, true, out);
    if (strcmp(kind, "decoder") == 0)
        return sl_decoder_create(option_count(o, "width"), option_count(o, "ntokens"), out);
    return sl_error(SL_ERR_INVALID, "unknown layer %s", kind);
}

/* ---- Running ---------------------------------------------------------------------------- */

static void load_parameters(sl_parameter_set *set, const records *given)
{
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(set, i);
        const record *values = records_find(given, sl_parameter_name(parameter));
        if (!values)
            continue;
        if (!sl_shape_equal(&values->shape, sl_parameter_shape(parameter)))
            records_check(sl_error(SL_ERR_INVALID, "%s has another shape", values->name));
        records_check(sl_tensor_write(sl_parameter_value(parameter), values->data));
    }
}

static void write_parameters(sl_parameter_set *set)
{
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(set, i);
        bool trained = sl_parameter_get_kind(parameter) == SL_PARAMETER_TRAINED;
        char name[RECORD_NAME_BYTES];
        snprintf(name, sizeof name, "%s.%s", trained ? "grad" : "value",
                 sl_parameter_name(parameter));
        sl_tensor *tensor = sl_parameter_value(parameter);
        if (trained)
            records_check(sl_parameter_grad(parameter, &tensor));
        records_write_tensor(stdout, name, tensor);
    }
}

/* Writes as `continued` what the layer gives for each position [N, T, …] by itself, with a cache.
 */
static void run_positions(sl_module *module, sl_device *device, sl_precision precision,
                          const sl_tensor *in, const sl_tensor *out)
{
    int64_t rows = sl_tensor_shape(in)->size[0], time = sl_tensor_shape(in)->size[1];
    int64_t each = sl_tensor_count(in) / rows / time, wide = sl_tensor_count(out) / rows / time;
    sl_shape shape = *sl_tensor_shape(in);
    sl_tensor *one, *to;
    sl_cache **caches = malloc((size_t)rows * sizeof(sl_cache *));
    sl_pass *pass;
    float *all = malloc(sli_tensor_bytes(out));
    shape.size[1] = 1;
    for (int64_t n = 0; n < rows; n++)
        records_check(sl_cache_create(module, time, &caches[n]));
    for (int64_t t = 0; t < time; t++) {
        sl_pass_options options = {.device = device, .precision = precision, .caches = caches};
        records_check(
            sl_tensor_create(device, SL_MEMORY_WORKSPACE, sl_tensor_dtype(in), &shape, &one));
        for (int64_t n = 0; n < rows; n++) /* f32 and i32 have 4 bytes */
            memcpy((char *)sl_tensor_data(one) + 4 * n * each,
                   (const char *)sl_tensor_data(in) + 4 * (n * time + t) * each, (size_t)each * 4);
        records_check(sl_pass_create(&options, &pass));
        records_check(sl_module_forward(module, pass, one, &to));
        for (int64_t n = 0; n < rows; n++) {
            records_check(sli_cache_advance(caches[n], 1));
            memcpy(all + (n * time + t) * wide, sl_tensor_f32(to) + n * wide,
                   (size_t)wide * sizeof *all);
        }
        sl_pass_destroy(&pass);
        sl_tensor_destroy(&one);
        sl_tensor_destroy(&to);
    }
    records_write(stdout, "continued", SL_F32, sl_tensor_shape(out), all);
    for (int64_t n = 0; n < rows; n++)
        sl_cache_destroy(&caches[n]);
    free(caches);
    free(all);
}

static void run_layer(sl_module *module, sl_device *device, sl_precision precision,
                      const records *given)
{
    sl_pass *pass;
    sl_pass_options options = {.device = device, .keep = true, .precision = precision};
    sl_tensor *in = records_tensor(given, "in", device), *out, *grad_in = NULL;
    sl_tensor *grad_out = records_tensor(given, "grad_out", device);
    bool ids = sl_tensor_dtype(in) == SL_I32;
    records_check(sl_pass_create(&options, &pass));
    records_check(sl_module_forward(module, pass, in, &out));
    records_write_tensor(stdout, "out", out);
    if (sl_module_can_continue(module) && sl_tensor_shape(in)->dims == (ids ? 2 : 3))
        run_positions(module, device, precision, in, out);
    records_check(sl_module_backward(module, pass, grad_out, ids ? NULL : &grad_in));
    if (grad_in)
        records_write_tensor(stdout, "grad_in", grad_in);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&out);
    sl_tensor_destroy(&grad_out);
    sl_tensor_destroy(&grad_in);
    sl_pass_destroy(&pass);
}

static void run_loss(sl_module *module, sl_device *device, const records *given)
{
    sl_loss *loss;
    sl_tensor *in = records_tensor(given, "in", device), *grad_in;
    sl_tensor *targets = records_tensor(given, "targets", device);
    records_check(sl_cross_entropy_create(&loss));
    sl_shape rows = sl_shape_1d(sli_loss_rows(loss, targets));
    int64_t terms;
    records_check(sl_loss_terms(loss, targets, &terms));
    double *row_losses = malloc((size_t)rows.size[0] * sizeof *row_losses);
    sl_loss_call call = {.device = device,
                         .last = module,
                         .in = in,
                         .targets = targets,
                         .scale = 1.0 / (double)terms,
                         .row_losses = row_losses,
                         .grad_in = &grad_in};
    records_check(sl_loss_apply(loss, &call));
    records_write(stdout, "row_losses", SL_F64, &rows, row_losses);
    records_write_tensor(stdout, "grad_in", grad_in);
    free(row_losses);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&targets);
    sl_tensor_destroy(&grad_in);
    sl_loss_destroy(&loss);
}

static void train_u_net(sl_pipe *pipe, const records *given)
{
    sl_tensor *out, *in = records_tensor(given, "in", sl_pipe_device(pipe, 0));
    sl_tensor *targets = records_tensor(given, "targets", sl_pipe_device(pipe, 0));
    const sl_pipe_batch batch = {.input = in, .targets = targets};
    double loss;
    for (int s = 0; s < sl_pipe_stages(pipe); s++)
        load_parameters(sl_pipe_parameters(pipe, s), given);
    records_check(sl_pipe_forward(pipe, &batch, &out));
    records_check(sl_pipe_train(pipe, &batch, &loss));
    records_write_tensor(stdout, "out", out);
    records_write(stdout, "loss", SL_F64, &(sl_shape){0}, &loss);
    for (int s = 0; s < sl_pipe_stages(pipe); s++)
        write_parameters(sl_pipe_parameters(pipe, s));
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&targets);
    sl_tensor_destroy(&out);
}

static void run_u_net(char **o, const records *given)
{
    enum { MOST_STAGES = 13 };
    sl_device *devices[MOST_STAGES] = {NULL};
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    int stages = (int)option_count(o, "stages");
    for (int s = 0; s < stages && s < MOST_STAGES; s++)
        records_check(sl_device_create_cpu(1, &devices[s]));
    records_check(u_net_create(option_count(o, "width"), &model));
    records_check(sl_mse_loss_create(&loss));
    records_check(sl_pipe_create(&(sl_pipe_options){.model = model,
                                                    .loss = loss,
                                                    .stages = stages,
                                                    .devices = devices,
                                                    .chunks = (int)option_count(o, "chunks"),
                                                    .precision = precision_option(o),
                                                    .schedule = option_text(o, "schedule")},
                                 &pipe));
    train_u_net(pipe, given);
    sl_pipe_destroy(&pipe);
    sl_loss_destroy(&loss);
    sl_module_destroy(&model);
    for (int s = 0; s < MOST_STAGES; s++)
        sl_device_destroy(&devices[s]);
}

int main(int argc, char **argv)
{
    static records given;
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
    if (argc < 2)
        records_check(sl_error(SL_ERR_INVALID, "usage: layer_driver KIND key=value..."));
    records_read(stdin, &given);
    if (strcmp(argv[1], "u_net") == 0) {
        run_u_net(argv + 2, &given);
        records_free(&given);
        return 0;
    }
    records_check(sl_device_create_cpu(2, &device));
    records_check(create(argv[1], argv + 2, &module));
    sl_parameter_set_options options = {.device = device, .precision = precision_option(argv + 2)};
    records_check(sl_parameter_set_create(module, 0, 0, &options, &set));
    load_parameters(set, &given);
    records_check(sli_parameter_set_convert(set));
    if (records_find(&given, "targets"))
        run_loss(module, device, &given);
    else
        run_layer(module, device, options.precision, &given);
    write_parameters(set);
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&module);
    sl_device_destroy(&device);
    records_free(&given);
    return 0;
}
