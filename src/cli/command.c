/* A command line: its options, and those of a file, read into a command's settings, and printed.
 *
 * An option is "--name value", "--name=value", a beginning of its name that no other option has, or
 * a letter, "-n value" or "-nvalue". Options and other words stand in any order. After "--" there
 * are words only, and so there are after the first word of another program's line. A file of
 * options is one JSON object, whose members are options by name. */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Rows --------------------------------------------------------------------------------- */

static bool takes_run_option(const cli_command *command, const char *name)
{
    const char *const *allowed = command->run_names;
    while (allowed && *allowed && strcmp(*allowed, name) != 0)
        allowed++;
    return !allowed || *allowed;
}

const sl_option *cli_row(const cli_command *command, int number)
{
    const sl_option *row;
    for (int t = 0; t < 2; t++)
        for (row = command->run_options[t]; row && row->name; row++)
            if (takes_run_option(command, row->name) && number-- == 0)
                return row;
    for (row = command->options; row && row->name; row++)
        if (number-- == 0)
            return row;
    return NULL;
}

static bool has_name(const sl_option *row, const char *name)
{
    return strcmp(row->name, name) == 0 || (row->old_name && strcmp(row->old_name, name) == 0);
}

/* The row of that name; NULL: there is none, and *near (NULL: not wanted) has the nearest. */
static const sl_option *find_row(const cli_command *command, const char *name, cli_near *near)
{
    const sl_option *row;
    for (int i = 0; (row = cli_row(command, i)); i++) {
        if (has_name(row, name))
            return row;
        if (near)
            cli_near_add(near, row->name);
    }
    return NULL;
}

/* ---- The command line --------------------------------------------------------------------- */

/* The option of that name or letter, or the only one whose name begins so. Ends the program where
 * the word names none. */
static const sl_option *find_option(const cli_command *command, const char *word)
{
    char name[64] = "", beginnings[512] = "";
    cli_near near = {.word = name};
    const sl_option *row, *found = NULL;
    size_t used = 0;
    int count = 0;
    bool is_letter = word[1] != '-';
    if (!is_letter)
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    for (int i = 0; (row = cli_row(command, i)); i++) {
        if (is_letter ? row->letter && row->letter == word[1] : has_name(row, name))
            return row;
        cli_near_add(&near, row->name);
        if (!*name || strncmp(row->name, name, strlen(name)) != 0)
            continue;
        found = row;
        count++;
        if (used < sizeof beginnings)
            used += (size_t)snprintf(beginnings + used, sizeof beginnings - used, "%s--%s",
                                     used ? ", " : "", row->name);
    }
    if (count > 1)
        cli_refuse("--%s is ambiguous: %s", name, beginnings);
    if (!found)
        cli_refuse_near(&near, "--", "there is no such option (see sluice %s --help), got \"%s\"",
                        command->name, word);
    return found;
}

/* Reads the option at argv[0]; gives the number of words that it takes. --no-NAME takes a flag
 * back, which a file of options or a default may set. */
static int read_option(const cli_command *command, const char *const *argv, cli_given *out)
{
    const char *word = argv[0], *equals = strchr(word, '=');
    const sl_option *off = strncmp(word, "--no-", strlen("--no-")) == 0
                               ? find_row(command, word + strlen("--no-"), NULL)
                               : NULL;
    if (off && !off->value) {
        *out = (cli_given){.option = off, .text = "false"};
        return 1;
    }
    const sl_option *row = find_option(command, word);
    const char *text = equals ? equals + 1 : NULL;
    if (word[1] != '-')
        text = word[2] ? word + 2 : NULL;
    bool is_next = row->value && !text;
    if (text && !row->value)
        cli_refuse("--%s takes no value, got \"%s\"", row->name, text);
    if (is_next && !argv[1])
        cli_refuse("--%s needs a value", row->name);
    *out = (cli_given){.option = row, .text = is_next ? argv[1] : text};
    return is_next ? 2 : 1;
}

