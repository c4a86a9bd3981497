/* The program `sluice schedule`, run as a user does. */
#include "support/program.h"

static void gpipe_is_drawn(void **state)
{
    (void)state;
    program_run run;
    program_succeed(&run, "schedule --pp 2 --chunks 3");
    check_text(run.out, "f0 f1 F2 .. .. B2 R1 B1 R0 B0\n"
                        ".. f0 f1 F2 B2 R1 B1 R0 B0 ..\n");
}

static void one_forward_one_backward_holds_less(void **state)
{
    (void)state;
    program_run gpipe, other;
    program_succeed(&gpipe, "schedule --pp 3 --chunks 6 --checkpoint never");
    program_succeed(&other, "schedule --pp 3 --chunks 6 --checkpoint never --schedule 1f1b");
    check_text(gpipe.out, "activations a stage holds at once: 6 6 6\n");
    check_text(other.out, "activations a stage holds at once: 3 2 1\n");
    /* (S - 1) / (M + S - 1), for both */
    check_text(gpipe.out, "25.0% of the stages' time is idle");
    check_text(other.out, "25.0% of the stages' time is idle");
}

static void impossible_value_is_refused(void **state)
{
    (void)state;
    program_run run;
    program_start(&run, "schedule --pp 0");
    check_refused(&run, 2, "--pp must be a whole number from 1 to 64, got \"0\"\n");
    program_start(&run, "schedule --chunks 1e3");
    check_refused(&run, 2, "--chunks must be a whole number from 1 to 4096, got \"1e3\"\n");
    program_start(&run, "schedule --checkpoint sometimes");
    check_refused(&run, 2, "--checkpoint must be except_last, never or always, got \"sometimes\"");
    program_start(&run, "schedule --schedule x");
    check_refused(&run, 2, "--schedule must be gpipe or 1f1b, got \"x\"\n");
}

int cmd_schedule_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpipe_is_drawn),
        cmocka_unit_test(one_forward_one_backward_holds_less),
        cmocka_unit_test(impossible_value_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
