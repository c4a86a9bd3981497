/* Help and documentation, printed from the commands' rows. */
#include "cli/cli.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_COLUMNS = 79, HELP_COLUMN = 29 };

/* What help and documentation say of an option. */
typedef struct entry {
    const cli_command *command;
    const sl_option *row;
    const char *group;
    bool begins_group;     /* a heading comes before it */
    char range[128];       /* "1 to 4096", "from 1", "never, always"; "" for nothing */
    char *value;           /* the default; NULL: none */
    char of_decoders[160]; /* what it is for other families than the tutorials'; "": the same */
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
static void print_rows(const cli_command *command, void (*print)(const entry *item, FILE *file),
                       FILE *file)
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
            entry item = {command, row, group, .begins_group = k == i};
            write_range(row, item.range, sizeof item.range);
            if (row->type != SL_OPTION_FLAG)
                (void)sl_option_text(row, settings, &item.value);
            if (row->type != SL_OPTION_FLAG && command->takes_decoders)
                cli_decoder_default(row->name, item.of_decoders, sizeof item.of_decoders);
            print(&item, file);
            free(item.value);
        }
    }
    free(settings);
}

/* What a section has; NULL: of the program. */
typedef void print_text(FILE *file, const cli_command *command);

/* ---- --help ------------------------------------------------------------------------------- */

/* Breaks the text between words. `column` columns of its first line are written already; it is
 * indented like the others. */
static void print_wrapped(FILE *file, const char *text, int column, int indent)
{
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column > indent && column + 1 + length > LINE_COLUMNS) {
            fputc('\n', file);
            column = 0;
        }
        column += fprintf(file, "%*s%.*s", column > indent ? 1 : indent - column, "", length, text);
        text += length;
        text += *text == ' ';
    }
    fputc('\n', file);
}

/* " (1 to 4096; default 10; other families: 20)", what there is of it. */
static void write_values(const entry *item, char *text, size_t bytes)
{
    const char *const parts[][2] = {{"", item->range},
                                    {"default ", item->value ? item->value : ""},
                                    {"other families: ", item->of_decoders}};
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < 3 && used < bytes; i++)
        if (*parts[i][1])
            used += (size_t)snprintf(text + used, bytes - used, "%s%s%s", used ? "; " : " (",
                                     parts[i][0], parts[i][1]);
    if (used > 0 && used < bytes)
        snprintf(text + used, bytes - used, ")");
}

/* The option, its help, and its values. */
static void print_help_row(const entry *item, FILE *file)
{
    const sl_option *row = item->row;
    char help[1024], values[512], letter[8] = "";
    if (item->begins_group)
        fprintf(file, "\n %s:\n", item->group);
    if (row->letter)
        snprintf(letter, sizeof letter, "-%c, ", row->letter);
    int column = fprintf(file, "%6s--%s%s%s", letter, row->name, row->value ? "=" : "",
                         row->value ? row->value : "");
    write_values(item, values, sizeof values);
    snprintf(help, sizeof help, "%s%s", row->help, values);
    if (column >= HELP_COLUMN) {
        fputc('\n', file);
        column = 0;
    }
    print_wrapped(file, help, column, HELP_COLUMN);
}

static void print_program_description(FILE *file)
{
    fprintf(file, "Trains Transformer language models on many devices at once.\n\n");
    for (const cli_command *const *command = cli_commands; *command; command++)
        fprintf(file, "  %-10s %s\n", (*command)->name, (*command)->summary);
    fprintf(file,
            "\n`sluice COMMAND --help` shows a command's options.\nThe exit status is 0, 1 after "
            "an error, or 2 for an invalid command line.\n");
}

static void print_environment(FILE *file)
{
    for (const sl_option *row = sl_environment_rows; row->name; row++) {
        char values[128], help[1024];
        write_range(row, values, sizeof values);
        snprintf(help, sizeof help, "%s (%s)", row->help, values);
        fprintf(file, "  %s=%s\n", row->name, row->value);
        print_wrapped(file, help, 0, 6);
    }
}

