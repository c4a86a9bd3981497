#include "comm/agree.h"

#include "comm/group.h"

sl_status sli_group_broadcast_error(sl_group *group, const sli_error_copy *mine, int root)
{
    sli_error_copy error = *mine;
    _Static_assert(sizeof error % sizeof(int32_t) == 0, "an error is sent as words");
    SL_TRY(sl_group_broadcast(group, &error, sizeof error / sizeof(int32_t), SL_I32, root, NULL));
    error.text[sizeof error.text - 1] = '\0';
    return sli_error_restore(&error);
}

sl_status sli_group_agree(sl_group *group, sl_status status)
{
    if (!group)
        return status;
    int32_t size = sl_group_size(group), first = status == SL_OK ? size : sl_group_rank(group);
    sli_error_copy saved;
    sli_error_save(&saved, status);
    SL_TRY(sl_group_all_reduce(group, &first, 1, SL_I32, SL_REDUCE_MIN, NULL));
    return first == size ? SL_OK : sli_group_broadcast_error(group, &saved, first);
}

sl_status sli_group_check(sl_group *group, sl_status status)
{
    if (status == SL_OK || !group)
        return status;
    sli_error_copy saved;
    sli_error_save(&saved, status);
    group->ops->abort(group, &saved);
    return sli_error_restore(&saved);
}

sl_status sli_group_first_error(sl_group *group, sl_status error)
{
    (void)sli_group_check(group, error);
    sl_status first = group->ops->status(group);
    return first == SL_OK ? error : first;
}
