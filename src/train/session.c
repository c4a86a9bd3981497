#include "train/session.h"

#include "train/checkpoint/weights.h"
#include "train/layout.h"

#include <string.h>

sl_status sli_session_balance(const sl_train_options *options, const sl_module *model, int *balance,
                              int *stages)
{
    *stages = sli_layout_stages(options);
    if (options->balance_kind != SL_BALANCE_EXPLICIT)
        return sl_partition(model, *stages,
                            options->balance_kind == SL_BALANCE_LAYERS ? SL_PARTITION_LAYERS
                                                                       : SL_PARTITION_PARAMETERS,
                            balance);
    memcpy(balance, options->balance, (size_t)*stages * sizeof *balance);
    return SL_OK;
}

static sl_status create_pipe(const sl_train_options *options, sl_device *const *devices,
                             bool random_values, sli_session *session)
{
    int balance[SL_MAX_STAGES], stages;
    SL_TRY(sl_transformer_lm_create(&options->model, &session->model));
    SL_TRY(sl_cross_entropy_create(&session->loss));
    SL_TRY(sli_session_balance(options, session->model, balance, &stages));
    return sl_pipe_create(&(sl_pipe_options){.model = session->model,
                                             .loss = session->loss,
                                             .stages = stages,
                                             .devices = devices,
                                             .balance = balance,
                                             .chunks = options->chunks,
                                             .recompute = options->recompute,
                                             .schedule = options->schedule,
                                             .seed = options->seed,
                                             .no_init = !random_values},
                          &session->pipe);
}

sl_status sli_session_create(const sl_train_options *options, sl_device *const *devices,
                             bool values, sli_session *out)
{
    *out = (sli_session){0};
    const char *init = values ? options->init : NULL;
    sl_status status = init ? sli_weights_check_model(init, &options->model) : SL_OK;
    if (status == SL_OK)
        status = create_pipe(options, devices, values && !init, out);
    if (status == SL_OK && init)
        status = sl_weights_load(out->pipe, init);
    if (status != SL_OK)
        sli_session_clear(out);
    return status;
}

void sli_session_clear(sli_session *session)
{
    sl_pipe_destroy(&session->pipe);
    sl_loss_destroy(&session->loss);
    sl_module_destroy(&session->model);
}
