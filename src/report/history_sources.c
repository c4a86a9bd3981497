/* The sources of a mixture: of the losses of steps only the last ones are kept, each where the
 * number of its step says, so that steps which a resumed run repeats replace the earlier ones. */
#include "report/history_sources.h"

#include "core/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The list of `count` numbers or nulls; NULL: the record has none. */
static sl_status read_list(const json_t *record, const char *key, size_t count, const json_t **out)
{
    size_t index;
    json_t *value;
    *out = json_object_get(record, key);
    if (!*out)
        return SL_OK;
    bool is_list = json_is_array(*out) && json_array_size(*out) == count;
    json_array_foreach((json_t *)*out, index, value)
    {
        is_list = is_list && (json_is_number(value) || json_is_null(value));
    }
    return is_list ? SL_OK
                   : sl_error(SL_ERR_FORMAT,
                              "%s must be a list of a number or null for each of "
                              "the run's %zu sources",
                              key, count);
}

static double number_of(const json_t *list, size_t index)
{
    const json_t *value = list ? json_array_get(list, index) : NULL;
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* A run that resumes goes on with its sources. */
sl_status sli_history_sources_begin(sli_run_history *history, const json_t *record)
{
    const json_t *names = json_object_get(record, "sources"), *shares;
    size_t count = json_array_size(names);
    SL_TRY(read_list(record, "source_share", count, &shares));
    if (count > SLI_MAX_SOURCES)
        return sl_error(SL_ERR_FORMAT, "sources must be a list of at most %d names",
                        SLI_MAX_SOURCES);
    if (count != history->source_count) {
        free(history->sources);
        history->source_count = 0;
        history->sources = calloc(count + 1, sizeof *history->sources);
        if (!history->sources)
            return sli_no_memory(NULL, "the sources of a run");
        history->source_count = count;
        for (size_t i = 0; i < count; i++)
            history->sources[i] = (sli_history_source){.epochs = NAN, .valid_loss = NAN};
    }
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        snprintf(history->sources[i].name, sizeof history->sources[i].name, "%s",
                 name ? name : "?");
        history->sources[i].share = number_of(shares, i);
    }
    return SL_OK;
}

sl_status sli_history_sources_add_step(sli_run_history *history, const json_t *record, int64_t step)
{
    const json_t *epochs, *losses;
    SL_TRY(read_list(record, "source_epochs", history->source_count, &epochs));
    SL_TRY(read_list(record, "source_loss", history->source_count, &losses));
    for (size_t i = 0; i < history->source_count && losses; i++) {
        sli_history_source *source = &history->sources[i];
        source->epochs = number_of(epochs, i);
        source->steps[step % SLI_SOURCE_STEPS] = step;
        source->losses[step % SLI_SOURCE_STEPS] = number_of(losses, i);
    }
    return SL_OK;
}

sl_status sli_history_sources_add_eval(sli_run_history *history, const json_t *record, bool is_test)
{
    const json_t *losses;
    SL_TRY(read_list(record, "source_loss", history->source_count, &losses));
    for (size_t i = 0; i < history->source_count && losses && !is_test; i++)
        history->sources[i].valid_loss = number_of(losses, i);
    return SL_OK;
}

double sli_history_source_loss(const sli_run_history *history, const sli_history_source *source)
{
    double sum = 0;
    int count = 0;
    int64_t last = history->step_count > 0 ? history->steps[history->step_count - 1].step : 0;
    for (int i = 0; i < SLI_SOURCE_STEPS; i++) {
        bool counts = source->steps[i] > last - SLI_SOURCE_STEPS && source->steps[i] <= last &&
                      source->steps[i] > 0 && isfinite(source->losses[i]);
        sum += counts ? source->losses[i] : 0;
        count += counts;
    }
    return count > 0 ? sum / count : NAN;
}