/* Makes one of the option given last and the same one before it, where they are items of a list. */
static void join_items(cli_line *line)
{
    const cli_given *last = &line->given[line->given_count - 1];
    for (cli_given *given = line->given; given < last && last->option->is_item; given++) {
        if (given->option != last->option || !given->text || !last->text ||
            (!last->option->is_item(given->text) && !last->option->is_item(last->text)))
            continue;
        size_t bytes = strlen(given->text) + strlen(last->text) + 2;
        char *list = cli_allocate(bytes, 1);
        snprintf(list, bytes, "%s,%s", given->text, last->text);
        free(given->list);
        given->text = given->list = list;
        line->given_count--;
        return;
    }
}

/* Reads what follows the command's name into *out. */
static void read_words(const cli_command *command, char **argv, cli_line *out)
{
    size_t count = 0;
    bool words_only = false;
    while (argv[count])
        count++;
    *out = (cli_line){.command = command};
    out->given = cli_allocate(count + 1, sizeof *out->given);
    out->words = cli_allocate(count + 1, sizeof *out->words);
    while (*argv) {
        if (words_only || argv[0][0] != '-' || !argv[0][1]) {
            out->words[out->word_count++] = *argv++;
            words_only |= command->program;
        } else if (strcmp(*argv, "--") == 0) {
            words_only = true;
            argv++;
        } else if (strcmp(*argv, "--help") == 0 || strcmp(*argv, "-h") == 0) {
            cli_help_print(stdout, command);
            exit(cli_finish(SL_OK));
        } else {
            argv +=
                read_option(command, (const char *const *)argv, &out->given[out->given_count++]);
            join_items(out);
        }
    }
    if (out->word_count > 0 && !command->arguments)
        cli_refuse("%s takes options only, got \"%s\"", command->name, out->words[0]);
}

/* ---- A file of options -------------------------------------------------------------------- */

/* The option's text for a member, which `config` keeps. */
static const char *read_value(json_t *config, const char *name, const json_t *value)
{
    if (json_is_string(value))
        return json_string_value(value);
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_object_set_new(config, name, json_string(text));
    free(text);
    return json_string_value(json_object_get(config, name));
}

static cli_given read_member(const cli_line *line, const char *path, const char *name,
                             const json_t *value)
{
    cli_near near = {.word = name};
    const sl_option *option = find_row(line->command, name, &near);
    if (!option)
        cli_refuse_near(&near, "", "%s: there is no such option, got \"%s\"", path, name);
    if (strcmp(name, "config") == 0)
        cli_refuse("%s: config cannot name a second file of options", path);
    bool takes =
        json_is_string(value) || (option->value ? json_is_number(value) : json_is_boolean(value));
    if (!takes)
        cli_refuse("%s: %s must be a %s", path, name,
                   option->value ? "number or a text" : "true or false");
    return (
        cli_given){.option = option, .text = read_value(line->config, name, value), .file = path};
}

void cli_check_file(const char *option, const char *path)
{
    struct stat file = {0};
    int error = access(path, R_OK) != 0 || stat(path, &file) != 0 ? errno : 0;
    if (S_ISDIR(file.st_mode))
        error = EISDIR;
    if (error != 0)
        cli_refuse("--%s must name a file (%s), got \"%s\"", option, strerror(error), path);
}

/* Puts the options of line->config, from `path`, before those of the line, which so override them.
 */
static void add_config(cli_line *line, const char *path)
{
    json_t *value;
    void *next;
    const char *name;
    cli_given *all =
        cli_allocate(json_object_size(line->config) + (size_t)line->given_count + 1, sizeof *all);
    json_object_foreach_safe(line->config, next, name, value) all[line->config_count++] =
        read_member(line, path, name, value);
    memcpy(all + line->config_count, line->given, (size_t)line->given_count * sizeof *all);
    free(line->given);
    line->given = all;
    line->given_count += line->config_count;
}

static void read_file(cli_line *line, const char *path)
{
    json_error_t error;
    cli_check_file("config", path);
    line->config = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!line->config)
        cli_refuse("%s: no JSON object of options in line %d (%s)", path, error.line, error.text);
    if (!json_is_object(line->config))
        cli_refuse("%s: must be a JSON object of options", path);
    add_config(line, path);
}

/* ---- A plan ------------------------------------------------------------------------------- */

_Noreturn static void refuse_plan(const char *path)
{
    cli_refuse("%s: must be a JSON object with plans, as sluice plan -o writes it, of which the "
               "first has step_ms and options",
               path);
}

