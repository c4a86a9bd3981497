/* A run's options in its checkpoints: a run that resumes needs the directory alone. */
#define _GNU_SOURCE /* asprintf */
#include "cli/cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Recording --------------------------------------------------------------------------- */

static const char *const paths[] = {"data", "schedule", "init",  "adapter",
                                    "save", "log-json", "trace", "tensorboard"};
enum { PATHS = sizeof paths / sizeof *paths };

/* "text" -> "/home/me/text", malloc'ed; NULL where it needs no change. */
static char *absolute_path(const char *path)
{
    char *directory, *absolute = NULL;
    if (!path || *path == '/')
        return NULL;
    directory = getcwd(NULL, 0);
    if (directory && asprintf(&absolute, "%s/%s", directory, path) < 0)
        absolute = NULL;
    free(directory);
    return absolute;
}

/* The same of each source of a list of sources. */
static char *absolute_sources(const char *data)
{
    char *list = NULL, *text = strdup(data);
    for (char *item = text, *next; item; item = next) {
        char *colon = strchr(item, ':'), *longer = NULL;
        next = strchr(item, ',');
        if (next)
            *next++ = '\0';
        char *path = colon ? absolute_path(colon + 1) : NULL;
        int length = path ? (int)(colon + 1 - item) : (int)strlen(item);
        if (asprintf(&longer, "%s%s%.*s%s", list ? list : "", list ? "," : "", length, item,
                     path ? path : "") < 0)
            longer = NULL;
        free(path);
        free(list);
        list = longer;
    }
    free(text);
    return list;
}

void cli_options_record(const cli_command *command, void *settings, char **text)
{
    sl_train_options *run = settings;
    const sl_option *row;
    char *absolute[PATHS] = {NULL};
    *text = NULL;
    if (!run->checkpoints.directory)
        return;
    void *copy = cli_allocate(1, command->settings_bytes);
    memcpy(copy, settings, command->settings_bytes);
    ((sl_train_options *)copy)->checkpoints.resume = NULL;
    for (int i = 0; (row = cli_row(command, i)); i++) {
        char *value = NULL;
        for (int k = 0; k < PATHS; k++) {
            if (strcmp(row->name, paths[k]) != 0 || sl_option_text(row, settings, &value) != SL_OK)
                continue;
            if (row->is_item && value && row->is_item(value))
                absolute[k] = absolute_sources(value);
            else if (strcmp(row->name, "schedule") != 0 || !sl_schedule_has_name(value))
                absolute[k] = absolute_path(value);
            if (absolute[k])
                (void)sl_option_set(row, copy, absolute[k]);
            free(value);
        }
    }
    if (cli_settings_text(command, copy, text)) {
        free(*text);
        *text = NULL;
    }
    run->checkpoints.settings = *text;
    for (int k = 0; k < PATHS; k++)
        free(absolute[k]);
    free(copy);
}

/* ---- Recovering -------------------------------------------------------------------------- */

/* A run that resumes from one checkpoint saves none unless it is told where. */
static void leave_out_saving(const cli_command *command, json_t *options)
{
    const sl_option *row;
    json_object_del(options, "save-dir");
    for (int i = 0; (row = cli_row(command, i)); i++)
        if (row->needs && strcmp(row->needs, "save-dir") == 0)
            json_object_del(options, row->name);
}

/* The options that the checkpoint's settings `text` have, for this line. */
static sl_status edit_options(const cli_line *line, const char *resume, const char *path,
                              char **text)
{
    json_t *options = json_loads(*text, JSON_REJECT_DUPLICATES, NULL);
    free(*text);
    *text = NULL;
    if (json_is_object(options) && strcmp(path, resume) != 0)
        json_object_set_new(options, "save-dir", json_string(resume));
    else if (json_is_object(options) && !cli_line_value(line, "save-dir"))
        leave_out_saving(line->command, options);
    if (json_is_object(options))
        *text = json_dumps(options, 0);
    json_decref(options);
    return *text ? SL_OK
                 : sl_error(SL_ERR_FORMAT, "%s: \"settings\" must be an object of options", path);
}

static sl_status read_text(const cli_line *line, const char *resume, char **text)
{
    char *path;
    sl_status status;
    SL_TRY(sl_train_find_settings(resume, &path, text));
    if (!path)
        status = sl_error(SL_ERR_NOT_FOUND,
                          "%s: there is no checkpoint to resume from; a run from the beginning "
                          "needs --data DIR|FILE",
                          resume);
    else if (!*text)
        status = sl_error(SL_ERR_NOT_FOUND,
                          "%s: does not have the run's options, as checkpoints of other "
                          "programs: give them, with --data DIR|FILE",
                          path);
    else
        status = edit_options(line, resume, path, text);
    free(path);
    return status;
}

/* The first process reads, since others may be on hosts that do not see the directory. */
static sl_status share_text(sl_group *group, const cli_line *line, const char *resume, char **text)
{
    int64_t words = 0;
    if (sl_group_rank(group) == 0) {
        SL_TRY(read_text(line, resume, text));
        words = (int64_t)(strlen(*text) / sizeof(int32_t)) + 1;
    }
    SL_TRY(sl_group_broadcast(group, &words, 1, SL_I64, 0, NULL));
    char *all = cli_allocate((size_t)words, sizeof(int32_t));
    if (*text)
        memcpy(all, *text, strlen(*text));
    free(*text);
    *text = all;
    return sl_group_broadcast(group, all, words, SL_I32, 0, NULL);
}

static sl_status read_together(const sl_launch_info *launch, const cli_line *line,
                               const char *resume, char **text)
{
    sl_group *group;
    if (launch->world_size == 1)
        return read_text(line, resume, text);
    SL_TRY(cli_group_create(launch, &group));
    sl_status status = share_text(group, line, resume, text);
    if (status != SL_OK)
        sl_group_abort(group, status, sl_error_text());
    sl_group_destroy(&group);
    return status;
}

sl_status cli_options_recover(cli_line *line, const sl_launch_info *launch, void *settings)
{
    const char *resume = cli_line_value(line, "resume"),
               *directory = cli_line_value(line, "save-dir");
    bool is_auto = resume && strcmp(resume, "auto") == 0;
    char *text = NULL;
    if (!resume || (is_auto && !directory) || cli_line_value(line, "data") ||
        cli_line_value(line, "config"))
        return SL_OK;
    const char *path = is_auto ? directory : resume;
    SL_TRY(read_together(launch, line, path, &text));
    json_t *options = json_loads(text, 0, NULL);
    free(text);
    return options ? cli_line_set_again(line, options, path, settings)
                   : sl_error(SL_ERR_MEMORY, "%s: no memory for its options", path);
}
