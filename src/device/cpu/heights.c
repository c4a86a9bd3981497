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
    for (int i = 0; i < SLI_HEIGHTS; i++) {
        const sli_height_entry *entry = &heights->entries[i];
        if (entry->rows == rows && memcmp(&entry->shape, shape, sizeof *shape) == 0)
            return entry;
    }
    return NULL;
}

static sl_status search(int64_t rows, sli_height_trial trial, void *context, int64_t *out)
{
    bool passes;
    *out = 1;
    SL_TRY(trial(context, SLI_HEIGHT, SLI_HEIGHT, &passes));
    for (int64_t height = rows; passes && height < rows + SLI_HEIGHT; height++) {
        bool suits;
        SL_TRY(trial(context, rows, height, &suits));
        *out = suits ? height : SLI_HEIGHT;
        if (suits)
            break;
    }
    return SL_OK;
}

sl_status sli_heights_find(sli_heights *heights, const sli_height_shape *shape, int64_t rows,
                           sli_height_trial trial, void *context, int64_t *out)
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
        heights->next = (heights->next + 1) % SLI_HEIGHTS;
    }
fail:
    pthread_mutex_unlock(&heights->lock);
    return status;
}
