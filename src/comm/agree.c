#include "comm/agree.h"

sl_status sli_group_broadcast_error(sl_group *group, const sli_error_copy *own, int root)
{
    sli_error_copy error = *own;
    _Static_assert(sizeof error % sizeof(int32_t) == 0, "an error is sent as words");
    SL_TRY(sl_group_broadcast(group, &error, sizeof error / sizeof(int32_t), SL_I32, root, NULL));
    error.text[sizeof error.text - 1] = '\0';
    return sli_error_restore(&error);
}

sl_status sli_group_agree(sl_group *group, sl_status status)
{
    int64_t own = status, all[sl_group_size(group)];
    sli_error_copy error;
    sli_error_save(&error, status);
    SL_TRY(sl_group_all_gather(group, &own, all, 1, SL_I64, NULL));
    for (int r = 0; r < sl_group_size(group); r++)
        if (all[r] != SL_OK)
            return sli_group_broadcast_error(group, &error, r);
    return SL_OK;
}
