/* Rows of similar lengths in a batch. The group that was asked for last is kept: a step asks for it
 * several times, and so do the steps that follow. */
#include "train/loop/length_groups.h"

#include "core/error.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BATCHES = 50, FEWEST_GROUPS = 4 };

typedef struct place {
    int64_t number, length; /* `number`: as it is before sorting */
} place;

struct sli_length_groups {
    pthread_mutex_t lock;
    /* The group that is kept; guarded by `lock`. */
    sl_train_rows asked;  /* from which it was sorted */
    int64_t first, count; /* it has batches first … first + count - 1; count 0: there is none */
    place *places;        /* [count * asked.batch_rows] */
};

sl_status sli_length_groups_create(sli_length_groups **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "groups of rows");
    pthread_mutex_init(&(*out)->lock, NULL);
    return SL_OK;
}

void sli_length_groups_destroy(sli_length_groups **groups)
{
    if (!*groups)
        return;
    pthread_mutex_destroy(&(*groups)->lock);
    free((*groups)->places);
    free(*groups);
    *groups = NULL;
}

static int compare_places(const void *a, const void *b)
{
    const place *one = a, *other = b;
    if (one->length != other->length)
        return one->length > other->length ? -1 : 1;
    return one->number < other->number ? -1 : 1;
}

/* Sorts the group that has the batch of `rows`. */
static sl_status sort_group(sli_length_groups *groups, sli_length_at *length_at, const void *data,
                            int64_t batches, const sl_train_rows *rows)
{
    int64_t most = batches / FEWEST_GROUPS;
    most = most < 1 ? 1 : most > MOST_BATCHES ? MOST_BATCHES : most;
    int64_t first = rows->batch / most * most;
    int64_t count = batches - first < most ? batches - first : most;
    size_t places = (size_t)(count * rows->batch_rows);
    place *sorted = malloc(places * sizeof *sorted);
    if (!sorted)
        return sli_no_memory(NULL, "a group of %zu rows", places);
    for (size_t i = 0; i < places; i++) {
        int64_t number = first * rows->batch_rows + (int64_t)i;
        sorted[i] = (place){number, length_at(data, rows, number)};
    }
    qsort(sorted, places, sizeof *sorted, compare_places);
    free(groups->places);
    groups->places = sorted;
    groups->asked = *rows;
    groups->first = first;
    groups->count = count;
    return SL_OK;
}

static bool is_kept(const sli_length_groups *groups, const sl_train_rows *rows)
{
    const sl_train_rows *asked = &groups->asked;
    return rows->batch >= groups->first && rows->batch < groups->first + groups->count &&
           rows->epoch == asked->epoch && rows->batch_rows == asked->batch_rows &&
           rows->shuffled == asked->shuffled && rows->seed == asked->seed;
}

sl_status sli_length_groups_find(sli_length_groups *groups, sli_length_at *length_at,
                                 const void *data, int64_t batches, const sl_train_rows *rows,
                                 int64_t *places)
{
    sl_status status = SL_OK;
    pthread_mutex_lock(&groups->lock);
    if (!is_kept(groups, rows))
        status = sort_group(groups, length_at, data, batches, rows);
    for (int64_t i = 0; i < rows->count && status == SL_OK; i++)
        places[i] =
            groups->places[(rows->batch - groups->first) * rows->batch_rows + rows->first + i]
                .number;
    pthread_mutex_unlock(&groups->lock);
    return status;
}
