/* Help and documentation, printed from the commands' rows. */
#define _GNU_SOURCE /* asprintf */
#include "cli/cli.h"

#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char trains[] = "Trains Transformer language models on many devices at once.";
static const char statuses[] =
    "The exit status is 0, 1 after an error, or 2 for an invalid command line.";

/* What help and documentation say of an option. */
typedef struct entry {
    const cli_command *command;
    const sl_option *row;
    const char *group;
    bool begins_group; /* a heading comes before it */
    char range[128];   /* "1 to 4096", "from 1", "never, always"; "" for nothing */
    char *value;       /* the default; NULL: none */
} entry;

static const char *group_of(const sl_option *row)
{
    return row->group ? row->group : "Options";
}

static void write_range(const sl_option *row, char *text, size_t bytes)
{
    size_t used = 0;
    *text = '\0';
    if (row->highest != 0)
        snprintf(text, bytes, "%" PRId64 " to %" PRId64, row->lowest, row->highest);
    else if (row->lowest != 0)
        snprintf(text, bytes, "from %" PRId64, row->lowest);
    else if (row->less_than != 0)
        snprintf(text, bytes, "below %g", row->less_than);
    for (int i = 0; row->choices && row->choices[i] && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", row->choices[i]);
}

/* Calls `print` for a command's rows by groups, these in the order in which they first come. */
static void print_rows(const cli_command *command, void (*print)(const entry *at, void *context),
                       void *context)
{
    const sl_option *first, *row;
    void *settings = cli_allocate(1, command->settings_bytes);
    cli_settings_default(command, settings);
    for (int i = 0; (first = cli_row(command, i)); i++) {
        const char *group = group_of(first);
        for (int k = 0; (row = cli_row(command, k)); k++) {
            if (strcmp(group_of(row), group) != 0)
                continue;
            if (k < i) /* the group has been printed */
                break;
            entry at = {command, row, group, .begins_group = k == i};
            write_range(row, at.range, sizeof at.range);
            if (row->type != SL_OPTION_FLAG)
                (void)sl_option_text(row, settings, &at.value);
            print(&at, context);
            free(at.value);
        }
    }
    free(settings);
}

/* ---- --help ------------------------------------------------------------------------------- */

/* The help with "(1 to 4096; default 10)", what there is of it: malloc'ed. */
static char *help_text(const entry *at)
{
    char *help;
    bool has_range = *at->range, has_any = has_range || at->value;
    int length = asprintf(&help, "%s%s%s%s%s%s%s", at->row->help, has_any ? " (" : "", at->range,
                          has_range && at->value ? "; " : "", at->value ? "default " : "",
                          at->value ? at->value : "", has_any ? ")" : "");
    return length < 0 ? NULL : help;
}

/* argp's options, each group of which it sorts. */
typedef struct argp_rows {
    struct argp_option *next; /* to fill */
    int group, key;
} argp_rows;

/* A heading is an option without a name. */
static void add_argp_row(const entry *at, void *context)
{
    argp_rows *to = context;
    const sl_option *row = at->row;
    char *heading;
    to->group += at->begins_group;
    if (at->begins_group && row->group && asprintf(&heading, "%s:", row->group) > 0)
        *to->next++ = (struct argp_option){.doc = heading, .group = to->group};
    *to->next++ =
        (struct argp_option){row->name, to->key++, row->value, 0, help_text(at), to->group};
    if (row->letter)
        *to->next++ = (struct argp_option){.key = row->letter, .flags = OPTION_ALIAS};
}

static void print_program_help(void)
{
    printf("Usage: sluice COMMAND [OPTION...]\n%s\n\n", trains);
    for (const cli_command *const *at = cli_commands; *at; at++)
        printf("  %-10s %s\n", (*at)->name, (*at)->summary);
    printf("\n`sluice COMMAND --help` shows a command's options.\n%s\n\nEnvironment variables:\n",
           statuses);
    sl_environment_print_help(stdout);
}

void cli_help_print(const cli_command *command)
{
    char name[32];
    size_t count = 0;
    if (!command) {
        print_program_help();
        return;
    }
    while (cli_row(command, (int)count))
        count++;
    struct argp_option *options = cli_allocate(3 * count + 1, sizeof *options);
    print_rows(command, add_argp_row, &(argp_rows){.next = options, .key = 0x100});
    snprintf(name, sizeof name, "sluice %s", command->name);
    argp_help(&(struct argp){.options = options,
                             .args_doc = command->arguments,
                             .doc = command->doc},
              stdout, ARGP_HELP_STD_HELP, name);
    for (struct argp_option *at = options; at->name || at->key || at->doc; at++)
        free((char *)at->doc);
    free(options);
}

/* ---- Markdown ----------------------------------------------------------------------------- */

/* In a table's cell: | ends it. */
static void print_cell(const char *text)
{
    for (; *text; text++)
        printf(*text == '|' ? "\\|" : "%c", *text);
}

static void print_markdown_row(const entry *at, void *context)
{
    const sl_option *row = at->row;
    bool affects = at->command == &cmd_train; /* the table says which ones affect a run's numbers */
    (void)context;
    if (at->begins_group)
        printf("\n%s\n\n| option | | range | default |%s\n|---|---|---|---|%s\n", at->group,
               affects ? " affects numbers |" : "", affects ? "---|" : "");
    printf("| `--%s%s%s`", row->name, row->value ? " " : "", row->value ? row->value : "");
    if (row->letter)
        printf(", `-%c`", row->letter);
    printf(" | ");
    print_cell(row->help);
    printf(at->value ? " | %s | `%s` |" : " | %s | %s|", at->range, at->value ? at->value : "");
    printf("%s\n", !affects ? "" : row->affects_numbers ? " yes |" : " |");
}

void cli_help_print_markdown(void)
{
    printf("# Options\n\n`sluice help --markdown` prints this page. A run that resumes must have "
           "the same text, and the same\nvalues of the options that affect numbers, as far as its "
           "optimizer and its schedule use them\n(`--epochs` only with the cosine schedule).\n");
    for (const cli_command *const *at = cli_commands; *at; at++) {
        printf("\n## sluice %s\n", (*at)->name);
        print_rows(*at, print_markdown_row, NULL);
    }
}

/* ---- Manual pages ------------------------------------------------------------------------- */

/* roff takes \ and - anywhere, and . and ' at a line's beginning, for its own. */
static void print_roff(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (i == 0 && (text[i] == '.' || text[i] == '\''))
            fputs("\\&", stdout);
        if (text[i] == '\\')
            fputs("\\e", stdout);
        else if (text[i] == '-')
            fputs("\\-", stdout);
        else
            putchar(text[i]);
    }
}

