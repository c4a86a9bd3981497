/* A command of the program: its options as rows (sluice/option.h), from which its command line is
 * read, and its help and documentation are made. */
#ifndef SLI_CLI_COMMAND_H
#define SLI_CLI_COMMAND_H

#include "sluice/option.h"

#include <stdio.h>

enum { CLI_MOST_TABLES = 3 };

/* Rows, the last without a name, and where in the command's settings the struct begins whose fields
 * they set. */
typedef struct cli_table {
    const sl_option *rows; /* NULL: no table */
    size_t offset;
} cli_table;

typedef struct cli_command_line cli_command_line;

typedef struct cli_command {
    const char *name;      /* "train" */
    const char *summary;   /* for the list of commands */
    const char *arguments; /* what may follow the options, "DIR", one form a line; NULL: nothing */
    const char *doc;       /* paragraphs of the help; those after \v come after the options */
    cli_table tables[CLI_MOST_TABLES];
    bool program; /* the first word that is no option begins another program's command line */
    size_t settings_bytes;
    void (*set_defaults)(void *settings);
    int (*run)(cli_command_line *line); /* gives the program's exit status */
} cli_command;

/* An option with its text, NULL for a flag. */
typedef struct cli_given_option {
    const sl_option *option;
    size_t offset; /* of its table's struct */
    const char *text;
} cli_given_option;

/* A command line that was read: options given, in their order, and other words. Texts are the
 * line's own. */
struct cli_command_line {
    const cli_command *command;
    int argc;
    char **argv;             /* "sluice train", … */
    cli_given_option *given; /* [given_count], the first config_count from a file */
    int given_count, config_count;
    char **words; /* [word_count], then NULL */
    int word_count;
    struct json_t *config; /* the file, whose texts options have; NULL: none */
};

/* Reads a command's line, argv[0] being its name. Ends the program for --help, and for a line that
 * makes no sense. */
void cli_read(const cli_command *command, int argc, char **argv, cli_command_line *out);
void cli_command_line_clear(cli_command_line *line);

/* Adds the options of a file, as cli_print_config writes it, before those that were given: these
 * come after them, and so override them. Ends the program for a file that makes no sense. */
void cli_add_config(cli_command_line *line, const char *path);

/* Prints every option that has a value as one JSON object. */
void cli_print_config(const cli_command *command, const void *settings);

/* The text of the option's last use; "" for a flag; NULL where it was not given. */
const char *cli_given(const cli_command_line *line, const char *name);

/* Sets the settings' defaults, and then the options given. Ends the program for a value that an
 * option does not take. */
void cli_set(const cli_command_line *line, void *settings);

/* Sets the options given with the numbers first to end - 1, and nothing else. */
void cli_set_given(const cli_command_line *line, int first, int end, void *settings);

/* Ends the program where an option was given without the one that it needs. */
void cli_check_needs(const cli_command_line *line);

/* The command's help, as for --help. */
void cli_print_help(const cli_command *command, FILE *to);

/* Row `number` of all the command's tables, and its table; NULL after the last. */
const sl_option *cli_row(const cli_command *command, int number, const cli_table **table);

/* A command's rows by groups, and each one's number in cli_row. */
typedef struct cli_listed_row {
    const sl_option *row;
    const cli_table *table;
    int number;
} cli_listed_row;

/* Gives their number; the caller frees the list. */
int cli_list_rows(const cli_command *command, cli_listed_row **out);

/* The option's default as help and documentation show it: malloc'ed, NULL for none. */
char *cli_default_text(const cli_command *command, const cli_table *table, const sl_option *option);

#endif
