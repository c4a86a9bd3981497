/* A model built again from its weights file, for the commands that use one. */
#ifndef SLI_CLI_SAVED_MODEL_H
#define SLI_CLI_SAVED_MODEL_H

#include "cli/command.h"
#include "sluice/train.h"

typedef struct cli_saved_model {
    sl_model_options options;
    sl_vocab *vocab; /* from the file beside the weights */
    sl_device_list *devices;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe; /* for inference, one stage a device */
} cli_saved_model;

/* Loads options->init on options->devices (NULL: cpu:0). `*out` is cleared after an error. */
sl_status cli_saved_model_load(const sl_train_options *options, cli_saved_model *out);
void cli_saved_model_clear(cli_saved_model *model);

/* Gives a training the sizes of the weights that it starts from, but for its dropout. Without such
 * weights, or where they say nothing of a model, as those of other programs, the options stay.
 * Errors: SL_ERR_INVALID where the command line has another size; those of opening weights. */
sl_status cli_saved_model_apply_sizes(const cli_line *line, sl_train_options *to);

/* Returns `status`; where that is SL_ERR_NOT_FOUND and `path` a run's directory instead of a
 * checkpoint, the error names the checkpoints in it. */
sl_status cli_name_checkpoints(sl_status status, const char *path);

#endif