static bool is_device_kind(const char *text)
{
    return text && (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0);
}

/* The words of the first plan's options, [count] and then NULL, which line->plans owns. */
static const char **find_plan_words(cli_line *line, const char *path, size_t *count)
{
    const json_t *plan = json_array_get(json_object_get(line->plans, "plans"), 0);
    const json_t *options = json_object_get(plan, "options"),
                 *device = json_object_get(plan, "device");
    double ms = json_number_value(json_object_get(plan, "step_ms"));
    *count = json_array_size(options);
    if (!(ms > 0) || *count == 0 || (device && !is_device_kind(json_string_value(device))))
        refuse_plan(path);
    line->planned_seconds = 1e-3 * ms;
    line->planned_device = json_string_value(device);
    const char **words = cli_allocate(*count + 1, sizeof *words);
    for (size_t i = 0; i < *count; i++) {
        words[i] = json_string_value(json_array_get(options, i));
        if (!words[i])
            refuse_plan(path);
    }
    return words;
}

/* Adds the options of a file's first plan behind those of the line. */
static void read_plan(cli_line *line, const char *path)
{
    json_error_t error;
    size_t count;
    cli_check_file("plan", path);
    line->plans = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!line->plans)
        cli_refuse("%s: no JSON object of plans in line %d (%s)", path, error.line, error.text);
    const char **words = find_plan_words(line, path, &count);
    cli_given *all = cli_allocate((size_t)line->given_count + count + 1, sizeof *all);
    memcpy(all, line->given, (size_t)line->given_count * sizeof *all);
    int added = 0;
    for (const char *const *word = words; *word; added++) {
        cli_given *given = &all[line->given_count + added];
        if (strncmp(*word, "--", 2) != 0)
            refuse_plan(path);
        word += read_option(line->command, word, given);
        if (cli_line_own_value(line, given->option->name))
            cli_refuse("--%s is the plan's (%s): leave it out", given->option->name, path);
    }
    free(line->given);
    free(words);
    line->given = all;
    line->given_count += added;
    line->plan_count = added;
}

/* ---- Setting ------------------------------------------------------------------------------ */

/* The text of the option's last use; "" for a flag; NULL where it was not given. */
static const char *find_value(const cli_given *given, int count, const char *name)
{
    while (count-- > 0)
        if (strcmp(given[count].option->name, name) == 0)
            return given[count].text ? given[count].text : "";
    return NULL;
}

const char *cli_line_value(const cli_line *line, const char *name)
{
    return find_value(line->given, line->given_count, name);
}

const char *cli_line_own_value(const cli_line *line, const char *name)
{
    return find_value(line->given + line->config_count,
                      line->given_count - line->config_count - line->plan_count, name);
}

static void set_option(const cli_given *given, void *settings)
{
    const sl_option *option = given->option;
    cli_near near = {.word = given->text};
    if (sl_option_set(option, settings, given->text) == SL_OK)
        return;
    for (int i = 0; option->choices && option->choices[i]; i++)
        cli_near_add(&near, option->choices[i]);
    cli_refuse_near(&near, "", "%s%s--%s", given->file ? given->file : "", given->file ? ": " : "",
                    sl_error_text());
}

/* A run's options from the file or from the line. Devices and a balance of numbers say how many
 * stages there are, as --pp does, and devices in groups how many replicas, as --dp does: numbers of
 * a preset or of the file then do not count. */
static void set_run_source(const cli_given *source, int count, sl_train_options *train)
{
    const char *preset = find_value(source, count, "preset"),
               *devices = find_value(source, count, "devices");
    if (preset) /* an unknown one is refused with the other options */
        (void)sl_train_options_preset(preset, train);
    int stages = train->pipeline_ranks, replicas = train->replicas;
    train->pipeline_ranks = train->replicas = 0;
    for (int i = 0; i < count; i++)
        set_option(&source[i], train);
    bool balance =
        find_value(source, count, "balance") && train->balance_kind == SL_BALANCE_EXPLICIT;
    if (train->pipeline_ranks == 0 && !devices && !balance)
        train->pipeline_ranks = stages;
    if (train->replicas == 0 && !(devices && strchr(devices, ';')))
        train->replicas = replicas;
}

