#ifndef SLI_NN_DECODER_H
#define SLI_NN_DECODER_H

#include "nn/linear.h"

/* The linear layer that a Linear or a Decoder module is; NULL for any other. */
const sli_linear *sli_linear_within(const sl_module *module);

#endif
