#include "comm/location.h"

#include "comm/group.h"

#include <stdio.h>

/* Writes "stage 2", "stages 2 to 3" or "stages 0, 3": those that `rank` has. */
static void write_stages(const int *stage_ranks, int stages, int rank, char *text, size_t bytes)
{
    size_t used = 0;
    int own = 0;
    for (int s = 0; s < stages; s++)
        own += stage_ranks[s] == rank;
    snprintf(text, bytes, "%s", own == 0 ? "no stage" : "");
    for (int s = 0, last; s < stages && used < bytes; s = last + 1) {
        last = s;
        if (stage_ranks[s] != rank)
            continue;
        while (last + 1 < stages && stage_ranks[last + 1] == rank)
            last++;
        const char *before = used ? ", " : own > 1 ? "stages " : "stage ";
        int length = last > s ? snprintf(text + used, bytes - used, "%s%d to %d", before, s, last)
                              : snprintf(text + used, bytes - used, "%s%d", before, s);
        used += (size_t)length;
    }
}

void sli_rank_location_text(const sl_group *group, int rank, const char *host,
                            const int *stage_ranks, int stages, char text[SLI_LOCATION_BYTES])
{
    char list[96], number[SLI_RANK_BYTES];
    write_stages(stage_ranks, stages, rank, list, sizeof list);
    snprintf(text, SLI_LOCATION_BYTES, "%s on %.63s, %s", sli_rank_text(group, rank, number), host,
             list);
}
