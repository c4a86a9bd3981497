#include "parallel/pipe/channel.h"
#include "support/check.h"

#include <pthread.h>

enum { MICROS = 100 };

typedef struct ends {
    sl_device *from, *to;
    sli_channel *channel;
    sli_failure failure;
    bool received;
    sl_tensor *tensor;
} ends;

static void open_channel(ends *e, bool spins)
{
    *e = (ends){0};
    check_ok(sl_device_create_cpu(1, &e->from));
    check_ok(sl_device_create_cpu(1, &e->to));
    sli_failure_init(&e->failure);
    sli_channel_options options = {.device = e->to,
                                   .micros = MICROS,
                                   .spins = spins,
                                   .failure = &e->failure};
    check_ok(sli_channel_create(&options, &e->channel));
}

static void ends_destroy(ends *e)
{
    sli_channel_destroy(&e->channel);
    assert_null(e->channel);
    assert_int_equal(device_bytes(e->from), 0);
    assert_int_equal(device_bytes(e->to), 0);
    sl_device_destroy(&e->from);
    sl_device_destroy(&e->to);
    sli_failure_destroy(&e->failure);
}

static sl_tensor *tensor_with(sl_device *device, float value)
{
    sl_tensor *tensor;
    sl_shape shape = sl_shape_1d(1);
    check_ok(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &tensor));
    check_ok(sl_tensor_write(tensor, &value));
    return tensor;
}

static void assert_holds(const sl_tensor *tensor, float expected)
{
    float value;
    check_ok(sl_tensor_read(tensor, &value));
    assert_float_equal(value, expected, 0);
}

static void tensors_are_received_by_micro_batch_in_any_order(void **state)
{
    SCOPED(ends) e = {0};
    open_channel(&e, false);
    for (int micro = 0; micro < 3; micro++) {
        sl_tensor *tensor = tensor_with(e.from, (float)micro);
        sli_channel_send(e.channel, micro, &tensor);
        assert_null(tensor);
    }
    const int order[] = {1, 2, 0};
    for (int i = 0; i < 3; i++) {
        SCOPED(sl_tensor) *tensor = NULL;
        assert_true(sli_channel_receive(e.channel, order[i], 0, &tensor));
        assert_holds(tensor, (float)order[i]);
    }
}

static uint64_t activation_bytes(const sl_device *device)
{
    sl_memory_stats stats;
    sl_device_memory(device, &stats);
    return stats.current_bytes[SL_MEMORY_ACTIVATIONS];
}

static void tensor_arrives_without_a_copy_on_the_receivers_device(void **state)
{
    SCOPED(ends) e = {0};
    open_channel(&e, false);
    sl_tensor *tensor = tensor_with(e.from, 1);
    const void *data = sl_tensor_data(tensor);
    sli_channel_send(e.channel, 0, &tensor);
    assert_true(sli_channel_receive(e.channel, 0, 0, &tensor));
    assert_ptr_equal(sl_tensor_data(tensor), data);
    assert_ptr_equal(sl_tensor_device(tensor), e.to);
    assert_int_equal(activation_bytes(e.from), 0);
    assert_int_equal(activation_bytes(e.to), sizeof(float));
    sl_tensor_destroy(&tensor);
    assert_int_equal(activation_bytes(e.to), 0);
}

static void *send_all(void *argument)
{
    ends *e = argument;
    for (int micro = 0; micro < MICROS; micro++) {
        sl_tensor *tensor = tensor_with(e->from, (float)micro);
        sli_channel_send(e->channel, micro, &tensor);
    }
    return NULL;
}

static void receiver_waits_for_a_sender_on_another_thread(void **state)
{
    for (int spins = 0; spins < 2; spins++) {
        SCOPED(ends) e = {0};
        open_channel(&e, spins);
        pthread_t sender;
        assert_int_equal(pthread_create(&sender, NULL, send_all, &e), 0);
        for (int micro = MICROS - 1; micro >= 0; micro--) {
            SCOPED(sl_tensor) *tensor = NULL;
            assert_true(sli_channel_receive(e.channel, micro, 0, &tensor));
            assert_holds(tensor, (float)micro);
        }
        pthread_join(sender, NULL);
    }
}

