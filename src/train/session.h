/* What a replica is made of: model, loss and pipe, put together from options. */
#ifndef SLI_TRAIN_SESSION_H
#define SLI_TRAIN_SESSION_H

#include "sluice/train.h"

typedef struct sli_session {
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
} sli_session;

/* `options` are checked, and options->model.ntokens is known. `devices` [stages] are borrowed.
 * `values` = false leaves the parameters undefined (another replica's will come); else they are
 * random, or those of options->init. Cleared by sli_session_clear, also after an error. */
sl_status sli_session_create(const sl_train_options *options, sl_device *const *devices,
                             bool values, sli_session *out);
void sli_session_clear(sli_session *session);

/* Modules per stage by the options' rule, and the number of stages. */
sl_status sli_session_balance(const sl_train_options *options, const sl_module *model, int *balance,
                              int *stages);

#endif
