/* PyTorch's CSV, compute form: a line for each rank, a cell for each action, empty cells for
 * pauses.
 *
 *     0F0,0F1,,0I0,0W0
 *     ,1F0,(1F1;1I0)OVERLAP_F_B,1W0
 *
 * Slices are sluice's own: 0F0.1.
 *
 * In an older dialect B means I where the micro-batch also has a W at that stage. How many ranks,
 * stages and micro-batches there are, and where the stages are, follows from the cells. */
#include "parallel/schedule/table.h"

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Cells ------------------------------------------------------------------------------ */

typedef struct reader {
    const char *name, *at, *end; /* the text's name, and what is left of it */
    int line, cell;              /* from 1 */
    sl_action *actions;          /* of all ranks so far; until all are read, `slices` is the number
                                    of the slice */
    size_t count, room;
    size_t *ends; /* [lines]: where each line's actions end */
    size_t lines, line_room;
} reader;

/* Stages, micro-batches and lines are fewer, and a file is shorter. */
enum { MOST_NUMBER = 1 << 24, MOST_BYTES = 1 << 30, TEXT_BYTES = 40 };

static sl_status cell_error(const reader *r, const char *start)
{
    char text[TEXT_BYTES];
    size_t length = 0;
    while (start + length < r->end && start[length] != ',' && start[length] != '\n' &&
           length + 1 < sizeof text)
        length++;
    memcpy(text, start, length);
    text[length] = '\0';
    return sl_error(SL_ERR_FORMAT,
                    "%s: line %d, cell %d: expected an action such as 2F0 (F, R, B, I, W, S or T), "
                    "2F0.1 for a slice, (0F7;7B3)OVERLAP_F_B or nothing, got '%s'",
                    r->name, r->line, r->cell, text);
}

static bool read_number(reader *r, int *out)
{
    const char *start = r->at;
    int number = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9' && number < MOST_NUMBER)
        number = 10 * number + (*r->at++ - '0');
    *out = number;
    return r->at > start && number < MOST_NUMBER;
}

static bool read_word(reader *r, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0)
        return false;
    r->at += length;
    return true;
}

static bool read_action(reader *r, sl_action *out)
{
    *out = (sl_action){0};
    if (!read_number(r, &out->stage) || r->at == r->end)
        return false;
    return sli_action_kind_of(*r->at++, &out->kind) && read_number(r, &out->micro) &&
           (!read_word(r, ".") || read_number(r, &out->slices));
}

static sl_status add_action(reader *r, sl_action action)
{
    SL_TRY(
        sli_array_reserve(&r->actions, &r->room, r->count + 1, sizeof action, INT_MAX, "actions"));
    r->actions[r->count++] = action;
    return SL_OK;
}

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

static bool is_at_end_of_cell(const reader *r)
{
    return r->at == r->end || *r->at == ',' || *r->at == '\n';
}

static sl_status read_cell(reader *r)
{
    const char *start = r->at;
    sl_action first, second;
    bool valid = true;
    skip_blanks(r);
    if (is_at_end_of_cell(r))
        return SL_OK;
    if (read_word(r, "(")) {
        valid = read_action(r, &first) && read_word(r, ";") && read_action(r, &second) &&
                read_word(r, ")OVERLAP_F_B");
        second.joined = true;
    } else {
        valid = read_action(r, &first);
        second.joined = false;
    }
    skip_blanks(r);
    if (!valid || !is_at_end_of_cell(r))
        return cell_error(r, start);
    SL_TRY(add_action(r, first));
    return second.joined ? add_action(r, second) : SL_OK;
}

static sl_status read_lines(reader *r)
{
    for (r->line = 1; r->at < r->end; r->line++) {
        r->cell = 1;
        SL_TRY(read_cell(r));
        while (r->at < r->end && *r->at == ',') {
            r->at++;
            r->cell++;
            SL_TRY(read_cell(r));
        }
        if (r->at < r->end)
            r->at++; /* the line's end */
        SL_TRY(sli_array_reserve(&r->ends, &r->line_room, r->lines + 1, sizeof *r->ends,
                                 MOST_NUMBER, "lines"));
        r->ends[r->lines++] = r->count;
    }
    return SL_OK;
}