static void *receive_number_5(void *argument)
{
    ends *e = argument;
    e->received = sli_channel_receive(e->channel, 7, 5, &e->tensor);
    return NULL;
}

static void error_ends_every_wait_that_comes_after_it(void **state)
{
    for (int spins = 0; spins < 2; spins++) {
        SCOPED(ends) e = {0};
        open_channel(&e, spins);
        e.received = true;
        pthread_t receiver;
        assert_int_equal(pthread_create(&receiver, NULL, receive_number_5, &e), 0);
        sli_failure_raise(&e.failure, 5, sl_error(SL_ERR_IO, "the fifth"));
        sli_channel_wake(e.channel);
        pthread_join(receiver, NULL);
        assert_false(e.received);
        assert_null(e.tensor);
        receive_number_5(&e); /* who comes later does not wait either */
        assert_false(e.received);

        sl_tensor *late = tensor_with(e.from, 5);
        sli_channel_send(e.channel, 3, &late);
        sli_channel_reset(e.channel); /* frees it */
        check_error(sli_failure_take(&e.failure), SL_ERR_IO, "the fifth");
        SCOPED(sl_tensor) *tensor = tensor_with(e.from, 6);
        sli_channel_send(e.channel, 3, &tensor);
        assert_true(sli_channel_receive(e.channel, 3, 0, &tensor));
        assert_holds(tensor, 6);
    }
}

/* The receiver's action comes before the error: it may fail as well, and must run. */
static void error_after_it_does_not_end_a_wait(void **state)
{
    for (int spins = 0; spins < 2; spins++) {
        SCOPED(ends) e = {0};
        open_channel(&e, spins);
        pthread_t receiver;
        assert_int_equal(pthread_create(&receiver, NULL, receive_number_5, &e), 0);
        sli_failure_raise(&e.failure, 6, sl_error(SL_ERR_IO, "the sixth"));
        sli_channel_wake(e.channel);
        sl_tensor *tensor = tensor_with(e.from, 7);
        sli_channel_send(e.channel, 7, &tensor);
        pthread_join(receiver, NULL);
        assert_true(e.received);
        assert_holds(e.tensor, 7);
        sl_tensor_destroy(&e.tensor);
        assert_int_equal(sli_failure_take(&e.failure), SL_ERR_IO);
    }
}

static void channel_that_is_destroyed_frees_what_was_not_received(void **state)
{
    SCOPED(ends) e = {0};
    open_channel(&e, false);
    sl_tensor *tensor = tensor_with(e.from, 1);
    sli_channel_send(e.channel, 9, &tensor);
}

static void tensor_that_its_maker_keeps_counts_on_the_makers_device(void **state)
{
    SCOPED(ends) e = {0};
    open_channel(&e, false);
    SCOPED(sl_tensor) *tensor = tensor_with(e.from, 1), *kept = NULL;
    check_ok(sl_tensor_alias(tensor, &kept));
    sli_channel_send(e.channel, 0, &tensor);
    assert_true(sli_channel_receive(e.channel, 0, 0, &tensor));
    assert_ptr_equal(sl_tensor_device(tensor), e.to);
    assert_ptr_equal(sl_tensor_device(kept), e.from);
    assert_int_equal(activation_bytes(e.from), sizeof(float));
    assert_int_equal(activation_bytes(e.to), 0);
}

int channel_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_received_by_micro_batch_in_any_order),
        cmocka_unit_test(tensor_arrives_without_a_copy_on_the_receivers_device),
        cmocka_unit_test(tensor_that_its_maker_keeps_counts_on_the_makers_device),
        cmocka_unit_test(receiver_waits_for_a_sender_on_another_thread),
        cmocka_unit_test(error_ends_every_wait_that_comes_after_it),
        cmocka_unit_test(error_after_it_does_not_end_a_wait),
        cmocka_unit_test(channel_that_is_destroyed_frees_what_was_not_received),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
