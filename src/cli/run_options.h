/* The options of a run, as the commands that build a model take them: data, model, pipeline,
 * training. An argp parser to be used as a child of a command's own. */
#ifndef SLI_CLI_RUN_OPTIONS_H
#define SLI_CLI_RUN_OPTIONS_H

#include "sluice/train.h"

#include <argp.h>

/* The options of a model, as bits of `given`. */
enum cli_given {
    CLI_EMSIZE,
    CLI_NHID,
    CLI_NLAYERS,
    CLI_NHEAD,
    CLI_DROPOUT,
    CLI_MASK,
    CLI_ACTIVATION,
    CLI_PRE_NORM
};

typedef struct cli_run_options {
    sl_train_options train;
    const char *preset;
    unsigned given;       /* what the command line itself says of the model */
    bool preset_replicas; /* their number was not asked for: it is the preset's or the devices' */
    bool only_preset;     /* the first of two passes: flags override a preset wherever it stands */
} cli_run_options;

extern const struct argp cli_run_argp;       /* everything */
extern const struct argp cli_structure_argp; /* model and pipeline only */

/* Parses the whole command line with `parser` in two passes, the first for the preset alone.
 * `input` is the parser's own input, `options` the part of it that the child above works on. Ends
 * the program on a usage mistake. */
void cli_run_parse(const struct argp *parser, int argc, char **argv, void *input,
                   cli_run_options *options);

#endif
