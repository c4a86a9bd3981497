#include "comm/group.h"
#include "parallel/link_header.h"
#include "support/check.h"

static void refuse(sli_link_header got)
{
    check_error(sli_link_header_check_shape(&got, "rank 1"), SL_ERR_INVALID,
                "rank 1 sent a tensor that no tensor can be");
}

static void every_number_of_a_shape_is_checked(void **state)
{
    (void)state;
    const sli_link_header good = {.dtype = SL_F32, .dims = 2, .size = {3, 5}};
    check_ok(sli_link_header_check_shape(&good, "rank 1"));
    sli_link_header bad = good;
    for (int dtype = -1; dtype <= SL_BF16 + 1; dtype += SL_BF16 + 2) {
        bad.dtype = dtype;
        refuse(bad);
    }
    bad = good;
    for (int dims = -1; dims <= SL_MAX_DIMS + 1; dims += SL_MAX_DIMS + 2) {
        bad.dims = dims;
        refuse(bad);
    }
    bad = good;
    bad.size[1] = -1;
    refuse(bad);
    bad.size[1] = INT64_MAX / 8;
    refuse(bad);
    bad = (sli_link_header){.dtype = SL_F32, .dims = 1, .size = {SLI_TRANSFER_BYTES / 4}};
    check_ok(sli_link_header_check_shape(&bad, "rank 1"));
    bad.size[0]++;
    refuse(bad);
}

static void header_of_another_step_is_refused(void **state)
{
    (void)state;
    const sli_link_step own = {.sequence = 7, .rows = 20, .kind = 1, .first_micro = 4};
    const sli_link_step others[] = {{8, 20, 1, 4}, {7, 21, 1, 4}, {7, 20, 2, 4}, {7, 20, 1, 0}};
    sli_link_header got = {.step = own};
    check_ok(sli_link_header_check_step(&got, &own, "rank 1"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        got.step = others[i];
        check_error(sli_link_header_check_step(&got, &own, "rank 1"), SL_ERR_INVALID,
                    "call different functions or give different batches: rank 1 has");
    }
}

int link_header_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_a_shape_is_checked),
        cmocka_unit_test(header_of_another_step_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