/* ---- What follows from them ------------------------------------------------------------- */

typedef struct size {
    int stages, micros, slices;
} size;

/* A whole table has an F for each of its stages and micro-batches, so no more than actions. */
static sl_status find_size(const reader *r, size *out)
{
    *out = (size){0};
    for (size_t i = 0; i < r->count; i++) {
        out->stages = r->actions[i].stage >= out->stages ? r->actions[i].stage + 1 : out->stages;
        out->micros = r->actions[i].micro >= out->micros ? r->actions[i].micro + 1 : out->micros;
        out->slices = r->actions[i].slices >= out->slices ? r->actions[i].slices + 1 : out->slices;
    }
    if (r->count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: there is no action", r->name);
    size_t cells = (size_t)out->stages * (size_t)out->micros;
    if (cells > r->count || cells * (size_t)out->slices > r->count)
        return sl_error(SL_ERR_FORMAT,
                        "%s: %zu actions are too few for %d stages and %d micro-batches%s", r->name,
                        r->count, out->stages, out->micros, out->slices > 1 ? " in slices" : "");
    return SL_OK;
}

static void number_slices(const reader *r, int slices)
{
    for (size_t i = 0; i < r->count; i++) {
        sl_action *action = &r->actions[i];
        action->micro = sli_slice_number(action->micro, action->slices, slices);
    }
}

/* A stage is where its actions are. */
static sl_status find_placement(const reader *r, int stages, int *placement)
{
    for (int stage = 0; stage < stages; stage++)
        placement[stage] = -1;
    size_t i = 0;
    for (int line = 0; line < (int)r->lines; line++)
        for (; i < r->ends[line]; i++) {
            int *rank = &placement[r->actions[i].stage];
            if (*rank >= 0 && *rank != line)
                return sl_error(SL_ERR_FORMAT, "%s: stage %d is in line %d and in line %d", r->name,
                                r->actions[i].stage, *rank + 1, line + 1);
            *rank = line;
        }
    for (int stage = 0; stage < stages; stage++)
        if (placement[stage] < 0)
            return sl_error(SL_ERR_FORMAT, "%s: there is no action of stage %d", r->name, stage);
    return SL_OK;
}

/* The older dialect: B with a W of its own is an I. */
static sl_status split_backwards(sl_schedule *schedule)
{
    size_t cells = sli_schedule_cell(schedule, schedule->stages, 0);
    bool *has_weight = calloc(cells, sizeof *has_weight);
    if (!has_weight)
        return sli_no_memory("schedule", "%zu marks", cells);
    for (size_t i = 0; i < schedule->count; i++) {
        const sl_action *action = &schedule->actions[i];
        if (action->kind == SL_ACTION_BACKWARD_WEIGHT)
            has_weight[sli_schedule_cell(schedule, action->stage, action->micro)] = true;
    }
    for (size_t i = 0; i < schedule->count; i++) {
        sl_action *action = &schedule->actions[i];
        if (action->kind == SL_ACTION_BACKWARD &&
            has_weight[sli_schedule_cell(schedule, action->stage, action->micro)])
            action->kind = SL_ACTION_BACKWARD_INPUT;
    }
    free(has_weight);
    return SL_OK;
}

static sl_status make_table(const reader *r, const int *placement, size shape, sl_schedule **out)
{
    SL_TRY(sl_error_context(sli_schedule_allocate((int)r->lines, shape.stages,
                                                  shape.micros * shape.slices, placement, r->count,
                                                  out),
                            "%s: ", r->name));
    (*out)->slices = shape.slices;
    memcpy((*out)->actions, r->actions, r->count * sizeof *r->actions);
    for (int line = 0; line < (int)r->lines; line++)
        (*out)->ends[line] = (*out)->count = r->ends[line];
    sl_status status;
    SL_TRY_OR_FAIL(split_backwards(*out));
    SL_TRY_OR_FAIL(sli_schedule_renumber(*out));
    SL_TRY_OR_FAIL(sli_schedule_mark(*out));
    return SL_OK;

fail:
    sl_schedule_destroy(out);
    return status;
}

sl_status sli_schedule_parse(const char *name, const char *text, size_t bytes, sl_schedule **out)
{
    reader r = {.name = name, .at = text, .end = text + bytes};
    size shape;
    int *placement = NULL;
    *out = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(read_lines(&r));
    while (r.lines > 0 && r.ends[r.lines - 1] == (r.lines > 1 ? r.ends[r.lines - 2] : 0))
        r.lines--; /* empty lines at the end */
    SL_TRY_OR_FAIL(find_size(&r, &shape));
    number_slices(&r, shape.slices);
    placement = malloc((size_t)shape.stages * sizeof *placement);
    SL_TRY_OR_FAIL(placement ? find_placement(&r, shape.stages, placement)
                             : sli_no_memory(name, "%d stages", shape.stages));
    status = make_table(&r, placement, shape, out);

fail:
    free(placement);
    free(r.actions);
    free(r.ends);
    return status;
}

/* The file of sl_schedule_open, not validated. */
static sl_status read_schedule(const char *path, sl_schedule **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(path);
    char *text;
    size_t bytes;
    SL_TRY(sli_file_read(path, MOST_BYTES, &text, &bytes));
    sl_status status = sli_schedule_parse(path, text, bytes, out);
    free(text);
    return status;
}

/* ---- Opening what a user names ---------------------------------------------------------- */

static sl_status check_agreement(const char *path, const sl_schedule *schedule,
                                 const sl_schedule_options *options)
{
    if (options->placement && (options->ranks == 0 || options->virtual_stages == 0))
        return sl_error(SL_ERR_INVALID,
                        "schedule: a placement for %s needs ranks and "
                        "virtual_stages, which say how long it is",
                        path);
    const struct {
        const char *what;
        int has, wanted;
    } numbers[] = {
        {"ranks", schedule->ranks, options->ranks},
        {"stages a rank", schedule->stages / schedule->ranks, options->virtual_stages},
        {"micro-batches", sl_schedule_micros(schedule), options->micros},
        {"slices of a micro-batch", schedule->slices, options->slices},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].wanted != 0 && numbers[i].wanted != numbers[i].has)
            return sl_error(SL_ERR_INVALID, "schedule: %s has %d %s, not %d", path, numbers[i].has,
                            numbers[i].what, numbers[i].wanted);
    return sli_schedule_check_placement(schedule, path, options->placement);
}

