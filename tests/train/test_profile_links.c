/* A job's links: what one rank cannot measure, none does. */
#include "device/cores.h"
#include "sluice/app/plan.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3 };

/* Rank 1 refuses its arguments, stays in the group, and is named to the others. */
static sl_status refuse_on_rank_1(sl_group *group, void *arg)
{
    const int *rack_nodes = arg;
    char *text = NULL;
    bool refuses = sl_group_rank(group) == 1;
    sl_status status = sl_profile_links(group, refuses ? *rack_nodes : 0,
                                        refuses && *rack_nodes == 0 ? NULL : &text);
    free(text);
    bool is_right = status == SL_ERR_INVALID && !text &&
                    (strncmp(sl_error_text(), "rank 1: ", 8) == 0) == !refuses;
    return is_right
               ? SL_OK
               : sl_error(SL_ERR_INTERNAL, "got \"%s\"", status == SL_OK ? "" : sl_error_text());
}

static void refusal_of_one_rank_ends_all(void **state)
{
    for (int rack_nodes = -1; rack_nodes <= 0; rack_nodes++)
        check_ok(sl_spawn(refuse_on_rank_1, &rack_nodes, RANKS, NULL));
}

/* `arg`: whether there is a level of a process's threads. */
static sl_status measure(sl_group *group, void *arg)
{
    const bool *has_list = arg;
    char *text;
    SL_TRY(sl_profile_links(group, 0, &text));
    bool is_right =
        (strstr(text, "\"list\": {") != NULL) == *has_list && strstr(text, "\"node\": {");
    free(text);
    return is_right ? SL_OK : sl_error(SL_ERR_INTERNAL, "the levels are others");
}

/* Of ranks that share the cores each must have two of them, or one's threads are no level. */
static void ranks_of_a_host_have_its_levels(void **state)
{
    sli_cores cores;
    check_ok(sli_cores_find(&cores));
    bool has_list = cores.core_count >= 2 * RANKS;
    sli_cores_clear(&cores);
    check_ok(sl_spawn(measure, &has_list, RANKS, NULL));
}

int profile_links_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusal_of_one_rank_ends_all),
        cmocka_unit_test(ranks_of_a_host_have_its_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
