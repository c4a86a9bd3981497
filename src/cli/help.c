#include "cli/help.h"

#include "cli/commands.h"
#include "core/knobs.h"

#include <stdlib.h>
#include <string.h>

/* ---- Markdown ----------------------------------------------------------------------------- */

/* In a table's cell: | ends it. */
static void print_cell(const char *text)
{
    for (; *text; text++)
        printf(*text == '|' ? "\\|" : "%c", *text);
}

static void print_range(const sl_option *row)
{
    if (row->highest != 0)
        printf("%lld to %lld", (long long)row->lowest, (long long)row->highest);
    else if (row->lowest != 0)
        printf("from %lld", (long long)row->lowest);
    else if (row->less_than != 0)
        printf("below %g", row->less_than);
    for (int i = 0; row->choices && row->choices[i]; i++)
        printf("%s`%s`", i ? ", " : "", row->choices[i]);
}

/* `shows_numbers`: whether the table says which options affect the run's numbers. */
static void print_row(const cli_command *command, const cli_table *table, const sl_option *row,
                      bool shows_numbers)
{
    char *value = cli_default_text(command, table, row);
    printf("| `--%s%s%s`", row->name, row->value ? " " : "", row->value ? row->value : "");
    if (row->letter)
        printf(", `-%c`", row->letter);
    printf(" | ");
    print_cell(row->help);
    printf(" | ");
    print_range(row);
    printf(value ? " | `%s` |" : " | %s|", value ? value : "");
    printf("%s\n", !shows_numbers ? "" : row->affects_numbers ? " yes |" : " |");
    free(value);
}

/* The heading over row `i`, or NULL where the one before has the same. */
static const char *new_heading(const cli_listed_row *list, int i)
{
    const char *own = list[i].row->group ? list[i].row->group : "Options";
    const char *before = i == 0 ? "" : list[i - 1].row->group ? list[i - 1].row->group : "Options";
    return strcmp(own, before) == 0 ? NULL : own;
}

static void print_section(const cli_command *command)
{
    cli_listed_row *list;
    int count = cli_list_rows(command, &list);
    bool shows_numbers = command == &cmd_train;
    printf("\n## sluice %s\n", command->name);
    for (int i = 0; i < count; i++) {
        const char *heading = new_heading(list, i);
        if (heading)
            printf("\n%s\n\n| option | | range | default |%s\n|---|---|---|---|%s\n", heading,
                   shows_numbers ? " affects numbers |" : "", shows_numbers ? "---|" : "");
        print_row(command, list[i].table, list[i].row, shows_numbers);
    }
    free(list);
}

void cli_print_markdown(const cli_command *const *commands)
{
    printf("# Options\n\nThis page is what `sluice help --markdown` prints. A run that resumes "
           "must have the "
           "same text, and the\nsame values of the options that affect numbers, as far as its "
           "optimizer and its schedule use them\n(`--epochs` with the cosine alone).\n");
    for (; *commands; commands++)
        print_section(*commands);
}

/* ---- Manual pages ------------------------------------------------------------------------- */

/* A \ and a - mean something to roff, and so does a . or ' at a line's beginning. */
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
    printf(".TH \"%s\" 1 \"\" \"sluice %s\" \"sluice\"\n.SH NAME\n", name, SLUICE_VERSION);
    printf("%s \\- %s\n", name, summary);
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
    cli_listed_row *list;
    int count = cli_list_rows(command, &list);
    for (int i = 0; i < count; i++) {
        const sl_option *row = list[i].row;
        char *value = cli_default_text(command, list[i].table, row);
        if (new_heading(list, i))
            printf(".SH \"%s\"\n", new_heading(list, i));
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

static void print_program_page(const cli_command *const *commands)
{
    print_title("sluice", "train Transformer language models on many devices at once");
    printf(".SH SYNOPSIS\n.B sluice\nCOMMAND [OPTION...]\n.SH COMMANDS\n");
    for (; *commands; commands++)
        printf(".TP\n.BR sluice\\-%s (1)\n%s\n", (*commands)->name, (*commands)->summary);
    printf(".SH EXIT STATUS\n0, 1 after an error, or 2 for a command line that makes no sense.\n"
           ".SH ENVIRONMENT\n.nf\n");
    sli_knobs_print_help(stdout);
    printf(".fi\n");
}

void cli_print_man(const cli_command *const *commands, const cli_command *command)
{
    char name[64];
    if (!command) {
        print_program_page(commands);
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
    const cli_table *table;
    const sl_option *row;
    printf("    %s)\n        case $previous in\n", command->name);
    for (int i = 0; (row = cli_row(command, i, &table)); i++) {
        if (!row->choices)
            continue;
        printf("        --%s) words=\"", row->name);
        for (int k = 0; row->choices[k]; k++)
            printf("%s%s", k ? " " : "", row->choices[k]);
        printf("\" ;;\n");
    }
    printf("        *) words=\"--help");
    for (int i = 0; (row = cli_row(command, i, &table)); i++)
        printf(" --%s", row->name);
    printf("\" ;;\n        esac ;;\n");
}

void cli_print_completion(const cli_command *const *commands)
{
    printf(
        "# bash completion for sluice\n_sluice() {\n"
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words\n"
        "    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" = 1 ]; then\n        words=\"--help --version");
    for (const cli_command *const *at = commands; *at; at++)
        printf(" %s", (*at)->name);
    printf("\"\n    else\n    case ${COMP_WORDS[1]} in\n");
    for (; *commands; commands++)
        print_case(*commands);
    printf("    esac\n    fi\n"
           "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
           "}\ncomplete -o default -F _sluice sluice\n");
}
