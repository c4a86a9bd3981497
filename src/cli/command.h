/* A command of the program: its options are rows (sluice/option.h), from which its command line is
 * read, and its help and documentation are printed. */
#ifndef SLI_CLI_COMMAND_H
#define SLI_CLI_COMMAND_H

#include "sluice/option.h"

#include <stdio.h>

typedef struct cli_line cli_line;

typedef struct cli_command {
    const char *name;      /* "train" */
    const char *summary;   /* for the list of commands */
    const char *arguments; /* what may follow the options, "DIR", one form a line; NULL: nothing */
    const char *doc;       /* paragraphs of the help; those after \v come after the options */
    /* Rows of sluice/train.h that it takes, up to two arrays, of which only those that are named
     * (NULL: all); its settings then begin with a sl_train_options, whose fields they set. */
    const sl_option *run_options[2];
    const char *const *run_names;
    const sl_option *options; /* rows of its own, the last without a name; NULL: none */
    bool program; /* the first word that is not an option begins another program's command line */
    size_t settings_bytes;
    /* (optional) Sets its own defaults in settings that have zeros and those of the run. */
    void (*set_defaults)(void *settings);
    int (*run)(cli_line *line); /* gives the program's exit status */
} cli_command;

extern const cli_command cmd_train, cmd_eval, cmd_generate, cmd_model, cmd_schedule, cmd_data,
    cmd_checkpoint, cmd_launch;

/* What cmd_launch has mpirun start: no command for users. argv[0] is its name. */
int cmd_launch_rank(int argc, char **argv);

/* calloc that ends the program where there is no memory. */
void *cli_allocate(size_t count, size_t bytes);

/* Row `number` of a command; NULL after the last. */
const sl_option *cli_row(const cli_command *command, int number);
int cli_row_count(const cli_command *command);

/* The row of that name, or NULL. */
const sl_option *cli_find_row(const cli_command *command, const char *name);

/* ---- Command lines ------------------------------------------------------------------------ */

/* An option with its text, NULL for a flag without one. */
typedef struct cli_given {
    const sl_option *option;
    const char *text;
} cli_given;

/* A command line that was read: options in their order, and other words. Texts are borrowed. */
struct cli_line {
    const cli_command *command;
    int argc;
    char **argv;      /* "sluice train", … */
    cli_given *given; /* [given_count], the first config_count from a file */
    int given_count, config_count;
    char **words; /* [word_count], then NULL */
    int word_count;
    struct json_t *config; /* the file's content, which owns the texts from it; NULL: none */
};

/* Reads a command's line, argv[0] being the command's name. Ends the program for --help, and for a
 * line that is not valid. */
void cli_line_read(const cli_command *command, int argc, char **argv, cli_line *out);
void cli_line_clear(cli_line *line);

/* Prints the line as a shell would read it, without the option `omitted` and its value. */
void cli_line_print(FILE *to, const cli_line *line, const char *omitted);

/* The text of the option's last use; "" for a flag; NULL where it was not given. */
const char *cli_line_value(const cli_line *line, const char *name);

/* ---- Settings ----------------------------------------------------------------------------- */

void cli_settings_default(const cli_command *command, void *settings);

/* Sets the command's defaults, then the options of the file that --config names, then those of the
 * line. In both, --preset comes first wherever it stands. Ends the program for a value that an
 * option does not take, and for an option without the one that it needs. */
void cli_settings_read(cli_line *line, void *settings);

/* Prints every option that has a value as one JSON object, which --config reads. */
void cli_settings_print(const cli_command *command, const void *settings);

/* ---- Help --------------------------------------------------------------------------------- */

/* All commands, then NULL. */
extern const cli_command *const cli_commands[];

void cli_help_print(const cli_command *command);     /* as --help; NULL: the program's */
void cli_help_print_markdown(void);                  /* docs/options.md */
void cli_help_print_man(const cli_command *command); /* sluice-train(1); NULL: sluice(1) */
void cli_help_print_completion(void);                /* a script for bash */

#endif
