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

/* The option's default: malloc'ed, NULL for none. */
static char *default_text(const cli_command *command, const sl_option *option)
{
    char *text = NULL, *settings = cli_allocate(1, command->settings_bytes);
    cli_settings_default(command, settings);
    if (option->type != SL_OPTION_FLAG)
        (void)sl_option_text(option, settings, &text);
    free(settings);
    return text;
}

static const char *group_of(const sl_option *row)
{
    return row->group ? row->group : "Options";
}

/* A command's rows by groups, these in the order in which they first come: [*count], to be freed.
 * Each row is put behind the last one of its group that has come before. */
static const sl_option **sort_rows(const cli_command *command, int *count)
{
    const sl_option *row, **list = cli_allocate((size_t)cli_row_count(command) + 1, sizeof *list);
    int filled = 0;
    for (; (row = cli_row(command, filled)); filled++) {
        int at = filled;
        while (at > 0 && strcmp(group_of(list[at - 1]), group_of(row)) != 0)
            at--;
        if (at == 0)
            at = filled;
        memmove(list + at + 1, list + at, (size_t)(filled - at) * sizeof *list);
        list[at] = row;
    }
    *count = filled;
    return list;
}

/* Whether a heading comes before row `i`. */
static bool begins_group(const sl_option *const *list, int i)
{
    return i == 0 || strcmp(group_of(list[i]), group_of(list[i - 1])) != 0;
}

/* ---- --help ------------------------------------------------------------------------------- */

/* "1 to 4096", "from 1", "gpipe, 1f1b"; "" for nothing. */
static void range_text(const sl_option *row, char *text, size_t bytes)
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

/* The help of a row, with "(1 to 4096; default 10)", what there is of it: malloc'ed. */
static char *help_text(const cli_command *command, const sl_option *row)
{
    char *help, range[128], *value = default_text(command, row);
    range_text(row, range, sizeof range);
    bool has_both = *range && value, has_any = *range || value;
    int length = asprintf(&help, "%s%s%s%s%s%s%s", row->help, has_any ? " (" : "", range,
                          has_both ? "; " : "", value ? "default " : "", value ? value : "",
                          has_any ? ")" : "");
    free(value);
    return length < 0 ? NULL : help;
}

/* argp's options, each group of which it sorts; a heading is an option without a name. */
static struct argp_option *make_options(const cli_command *command)
{
    int count, group = 0, key = 0x100;
    const sl_option **list = sort_rows(command, &count);
    struct argp_option *options = cli_allocate(3 * (size_t)count + 1, sizeof *options),
                       *at = options;
    for (int i = 0; i < count; i++) {
        const sl_option *row = list[i];
        char *heading;
        group += begins_group(list, i);
        if (begins_group(list, i) && row->group && asprintf(&heading, "%s:", row->group) > 0)
            *at++ = (struct argp_option){.doc = heading, .group = group};
        *at++ =
            (struct argp_option){row->name, key++, row->value, 0, help_text(command, row), group};
        if (row->letter)
            *at++ = (struct argp_option){.key = row->letter, .flags = OPTION_ALIAS};
    }
    free(list);
    return options;
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
    if (!command) {
        print_program_help();
        return;
    }
    struct argp_option *options = make_options(command);
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

/* `affects`: the table says which options affect a run's numbers. */
static void print_row(const cli_command *command, const sl_option *row, bool affects)
{
    char range[128], *value = default_text(command, row);
    range_text(row, range, sizeof range);
    printf("| `--%s%s%s`", row->name, row->value ? " " : "", row->value ? row->value : "");
    if (row->letter)
        printf(", `-%c`", row->letter);
    printf(" | ");
    print_cell(row->help);
    printf(value ? " | %s | `%s` |" : " | %s | %s|", range, value ? value : "");
    printf("%s\n", !affects ? "" : row->affects_numbers ? " yes |" : " |");
    free(value);
}

static void print_section(const cli_command *command)
{
    int count;
    const sl_option **list = sort_rows(command, &count);
    bool affects = command == &cmd_train;
    printf("\n## sluice %s\n", command->name);
    for (int i = 0; i < count; i++) {
        if (begins_group(list, i))
            printf("\n%s\n\n| option | | range | default |%s\n|---|---|---|---|%s\n",
                   group_of(list[i]), affects ? " affects numbers |" : "", affects ? "---|" : "");
        print_row(command, list[i], affects);
    }
    free(list);
}

void cli_help_print_markdown(void)
{
    printf("# Options\n\n`sluice help --markdown` prints this page. A run that resumes must have "
           "the same text, and the same\nvalues of the options that affect numbers, as far as its "
           "optimizer and its schedule use them\n(`--epochs` only with the cosine schedule).\n");
    for (const cli_command *const *at = cli_commands; *at; at++)
        print_section(*at);
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
    printf(".TH \"%s\" 1 \"\" \"sluice %s\" \"sluice\"\n.SH NAME\n%s \\- %s\n", name,
           SLUICE_VERSION, name, summary);
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

static void print_man_options(const cli_command *command)
{
    int count;
    const sl_option **list = sort_rows(command, &count);
    for (int i = 0; i < count; i++) {
        const sl_option *row = list[i];
        char *value = default_text(command, row);
        if (begins_group(list, i))
            printf(".SH \"%s\"\n", group_of(row));
        printf(".TP\n.BI \"");
        if (row->letter)
            printf("\\-%c, ", row->letter);
        print_roff_line("\\-\\-", row->name, row->value ? "=\" \"\\c" : "\"");
        if (row->value)
            print_roff_line(".I ", row->value, "");
        print_roff_line("", row->help, "");
        if (value)
            print_roff_line("(default ", value, ")");
        free(value);
    }
    free(list);
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
    print_man_options(command);
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