static void check_needs(const cli_line *line)
{
    for (int i = 0; i < line->given_count; i++) {
        const sl_option *option = line->given[i].option;
        const char *text = line->given[i].text;
        bool is_off = !option->value && text && strcmp(text, "false") == 0;
        if (!option->needs || is_off || cli_line_value(line, option->needs))
            continue;
        const sl_option *needed = find_row(line->command, option->needs, NULL);
        cli_refuse("--%s needs --%s%s%s", option->name, needed->name, needed->value ? " " : "",
                   needed->value ? needed->value : "");
    }
}

void cli_settings_default(const cli_command *command, void *settings)
{
    const sl_option *row;
    memset(settings, 0, command->settings_bytes);
    if (command->run_options[0])
        (void)sl_train_options_preset(sl_preset_names[0], settings);
    for (int i = 0; (row = cli_row(command, i)); i++)
        if (row->initial)
            set_option(&(cli_given){.option = row, .text = row->initial}, settings);
}

static sl_status read_table(cli_line *line, sl_train_options *options)
{
    const char *schedule = options->schedule;
    if (sl_schedule_has_name(schedule))
        return SL_OK;
    bool chunks_given = cli_line_value(line, "chunks"), ranks_given = cli_line_value(line, "pp");
    sl_schedule_options wanted = {.ranks = ranks_given ? options->pipeline_ranks : 0,
                                  .virtual_stages = options->virtual_stages,
                                  .micros = chunks_given ? options->chunks : 0};
    SL_TRY(sl_schedule_open(schedule, &wanted, &line->table));
    options->table = line->table;
    options->pipeline_ranks = sl_schedule_ranks(line->table);
    options->chunks = sl_schedule_micros(line->table);
    return SL_OK;
}

/* Sets what was given, over the defaults. */
static sl_status set_line(cli_line *line, void *settings)
{
    bool is_run = line->command->run_options[0] != NULL;
    cli_settings_default(line->command, settings);
    const cli_given *given = line->given + line->config_count;
    int count = line->given_count - line->config_count - line->plan_count;
    for (int i = 0; !is_run && i < count; i++)
        set_option(&given[i], settings);
    if (is_run) {
        set_run_source(line->given, line->config_count, settings);
        set_run_source(given, count, settings);
        set_run_source(given + count, line->plan_count, settings);
    }
    check_needs(line);
    return is_run ? read_table(line, settings) : SL_OK;
}

sl_status cli_line_read(const cli_command *command, char **argv, void *settings, cli_line *line)
{
    read_words(command, argv, line);
    const char *path = cli_line_value(line, "config");
    if (path)
        read_file(line, path);
    const char *plan = cli_line_value(line, "plan");
    if (plan)
        read_plan(line, plan);
    return set_line(line, settings);
}

sl_status cli_line_set_again(cli_line *line, json_t *config, const char *path, void *settings)
{
    sl_schedule_destroy(&line->table);
    line->config = config;
    add_config(line, path);
    return set_line(line, settings);
}

void cli_line_clear(cli_line *line)
{
    sl_schedule_destroy(&line->table);
    json_decref(line->config);
    json_decref(line->plans);
    for (int i = 0; i < line->given_count; i++)
        free(line->given[i].list);
    free(line->given);
    free(line->words);
}

/* ---- Options in errors ---------------------------------------------------------------------- */

/* Where the library's errors name options behind the first word; cli_name_options finds that. */
static const char *const phrases[][2] = {
    {"; allow_nan lets", "; --allow-nan lets"},
    {". force starts", ". --force starts"},
    {"or set force", "or give --force"},
    {"with init instead of resume", "with --init instead of --resume"},
    {"but epochs is", "but --epochs is"},
    {"and split_vocabulary is not set", "and --split-vocabulary is not given"},
    {"run with split_vocabulary", "run with --split-vocabulary"},
};

/* The text before the first word of the sentence: "[rank 2] ". */
static size_t context_length(const char *text)
{
    const char *end = *text == '[' ? strstr(text, "] ") : NULL;
    return end ? (size_t)(end + 2 - text) : 0;
}