static void print_roff_line(const char *before, const char *text, const char *after)
{
    fputs(before, stdout);
    print_roff(text, strlen(text));
    puts(after);
}

static void print_title(const char *name, const char *summary)
{
    printf(".TH \"%s\" 1 \"\" \"sluice %s\" \"sluice\"\n.SH NAME\n%s \\- %s\n", name, sl_version(),
           name, summary);
}

static void print_synopsis(const cli_command *command)
{
    const char *at = command->arguments ? command->arguments : "";
    printf(".SH SYNOPSIS\n");
    for (;;) {
        size_t length = strcspn(at, "\n");
        printf(".B sluice %s\n[OPTION...] ", command->name);
        print_roff(at, length);
        putchar('\n');
        if (!at[length])
            return;
        at += length + 1;
        printf(".br\n");
    }
}

static void print_man_row(const entry *at, void *context)
{
    const sl_option *row = at->row;
    (void)context;
    if (at->begins_group)
        printf(".SH \"%s\"\n", at->group);
    printf(".TP\n.BI \"");
    if (row->letter)
        printf("\\-%c, ", row->letter);
    print_roff_line("\\-\\-", row->name, row->value ? "=\" \"\\c" : "\"");
    if (row->value)
        print_roff_line(".I ", row->value, "");
    print_roff_line("", row->help, "");
    if (at->value)
        print_roff_line("(default ", at->value, ")");
}

static void print_program_page(void)
{
    print_title("sluice", "train Transformer language models on many devices at once");
    printf(".SH SYNOPSIS\n.B sluice\nCOMMAND [OPTION...]\n.SH COMMANDS\n");
    for (const cli_command *const *at = cli_commands; *at; at++)
        printf(".TP\n.BR sluice\\-%s (1)\n%s\n", (*at)->name, (*at)->summary);
    printf(".SH EXIT STATUS\n%s\n.SH ENVIRONMENT\n.nf\n", statuses);
    sl_environment_print_help(stdout);
    printf(".fi\n");
}

void cli_help_print_man(const cli_command *command)
{
    char name[64];
    if (!command) {
        print_program_page();
        return;
    }
    snprintf(name, sizeof name, "sluice-%s", command->name);
    print_title(name, command->summary);
    print_synopsis(command);
    size_t first = strcspn(command->doc, "\v");
    printf(".SH DESCRIPTION\n");
    print_roff(command->doc, first);
    putchar('\n');
    if (command->doc[first])
        print_roff_line(".PP\n", command->doc + first + 1, "");
    print_rows(command, print_man_row, NULL);
    printf(".SH SEE ALSO\n.BR sluice (1)\n");
}

/* ---- Completion --------------------------------------------------------------------------- */

static void print_case(const cli_command *command)
{
    const sl_option *row;
    printf("    %s)\n        case $previous in\n", command->name);
    for (int i = 0; (row = cli_row(command, i)); i++) {
        if (!row->choices)
            continue;
        printf("        --%s) words=\"", row->name);
        for (int k = 0; row->choices[k]; k++)
            printf("%s%s", k ? " " : "", row->choices[k]);
        printf("\" ;;\n");
    }
    printf("        *) words=\"--help");
    for (int i = 0; (row = cli_row(command, i)); i++)
        printf(" --%s", row->name);
    printf("\" ;;\n        esac ;;\n");
}

void cli_help_print_completion(void)
{
    printf(
        "# bash completion for sluice\n_sluice() {\n"
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words\n"
        "    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" = 1 ]; then\n        words=\"--help --version");
    for (const cli_command *const *at = cli_commands; *at; at++)
        printf(" %s", (*at)->name);
    printf("\"\n    else\n    case ${COMP_WORDS[1]} in\n");
    for (const cli_command *const *at = cli_commands; *at; at++)
        print_case(*at);
    printf("    esac\n    fi\n"
           "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
           "}\ncomplete -o default -F _sluice sluice\n");
}