sl_status sl_schedule_open(const char *name_or_path, const sl_schedule_options *options,
                           sl_schedule **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    if (!name_or_path || sl_schedule_has_name(name_or_path))
        return sl_schedule_write(name_or_path, options, out);
    if (access(name_or_path, F_OK) != 0)
        return sl_error_context(sl_schedule_write(name_or_path, options, out),
                                "no such file, and ");
    SL_TRY(read_schedule(name_or_path, out));
    sl_status status;
    SL_TRY_OR_FAIL(check_agreement(name_or_path, *out, options));
    SL_TRY_OR_FAIL(sl_error_context(sl_schedule_validate(*out), "%s: ", name_or_path));
    return SL_OK;

fail:
    sl_schedule_destroy(out);
    return status;
}

/* ---- Writing ---------------------------------------------------------------------------- */

sl_status sl_schedule_csv(const sl_schedule *schedule, char **text)
{
    SLI_CHECK_NOT_NULL(text);
    *text = NULL;
    SLI_CHECK_NOT_NULL(schedule);
    size_t bytes;
    FILE *to = open_memstream(text, &bytes);
    for (int rank = 0; to && rank < schedule->ranks; rank++) {
        const sl_action *row;
        int count = sl_schedule_actions(schedule, rank, &row);
        for (int i = 0; i < count; i++) {
            char cell[SLI_ACTION_TEXT_BYTES];
            bool has_second = i + 1 < count && row[i + 1].joined;
            sli_action_text(row[i], cell);
            if (row[i].joined)
                fprintf(to, ";%s)OVERLAP_F_B", cell);
            else
                fprintf(to, "%s%s%s", i > 0 ? "," : "", has_second ? "(" : "", cell);
        }
        fputc('\n', to);
    }
    if (to && fclose(to) == 0)
        return SL_OK;
    free(*text);
    *text = NULL;
    return sli_no_memory("schedule", "the text of %zu actions", schedule->count);
}