void cli_name_options(const cli_command *command, sl_status status)
{
    char name[64], text[1024];                                     /* no error is longer */
    if (!command->run_options[0] || strchr(sl_error_text(), '\n')) /* a table is drawn in it */
        return;
    snprintf(text, sizeof text, "%s", sl_error_text());
    char *first = text + context_length(text);
    int length = (int)strcspn(first, " :");
    snprintf(name, sizeof name, "%.*s", length, first);
    for (char *at = name; (at = strchr(at, '_'));)
        *at = '-';
    if (find_row(command, name, NULL))
        sl_error(status, "%.*s--%s%s", (int)(first - text), text, name, first + length);
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++) {
        const char *found = strstr(first, phrases[i][0]);
        if (found)
            sl_error(status, "%.*s%s%s", (int)(found - text), text, phrases[i][1],
                     found + strlen(phrases[i][0]));
    }
}

/* ---- Printing ----------------------------------------------------------------------------- */

void cli_print_word(FILE *file, const char *word)
{
    const char *letter = word, *quote = "";
    while (isalnum((unsigned char)*letter) || (*letter && strchr("_-./=:,+@%", *letter)))
        letter++;
    if (!*word || *letter)
        quote = "'";
    fputs(quote, file);
    for (letter = word; *letter; letter++)
        fprintf(file, *letter == '\'' ? "'\\''" : "%c", *letter);
    fputs(quote, file);
}

void cli_line_print(FILE *file, const cli_line *line, const char *omitted)
{
    fprintf(file, "sluice %s", line->command->name);
    for (int i = line->config_count; i < line->given_count - line->plan_count; i++) {
        const cli_given *given = &line->given[i];
        if (strcmp(given->option->name, omitted) == 0)
            continue;
        fprintf(file, " --%s%s", given->option->name, given->text ? " " : "");
        if (given->text)
            cli_print_word(file, given->text);
    }
}

/* Numbers and flags print as JSON's own; a seed may have more digits than JSON's readers hold. */
static bool is_json(sl_option_type type, const char *text)
{
    return type != SL_OPTION_CHOICE && type != SL_OPTION_TEXT && type != SL_OPTION_CUSTOM &&
           type != SL_OPTION_PAIR && (type != SL_OPTION_SEED || strlen(text) <= 18);
}

/* False where the text is not UTF-8. */
static bool print_member(FILE *file, const sl_option *row, const char *text)
{
    json_t *value = json_string(text);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (!quoted)
        return false;
    fprintf(file, "%s\n  \"%s\": %s", ftell(file) > 0 ? "," : "{", row->name,
            is_json(row->type, text) ? text : quoted);
    free(quoted);
    json_decref(value);
    return true;
}

/* The value's text, to be freed; NULL: it is not set, or its file could not be read back, since it
 * needs an option that is not set. */
static char *read_text(const cli_command *command, const sl_option *row, const void *settings)
{
    char *text = NULL, *needed = NULL;
    const sl_option *needs = row->needs ? find_row(command, row->needs, NULL) : NULL;
    if (needs)
        (void)sl_option_text(needs, settings, &needed);
    bool is_off = needed && needs->type == SL_OPTION_FLAG && strcmp(needed, "false") == 0;
    if (!needs || (needed && !is_off))
        (void)sl_option_text(row, settings, &text);
    free(needed);
    return text;
}

const sl_option *cli_settings_text(const cli_command *command, const void *settings, char **out)
{
    const sl_option *row, *other = NULL;
    size_t bytes = 0;
    *out = NULL;
    FILE *file = open_memstream(out, &bytes);
    for (int i = 0; file && (row = cli_row(command, i)); i++) {
        char *text = read_text(command, row, settings);
        if (text && strcmp(row->name, "config") != 0 && strcmp(row->name, "print-config") != 0 &&
            strcmp(row->name, "plan") != 0 && !print_member(file, row, text))
            other = row;
        free(text);
    }
    if (!file || fputs("\n}\n", file) < 0 || fclose(file) != 0)
        cli_refuse("no memory for the configuration");
    return other;
}

void cli_settings_print(const cli_command *command, const void *settings)
{
    char *text;
    const sl_option *other = cli_settings_text(command, settings, &text);
    if (other)
        cli_refuse("--%s is not UTF-8 and cannot be written as JSON", other->name);
    printf("%s", text);
    free(text);
}
