#include "train/binding.h"

#include "device/host_cores.h"

#include <stdlib.h>

sl_status sli_binding_find(sl_group *group, bool *out)
{
    int ranks = sl_group_size(group), own = sl_group_rank(group), neighbours = 0;
    bool shared = false;
    *out = false;
    int64_t *all = calloc((size_t)ranks * SLI_CORE_WORDS, sizeof *all);
    if (!all)
        return sl_error(SL_ERR_MEMORY, "no memory to compare the cores of %d ranks", ranks);
    int64_t *mine = all + (size_t)own * SLI_CORE_WORDS;
    sl_status status = sli_host_cores_read(mine);
    if (status == SL_OK)
        status = sl_group_all_gather(group, mine, all, SLI_CORE_WORDS, SL_I64, NULL);
    for (int r = 0; r < ranks && status == SL_OK; r++) {
        sli_core_relation relation = sli_host_cores_compare(mine, all + (size_t)r * SLI_CORE_WORDS);
        if (r == own || relation == SLI_CORES_ELSEWHERE)
            continue;
        neighbours++;
        shared |= relation == SLI_CORES_IN_COMMON;
    }
    *out = neighbours > 0 && !shared;
    free(all);
    return status;
}