/* The forms of the command line, a line each. */
static void print_forms(FILE *file, const cli_command *command)
{
    const char *form = command && command->arguments ? command->arguments : "";
    if (!command)
        fprintf(file, "sluice COMMAND [OPTION...]\n");
    for (bool more = command; more; more = *form) {
        int length = (int)strcspn(form, "\n");
        fprintf(file, "sluice %s [OPTION...]%s%.*s\n", command->name, length ? " " : "", length,
                form);
        form += length;
        form += *form == '\n';
    }
}

static void print_description(FILE *file, const cli_command *command)
{
    if (command)
        print_wrapped(file, command->doc, 0, 0);
    else
        print_program_description(file);
    if (command && command->takes_decoders)
        print_wrapped(
            file,
            "Other families are the models of --init and --model that are not the tutorials'.", 0,
            0);
}

/* The options of a command; the variables that all commands know. */
static void print_options(FILE *file, const cli_command *command)
{
    if (command)
        print_rows(command, print_help_row, file);
    else
        print_environment(file);
}

static void print_examples(FILE *file, const cli_command *command)
{
    fputs(command ? command->examples
                  : "sluice train --data book.txt --preset small --save book.safetensors\n"
                    "sluice generate --init book.safetensors --prompt \"it was\"\n",
          file);
}

/* Prints what `print` prints with `first` before the first line and `more` before the others. */
static void print_indented(FILE *file, const char *first, const char *more, print_text *print,
                           const cli_command *command)
{
    char *text = NULL;
    size_t bytes;
    FILE *lines = open_memstream(&text, &bytes);
    if (lines)
        print(lines, command);
    if (!lines || fclose(lines) != 0)
        cli_refuse("no memory for the help");
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        fprintf(file, "%s%.*s\n", line == text ? first : more, (int)strcspn(line, "\n"), line);
    }
    free(text);
}

void cli_help_print(FILE *file, const cli_command *command)
{
    print_indented(file, "Usage: ", "   or: ", print_forms, command);
    print_description(file, command);
    if (!command)
        fprintf(file, "\nEnvironment variables:\n");
    print_options(file, command);
    fprintf(file, "\nExamples:\n");
    print_indented(file, "  ", "  ", print_examples, command);
}

/* ---- Markdown ----------------------------------------------------------------------------- */

/* In a table's cell: | ends it. */
static void print_cell(FILE *file, const char *text)
{
    for (; *text; text++)
        fprintf(file, *text == '|' ? "\\|" : "%c", *text);
}

static void print_markdown_row(const entry *item, FILE *file)
{
    const sl_option *row = item->row;
    bool affects =
        item->command == &cmd_train; /* the table says which ones a resumed run must have */
    if (item->begins_group)
        fprintf(file, "\n%s\n\n| option | | range | default |%s\n|---|---|---|---|%s\n",
                item->group, affects ? " fixed for a resumed run |" : "", affects ? "---|" : "");
    fprintf(file, "| `--%s%s", row->name, row->value ? " " : "");
    print_cell(file, row->value ? row->value : "");
    fprintf(file, "`");
    if (row->letter)
        fprintf(file, ", `-%c`", row->letter);
    fprintf(file, " | ");
    print_cell(file, row->help);
    fprintf(file, " | %s |", item->range);
    if (item->value)
        fprintf(file, " `%s`", item->value);
    if (*item->of_decoders)
        fprintf(file, "%s other families: %s", item->value ? ";" : "", item->of_decoders);
    fprintf(file, " |");
    fprintf(file, "%s\n", !affects ? "" : row->affects_numbers ? " yes |" : " |");
}

void cli_help_print_markdown(void)
{
    printf("# Options\n\n`sluice help --markdown` prints this page. A run that resumes must have "
           "the same text, and the same values\nof the options that are marked as fixed, as far as "
           "its optimizer and its schedule use them (`--epochs`\nonly where the rate falls to the "
           "end of the run). Other families are the [models](models.md) of `--init` and\n`--model` "
           "that are not the tutorials'.\n");
    for (const cli_command *const *command = cli_commands; *command; command++) {
        printf("\n## sluice %s\n", (*command)->name);
        print_rows(*command, print_markdown_row, stdout);
    }
}

