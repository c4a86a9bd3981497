/* What a run is made of: devices, model, loss and pipe, put together from options. */
#ifndef SLI_TRAIN_SESSION_H
#define SLI_TRAIN_SESSION_H

#include "sluice/train.h"

typedef struct sli_session {
    sl_device_list *devices;
    bool oversubscribed;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
} sli_session;

/* `options->model.ntokens` must be known. Loads options->init where it is given. Cleared by
 * sli_session_clear, also after an error. */
sl_status sli_session_create(const sl_train_options *options, sli_session *out);
void sli_session_clear(sli_session *session);

/* Modules per stage by the options' rule, and the number of stages. */
sl_status sli_session_balance(const sl_train_options *options, const sl_module *model, int *balance,
                              int *stages);

#endif
