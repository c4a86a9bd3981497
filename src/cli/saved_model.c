#include "cli/saved_model.h"

#include <inttypes.h>
#include <stdlib.h>

static sl_status load_vocab(const char *weights, cli_saved_model *to)
{
    char *path;
    SL_TRY(sl_weights_vocab_path(weights, &path));
    sl_status status = sl_weights_vocab(weights, &to->vocab);
    if (status == SL_OK && !to->vocab)
        status = sl_error(SL_ERR_NOT_FOUND,
                          "%s: the vocabulary of the weights is not there; it belongs beside them",
                          path);
    else if (status == SL_OK && sl_vocab_size(to->vocab) != to->options.ntokens)
        status = sl_error(SL_ERR_INVALID, "%s has %d types, the weights in %s are for %" PRId64,
                          path, sl_vocab_size(to->vocab), weights, to->options.ntokens);
    free(path);
    return status;
}

static sl_status build_pipe(const char *device_names, cli_saved_model *to)
{
    SL_TRY(sl_device_list_create(device_names ? device_names : "cpu:0", &to->devices, NULL));
    SL_TRY(sl_transformer_lm_create(&to->options, &to->model));
    SL_TRY(sl_cross_entropy_create(&to->loss));
    sl_device *devices[SL_MAX_STAGES];
    int stages = sl_device_list_count(to->devices);
    if (stages > SL_MAX_STAGES)
        return sl_error(SL_ERR_INVALID, "there can be at most %d stages, got %d", SL_MAX_STAGES,
                        stages);
    int modules = sl_module_child_count(to->model);
    if (stages > modules)
        return sl_error(
            SL_ERR_INVALID,
            "there are more stages than modules (encoder, layers, decoder): %d devices, "
            "%d modules",
            stages, modules);
    for (int s = 0; s < stages; s++)
        devices[s] = sl_device_list_get(to->devices, s);
    return sl_pipe_create(&(sl_pipe_options){.model = to->model,
                                             .loss = to->loss,
                                             .stages = stages,
                                             .devices = devices,
                                             .no_init = true,
                                             .inference = true},
                          &to->pipe);
}

sl_status cli_saved_model_load(const char *weights, const char *devices, cli_saved_model *out)
{
    *out = (cli_saved_model){0};
    sl_status status = sl_weights_model(weights, &out->options);
    if (status == SL_OK)
        status = load_vocab(weights, out);
    if (status == SL_OK)
        status = build_pipe(devices, out);
    if (status == SL_OK)
        status = sl_weights_load(out->pipe, weights);
    if (status != SL_OK)
        cli_saved_model_clear(out);
    return status;
}

void cli_saved_model_clear(cli_saved_model *model)
{
    sl_pipe_destroy(&model->pipe);
    sl_loss_destroy(&model->loss);
    sl_module_destroy(&model->model);
    sl_device_list_destroy(&model->devices);
    sl_vocab_destroy(&model->vocab);
}
