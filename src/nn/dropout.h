#ifndef SLI_NN_DROPOUT_H
#define SLI_NN_DROPOUT_H

#include "sluice/status.h"

/* SL_ERR_INVALID unless 0 <= p < 1; `who` begins the text. */
sl_status sli_check_dropout(const char *who, float p);

#endif
