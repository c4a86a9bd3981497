#include "train/session.h"

#include "train/options.h"
#include "train/weights.h"

#include <stdio.h>
#include <string.h>

sl_status sli_session_balance(const sl_train_options *options, const sl_module *model, int *balance,
                              int *stages)
{
    *stages = sli_train_options_stages(options);
    if (options->balance_kind != SL_BALANCE_EXPLICIT)
        return sl_partition(model, *stages,
                            options->balance_kind == SL_BALANCE_LAYERS ? SL_PARTITION_LAYERS
                                                                       : SL_PARTITION_PARAMETERS,
                            balance);
    memcpy(balance, options->balance, (size_t)*stages * sizeof *balance);
    return SL_OK;
}

/* "cpu:0,cpu:1,…" */
static void default_devices(int stages, char *names, size_t bytes)
{
    size_t used = 0;
    for (int s = 0; s < stages; s++)
        used += (size_t)snprintf(names + used, bytes - used, "%scpu:%d", s ? "," : "", s);
}

static sl_status create_devices(const sl_train_options *options, int stages, sli_session *session)
{
    char names[SL_MAX_STAGES * 8];
    default_devices(stages, names, sizeof names);
    SL_TRY(sl_device_list_create(options->devices ? options->devices : names, &session->devices,
                                 &session->oversubscribed));
    int count = sl_device_list_count(session->devices);
    if (count != stages)
        return sl_error(SL_ERR_INVALID,
                        "each stage needs a device of its own: %d stages, devices \"%s\"", stages,
                        options->devices);
    return SL_OK;
}

static sl_status create_pipe(const sl_train_options *options, sli_session *session)
{
    int balance[SL_MAX_STAGES], stages = sli_train_options_stages(options);
    sl_device *devices[SL_MAX_STAGES];
    SL_TRY(create_devices(options, stages, session));
    SL_TRY(sl_transformer_lm_create(&options->model, &session->model));
    SL_TRY(sl_cross_entropy_create(&session->loss));
    SL_TRY(sli_session_balance(options, session->model, balance, &stages));
    for (int s = 0; s < stages; s++)
        devices[s] = sl_device_list_get(session->devices, s);
    return sl_pipe_create(&(sl_pipe_options){.model = session->model,
                                             .loss = session->loss,
                                             .stages = stages,
                                             .devices = devices,
                                             .balance = balance,
                                             .chunks = options->chunks,
                                             .checkpoint = options->checkpoint,
                                             .schedule = options->schedule,
                                             .seed = options->seed,
                                             .no_init = options->init != NULL},
                          &session->pipe);
}

sl_status sli_session_create(const sl_train_options *options, sli_session *out)
{
    *out = (sli_session){0};
    sl_status status = sl_train_options_check(options);
    if (status == SL_OK && options->init)
        status = sli_weights_check_model(options->init, &options->model);
    if (status == SL_OK)
        status = create_pipe(options, out);
    if (status == SL_OK && options->init)
        status = sl_weights_load(out->pipe, options->init);
    if (status != SL_OK)
        sli_session_clear(out);
    return status;
}

void sli_session_clear(sli_session *session)
{
    sl_pipe_destroy(&session->pipe);
    sl_loss_destroy(&session->loss);
    sl_module_destroy(&session->model);
    sl_device_list_destroy(&session->devices);
}
