/* Beyond the public functions on options: see sluice/train.h. */
#ifndef SLI_TRAIN_OPTIONS_H
#define SLI_TRAIN_OPTIONS_H

#include "sluice/train.h"

/* The number of stages: what the options say, or as many as the balance or the devices have. */
int sli_train_options_stages(const sl_train_options *options);

#endif
