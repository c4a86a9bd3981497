/* What state.json says of a run. */
#include "support/check.h"
#include "train/checkpoint/checkpoints.h"

/* Version 0.1.0 added gradients of micro-batches in the other order, and did not write which. */
static void state_says_in_which_order_gradients_were_added(void **state)
{
    (void)state;
    static const char old[] =
        "{\"step\":1,\"epoch\":0,\"block\":1,\"best_step\":0,\"best_loss\":null,"
        "\"options\":{\"dp\":1,\"lr\":5.0},\"layout\":{}%s}";
    char text[256];
    sli_recorded recorded;
    snprintf(text, sizeof text, old, "");
    check_ok(sli_run_state_read(text, &recorded));
    assert_false(recorded.ascends);
    snprintf(text, sizeof text, old, ",\"micro_batches\":\"ascending\"");
    check_ok(sli_run_state_read(text, &recorded));
    assert_true(recorded.ascends);
    assert_int_equal(recorded.chunks, 0);
}

static void chunks_of_a_state_are_checked(void **state)
{
    (void)state;
    static const char json[] =
        "{\"step\":1,\"epoch\":0,\"block\":1,\"best_step\":0,\"best_loss\":null,"
        "\"options\":{\"dp\":1,\"lr\":5.0},\"layout\":{\"chunks\":%s}}";
    static const char *const wrong[] = {"0", "-1", "2.5", "\"8\"", "4097"};
    char text[256];
    sli_recorded recorded;
    snprintf(text, sizeof text, json, "8");
    check_ok(sli_run_state_read(text, &recorded));
    assert_int_equal(recorded.chunks, 8);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, json, wrong[i]);
        check_error(sli_run_state_read(text, &recorded), SL_ERR_FORMAT,
                    "\"chunks\" of the run's layout must be a whole number from 1 to 4096");
    }
}

int run_state_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_says_in_which_order_gradients_were_added),
        cmocka_unit_test(chunks_of_a_state_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