/* ---- Manual pages ------------------------------------------------------------------------- */

static const char files[] =
    "DIR/wiki.{train,valid,test}.tokens, DIR/{train,valid,test}.txt\n"
    "    the texts of --data DIR\n"
    "MODEL/config.json, MODEL/tokenizer.json, MODEL/model.safetensors\n"
    "    a model (--save, --init): its sizes, its vocabulary, and tensors by PyTorch's names\n"
    "RUN/step-00000400/, RUN/best/, RUN/progress\n"
    "    checkpoints, the best model, and the number of the last step (--save-dir)\n"
    "LOG.jsonl\n    a run's log (--log-json), for sluice report and sluice watch\n";

/* roff takes \ and - anywhere, and . and ' at a line's beginning, for its own. */
static void print_roff(const char *text)
{
    for (char before = '\n'; *text; before = *text++) {
        if (before == '\n' && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        if (*text == '\\' || *text == '-')
            printf("\\%c", *text == '-' ? '-' : 'e');
        else
            putchar(*text);
    }
}

/* A section of lines as they are. */
static void print_section(const char *title, print_text *print, const cli_command *command)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (file)
        print(file, command);
    if (!file || fclose(file) != 0)
        cli_refuse("no memory for the page");
    if (*text)
        printf(".SH %s\n.nf\n.in 0\n", title);
    print_roff(text);
    printf("%s", *text ? ".fi\n" : "");
    free(text);
}

static void print_files(FILE *file, const cli_command *command)
{
    (void)command;
    fputs(files, file);
}

void cli_help_print_man(const cli_command *command)
{
    char name[64];
    snprintf(name, sizeof name, "sluice%s%s", command ? "-" : "", command ? command->name : "");
    printf(".TH \"%s\" 1 \"\" \"sluice %s\" \"sluice\"\n.SH NAME\n%s \\- %s\n", name, sl_version(),
           name, command ? command->summary : "train Transformer language models");
    print_section("SYNOPSIS", print_forms, command);
    print_section("DESCRIPTION", print_description, command);
    print_section("OPTIONS", print_options, command);
    print_section("EXAMPLES", print_examples, command);
    print_section("FILES", print_files, command);
}

/* ---- Completion --------------------------------------------------------------------------- */

/* The verbs with which a command's forms begin: "show DIR...", "convert FROM TO". */
static void print_verbs(const cli_command *command)
{
    const char *form = command->arguments ? command->arguments : "";
    for (; *form; form += strcspn(form, "\n"), form += *form == '\n')
        if (islower((unsigned char)*form))
            printf(" %.*s", (int)strcspn(form, " \n"), form);
}

static void print_case(const cli_command *command)
{
    const sl_option *row;
    printf("    %s)\n        case $previous in\n", command->name);
    printf("        %s) words=\"--help", command->name);
    print_verbs(command);
    for (int i = 0; (row = cli_row(command, i)); i++)
        printf(" --%s", row->name);
    printf("\" ;;\n");
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
        "    # Bash cuts --name=value into three words.\n"
        "    if [ \"$current\" = = ]; then\n        current=\n"
        "    elif [ \"$previous\" = = ]; then\n"
        "        previous=${COMP_WORDS[COMP_CWORD - 2]}\n    fi\n"
        "    if [ \"$COMP_CWORD\" = 1 ]; then\n        words=\"--help --version");
    for (const cli_command *const *command = cli_commands; *command; command++)
        printf(" %s", (*command)->name);
    printf("\"\n    else\n    case ${COMP_WORDS[1]} in\n");
    for (const cli_command *const *command = cli_commands; *command; command++)
        print_case(*command);
    printf("    esac\n    fi\n"
           "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
           "}\ncomplete -o default -F _sluice sluice\n");
}
