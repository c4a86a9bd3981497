#include "comm/link_time.h"

#include "core/clock.h"
#include "core/error.h"

#include <math.h>
#include <stdlib.h>

enum { ROUND_TRIPS = 4, LARGEST_BYTES = 1 << 20 };

/* Half the shortest round trip of `count` words. */
static sl_status time_round_trips(sl_group *group, int first, int other, int32_t *words,
                                  int64_t count, double *half)
{
    bool is_first = sl_group_rank(group) == first;
    int peer = is_first ? other : first;
    for (int i = 0; i < ROUND_TRIPS; i++) {
        double sent = sli_clock_seconds();
        if (is_first)
            SL_TRY(sl_group_send(group, words, count, SL_I32, peer, 0, NULL));
        SL_TRY(sl_group_recv(group, words, count, SL_I32, peer, 0, NULL, NULL));
        if (!is_first)
            SL_TRY(sl_group_send(group, words, count, SL_I32, peer, 0, NULL));
        double seconds = (sli_clock_seconds() - sent) / 2;
        *half = i == 0 ? seconds : fmin(*half, seconds);
    }
    return SL_OK;
}

sl_status sli_measure_link(sl_group *group, int first, int other, double bytes, double *seconds)
{
    double message = fmin(bytes, LARGEST_BYTES);
    int64_t count = (int64_t)ceil(message / sizeof(int32_t));
    int32_t *words = calloc((size_t)count, sizeof *words);
    *seconds = 0;
    if (!words)
        return sli_no_memory(NULL, "the measurement of a link");
    sl_status status = time_round_trips(group, first, other, words, count, seconds);
    free(words);
    *seconds = sl_group_rank(group) == first ? *seconds * bytes / message : 0;
    return status;
}
