/* A model built again from its weights file, for the commands that use one. */
#ifndef SLI_CLI_SAVED_MODEL_H
#define SLI_CLI_SAVED_MODEL_H

#include "sluice/train.h"

typedef struct cli_saved_model {
    sl_model_options options;
    sl_vocab *vocab; /* from the file beside the weights */
    sl_device_list *devices;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe; /* for inference, one stage a device */
} cli_saved_model;

/* `devices` NULL: cpu:0. Cleared by cli_saved_model_clear, also after an error. */
sl_status cli_saved_model_load(const char *weights, const char *devices, cli_saved_model *out);
void cli_saved_model_clear(cli_saved_model *model);

#endif
