/* The slots of a loss's table that a pipe runs. */
#ifndef SLI_NN_LOSS_H
#define SLI_NN_LOSS_H

#include "sluice/loss.h"

int64_t sli_loss_rows(const sl_loss *loss, const sl_tensor *targets);

/* backward_weight of the module that the loss has taken over; see sl_loss_call.pass. */
sl_status sli_loss_backward_weight(sl_loss *loss, sl_module *last, sl_pass *pass);
/* Is it the one of sl_cross_entropy_create? (cross_entropy.c) */
bool sli_loss_is_cross_entropy(const sl_loss *loss);
const sl_loss_ops *sli_loss_ops(const sl_loss *loss);

bool sli_loss_takes_over(const sl_loss *loss, const sl_module *last);

#endif
