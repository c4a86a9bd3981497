/* What scripts/check-install compiles against the installed library and starts by mpirun. */
#include <sluice/group.h>

#include <stdio.h>

int main(void)
{
    sl_group *group;
    int sum = 1;
    sl_status status = sl_group_create_mpi(NULL, &group);
    if (status == SL_OK)
        status = sl_group_all_reduce(group, &sum, 1, SL_I32, SL_REDUCE_SUM, NULL);
    if (status != SL_OK) {
        fprintf(stderr, "%s\n", sl_error_text());
        return 1;
    }
    int size = sl_group_size(group);
    sl_group_destroy(&group);
    return sum == size && size == 2 ? 0 : 1;
}
