#include "parallel/schedule/writers.h"

#include "core/error.h"
#include "sluice/schedule.h"

#include <stdlib.h>
#include <string.h>

void sli_placement_fill(sli_placement kind, int ranks, int stages, int *placement)
{
    for (int stage = 0; stage < stages; stage++) {
        int round = stage / ranks, within = stage % ranks;
        bool returns = kind == SLI_PLACEMENT_V && round % 2 == 1;
        placement[stage] = returns ? ranks - 1 - within : within;
    }
}

static sl_status parse_list(const char *text, int ranks, int stages, int *placement)
{
    const char *at = text;
    for (int stage = 0; stage < stages; stage++) {
        char *end;
        long rank = strtol(at, &end, 10);
        bool valid = end != at && *at >= '0' && *at <= '9' && rank >= 0 && rank < ranks;
        if (!valid || *end != (stage + 1 < stages ? ',' : '\0'))
            return sl_error(SL_ERR_INVALID,
                            "placement must be loop, v or the rank (0 to %d) of each of the %d "
                            "stages, got '%s'",
                            ranks - 1, stages, text);
        placement[stage] = (int)rank;
        at = end + 1;
    }
    return SL_OK;
}

sl_status sl_placement_parse(const char *text, int ranks, int virtual_stages, int *placement)
{
    SLI_CHECK_NOT_NULL(text);
    SLI_CHECK_NOT_NULL(placement);
    int stages;
    if (ranks < 1 || virtual_stages < 1 || __builtin_mul_overflow(ranks, virtual_stages, &stages))
        return sl_error(SL_ERR_INVALID,
                        "a placement needs ranks and stages a rank of at least 1, got %d and %d",
                        ranks, virtual_stages);
    if (strcmp(text, "loop") == 0)
        sli_placement_fill(SLI_PLACEMENT_LOOP, ranks, stages, placement);
    else if (strcmp(text, "v") == 0)
        sli_placement_fill(SLI_PLACEMENT_V, ranks, stages, placement);
    else
        return parse_list(text, ranks, stages, placement);
    return SL_OK;
}
