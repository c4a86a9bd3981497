/* Tensors that one rank serves to the one that writes them. */
#include "core/clock.h"
#include "parallel/pipe/pipe_optimizer.h"
#include "sluice/group.h"
#include "support/check.h"

#include <stdio.h>
#include <string.h>

enum { COUNT = 4, TENSORS = 3 };

typedef struct transfers {
    double seconds;
    sl_status statuses[2];
    char error[256];
} transfers;

/* Rank 0 reads the tensors of rank 1, first those of a list whose second one cannot be sent. The
 * third one is an odd number of elements of two bytes. */
static sl_status read_or_serve(sl_group *group, void *argument)
{
    transfers *all = argument;
    int rank = sl_group_rank(group);
    float data[COUNT] = {1, 2, 3, 4};
    for (int lacks = 1; lacks >= 0; lacks--) {
        sl_safetensors_item items[TENSORS] = {{"a", SL_F32, sl_shape_1d(COUNT), NULL},
                                              {"b", SL_F32, sl_shape_1d(COUNT), NULL},
                                              {"c", SL_BF16, sl_shape_1d(COUNT - 1), NULL}};
        const int64_t count = rank == 1 ? COUNT : 0;
        sli_tensor_entry entries[TENSORS] = {{.owner = 1, .whole = COUNT, .count = count},
                                             {.owner = 1, .whole = COUNT, .count = count},
                                             {.owner = 1,
                                              .whole = COUNT - 1,
                                              .count = rank == 1 ? COUNT - 1 : 0}};
        const sli_tensors list = {.items = items, .entries = entries, .count = TENSORS};
        sli_state_stream stream = {.group = group, .stride = 2, .lists = {&list}};
        sl_status status = SL_OK;
        const void *got = NULL;
        if (rank == 1) {
            for (int i = 0; i < TENSORS; i++)
                items[i].data = data;
            if (lacks)
                entries[1].count = -1;
            status = sli_state_stream_serve(&stream);
        } else {
            double begun = sli_clock_seconds();
            for (int i = 0; i < TENSORS && status == SL_OK; i++) {
                size_t bytes = (size_t)items[i].shape.size[0] * sl_dtype_bytes(items[i].dtype);
                status = sli_state_stream_read(&stream, &items[i], &got);
                if (status == SL_OK && memcmp(got, data, bytes) != 0)
                    status = sl_error(SL_ERR_INTERNAL, "the data are others");
            }
            if (status != SL_OK)
                snprintf(all->error, sizeof all->error, "%.255s", sl_error_text());
            all->seconds = sli_clock_seconds() - begun;
            status = sli_state_stream_end(&stream, status);
        }
        if (!lacks)
            return status;
        all->statuses[rank] = status;
        SL_TRY(sl_group_barrier(group, NULL)); /* the run goes on */
    }
    return SL_OK;
}

static void failed_send_fails_what_is_written_alone_and_at_once(void **state)
{
    (void)state;
    transfers all = {0};
    check_ok(sl_spawn(read_or_serve, &all, 2, &(sl_group_options){.timeout_seconds = 20}));
    for (int r = 0; r < 2; r++)
        assert_int_equal(all.statuses[r], SL_ERR_INVALID);
    assert_non_null(strstr(all.error, "rank 1: "));
    assert_true(all.seconds < 5);
}

int state_stream_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_send_fails_what_is_written_alone_and_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
