#include "device/cpu/heights.h"

#include <string.h>

void sli_heights_init(sli_heights *heights)
{
    memset(heights, 0, sizeof *heights);
    pthread_mutex_init(&heights->lock, NULL);
}

void sli_heights_clear(sli_heights *heights)
{
    pthread_mutex_destroy(&heights->lock);
}

static const sli_height_entry *find_entry(const sli_heights *heights, const sli_height_shape *shape,
                                          int64_t rows)
{
    for (int i = 0; i < SLI_HEIGHT_ENTRIES; i++) {
        const sli_height_entry *entry = &heights->entries[i];
        if (entry->rows == rows && memcmp(&entry->shape, shape, sizeof *shape) == 0)
            return entry;
    }
    return NULL;
}

static sl_status search(int64_t rows, sli_height_trial trial, void *context, sli_height *out)
{
    const sli_height reference = {SLI_REFERENCE_ROWS, true};
    bool passes;
    *out = (sli_height){1, false};
    SL_TRY(trial(context, reference, &passes));
    if (!passes)
        return SL_OK;
    for (int64_t more = 0; more < SLI_REFERENCE_ROWS; more++) {
        *out = (sli_height){rows + more, more > 0};
        SL_TRY(trial(context, *out, &passes));
        if (passes)
            return SL_OK;
    }
    *out = reference;
    return SL_OK;
}

sl_status sli_heights_find(sli_heights *heights, const sli_height_shape *shape, int64_t rows,
                           sli_height_trial trial, void *context, sli_height *out)
{
    sl_status status = SL_OK;
    pthread_mutex_lock(&heights->lock);
    const sli_height_entry *known = find_entry(heights, shape, rows);
    if (known)
        *out = known->height;
    else
        SL_TRY_OR_FAIL(search(rows, trial, context, out));
    if (!known) {
        heights->entries[heights->next] = (sli_height_entry){*shape, rows, *out};
        heights->next = (heights->next + 1) % SLI_HEIGHT_ENTRIES;
    }
fail:
    pthread_mutex_unlock(&heights->lock);
    return status;
}
